"""The trail's tables, as the newest migration leaves them."""

from sqlalchemy import BigInteger, Column, Float, Index, Integer, MetaData, Table, Text

metadata = MetaData()

# Rows are only added, at the end of a chain; pruning deletes them from its beginning.
decisions = Table(
    "audit_decisions",
    metadata,
    Column("chain", Text, primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("previous", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("time", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("caller", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("latency_ms", Float(53), nullable=False),
    Column("answer", Text, nullable=False),
    Column("runtime", Text, nullable=False),
    Column("kept", Text, nullable=False),
    Column("inputs", Text, nullable=False),
    Column("key_digest", Text),
    Column("idempotency_key", Text),
    Column("place", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("application_id", Text),
    Column("reviews", Text),
    Column("review_by", Text),
    Index("audit_by_id", "id", unique=True),
    Index("audit_by_key", "model", "caller", "idempotency_key", "place", unique=True),
    Index("audit_by_time", "time"),
    Index("audit_by_application", "application_id"),
    Index("audit_by_reviewed", "reviews"),
    Index("audit_by_deadline", "review_by"),
)

# Keys of sealed inputs, by decision. They are outside the chain, which has their digests: deleting a key
# erases its inputs and nothing else.
input_keys = Table(
    "audit_input_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("wrapped", Text, nullable=False),
)

# Signed records of deleted keys: a key that is missing without a record was not legitimately erased.
erasures = Table(
    "audit_erasures",
    metadata,
    Column("id", Text, primary_key=True),
    Column("time", Text, nullable=False),
    Column("signature", Text, nullable=False),
)

# The last pruned row of a chain, without its content: the rest of the chain begins after it.
checkpoints = Table(
    "audit_checkpoints",
    metadata,
    Column("chain", Text, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("hash", Text, nullable=False),
    Column("previous", Text, nullable=False),
    Column("time", Text, nullable=False),  # time of the row
    Column("content", Text, nullable=False),
    Column("pruned", Text, nullable=False),  # time of the pruning
)

# Administrators' acts, as one chain of all processes. Rows are only added.
acts = Table(
    "audit_acts",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("previous", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("time", Text, nullable=False),
    Column("caller", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("act", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("detail", Text, nullable=False),
)
