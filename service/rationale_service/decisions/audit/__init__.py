"""The audit trail: decisions in a database, chained by their digests, in SQLite or PostgreSQL."""
