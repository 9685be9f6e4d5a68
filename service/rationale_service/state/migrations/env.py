"""Alembic's environment: migrates on the connection on which `Database` has begun a transaction."""

from alembic import context

from rationale_service.state.database import VERSIONS

context.configure(connection=context.config.attributes["connection"], version_table=VERSIONS)
with context.begin_transaction():
    context.run_migrations()
