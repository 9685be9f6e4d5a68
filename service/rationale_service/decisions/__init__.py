"""Decisions as they are answered, recorded, and shown again."""
