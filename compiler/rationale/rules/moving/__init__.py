"""Operators that move values: shapes, gathers, scatters, choices by order."""
