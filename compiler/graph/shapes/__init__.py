"""Shapes and types of what nodes make."""
