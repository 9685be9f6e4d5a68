"""Fewer steps for the same multipliers: fusion, and factors that commute."""
