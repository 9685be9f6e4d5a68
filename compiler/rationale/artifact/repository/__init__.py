"""Entries of a Triton model repository: written whole or not at all, and pulled from an object storage."""
