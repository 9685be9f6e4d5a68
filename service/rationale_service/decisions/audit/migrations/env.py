"""Alembic's environment: migrates on the connection on which `database.py` has begun a transaction."""

from alembic import context

from rationale_service.decisions.audit.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table="audit_version",
)
with context.begin_transaction():
    context.run_migrations()
