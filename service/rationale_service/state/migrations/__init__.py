"""Alembic's scripts of the state's tables."""
