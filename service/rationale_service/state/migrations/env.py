"""Alembic's environment: migrates on the connection on which `Database` has begun a transaction."""

from alembic import context

from rationale_service.state.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table="state_version",
)
with context.begin_transaction():
    context.run_migrations()
