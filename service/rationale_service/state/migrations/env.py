"""Run by Alembic: migrates over the connection that `Database` has begun a transaction on."""

from alembic import context

from rationale_service.state.database import VERSIONS

context.configure(connection=context.config.attributes["connection"], version_table=VERSIONS)
with context.begin_transaction():
    context.run_migrations()
