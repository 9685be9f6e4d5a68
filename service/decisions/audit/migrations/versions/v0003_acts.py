"""What administrators did."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "audit_acts",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("previous", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("time", sa.Text, nullable=False),
        sa.Column("caller", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("act", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
    )
