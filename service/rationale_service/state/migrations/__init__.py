"""Alembic's scripts of all tables: the state's and the audit trail's."""
