"""Operators that read windows: pools, padding, resampling."""
