"""Digests of keys, signed erasures, and checkpoints that show how old their row was.

Rows are digested otherwise from here on, and those of before cannot be: they are refused.
"""

import sqlalchemy as sa
from alembic import op

from service.errors import StateUnavailableError

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    for table in ("audit_decisions", "audit_checkpoints"):
        if op.get_bind().execute(sa.text(f"SELECT 1 FROM {table} LIMIT 1")).first():  # noqa: S608
            raise StateUnavailableError(
                "the audit trail holds decisions of a version before the first release, whose digests were "
                "made otherwise: keep it with that version, and name another database in RATIONALE_AUDIT"
            )
    op.add_column("audit_decisions", sa.Column("key_digest", sa.Text))
    op.create_table(
        "audit_erasures",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("time", sa.Text, nullable=False),
        sa.Column("signature", sa.Text, nullable=False),
    )
    op.drop_table("audit_checkpoints")
    op.create_table(
        "audit_checkpoints",
        sa.Column("chain", sa.Text, primary_key=True),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("previous", sa.Text, nullable=False),
        sa.Column("time", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("pruned", sa.Text, nullable=False),
    )
