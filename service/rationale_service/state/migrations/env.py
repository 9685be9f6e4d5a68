"""Run by Alembic: migrates over the connection that `Database` has begun a transaction on."""

from alembic import context

from rationale_service.state.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table="state_version",
)
with context.begin_transaction():
    context.run_migrations()
