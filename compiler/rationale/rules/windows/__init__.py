"""Operators that look through windows: pools, padding, resampling."""
