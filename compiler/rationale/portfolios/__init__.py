"""Explanations of many rows: files, pictures and reports of them."""
