"""Stores for the rows of a trail: their protocol, and the one in SQLite or PostgreSQL."""
