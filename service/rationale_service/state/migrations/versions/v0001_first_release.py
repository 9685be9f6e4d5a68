"""The tables of the first release: the state's, and the audit trail's."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _state()
    _audit()


def _state() -> None:
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


def _audit() -> None:
    op.create_table(
        "audit_decisions",
        sa.Column("chain", sa.Text, primary_key=True),
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("previous", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("time", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("caller", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("latency_ms", sa.Float(53), nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
        sa.Column("runtime", sa.Text, nullable=False),
        sa.Column("kept", sa.Text, nullable=False),
        sa.Column("inputs", sa.Text, nullable=False),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("place", sa.Integer, nullable=False),
        sa.Column("key_digest", sa.Text),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("application_id", sa.Text),
        sa.Column("reviews", sa.Text),
        sa.Column("review_by", sa.Text),
    )
    key = ["model", "caller", "idempotency_key", "place"]
    op.create_index("audit_by_id", "audit_decisions", ["id"], unique=True)
    op.create_index("audit_by_key", "audit_decisions", key, unique=True)
    op.create_index("audit_by_time", "audit_decisions", ["time"])
    op.create_index("audit_by_application", "audit_decisions", ["application_id"])
    op.create_index("audit_by_reviewed", "audit_decisions", ["reviews"])
    op.create_index("audit_by_deadline", "audit_decisions", ["review_by"])
    op.create_table(
        "audit_input_keys",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("wrapped", sa.Text, nullable=False),
    )
    op.create_table(
        "audit_erasures",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("time", sa.Text, nullable=False),
        sa.Column("signature", sa.Text, nullable=False),
    )
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
