"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table("state_revision", sa.Column("number", sa.BigInteger, nullable=False))
    op.execute("INSERT INTO state_revision VALUES (0)")
    op.create_table(
        "state_records",
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("added", sa.BigInteger, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_table(
        "state_leases",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("until_s", sa.Float(53), nullable=False),
        sa.Column("note", sa.Text, nullable=False),
    )
    op.create_table(
        "state_replicas",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("seen_s", sa.Float(53), nullable=False),
    )
