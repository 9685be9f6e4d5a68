"""Rows of numbers: reference sets, references of a request, files, tables, centroids."""
