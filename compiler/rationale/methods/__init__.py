"""Explanation methods, and the three engines that put them into a model's graph."""
