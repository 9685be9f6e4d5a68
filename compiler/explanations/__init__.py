"""Explanations of many rows: files of them, and pictures."""
