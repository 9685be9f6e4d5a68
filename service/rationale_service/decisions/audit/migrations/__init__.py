"""Changes of the trail's tables, in Alembic's form; `database.py` runs them when it opens the trail."""
