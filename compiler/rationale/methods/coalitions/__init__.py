"""Explanations of any model by calling it for coalitions of its features."""
