"""The state's tables, as the newest migration leaves them."""

from sqlalchemy import BigInteger, Column, Float, MetaData, Table, Text

metadata = MetaData()

# One row: the number of changes of the records so far. A process locks it before it changes records.
revision = Table("state_revision", metadata, Column("number", BigInteger, nullable=False))

# JSON objects, by kind and key, in the order in which they were first added.
records = Table(
    "state_records",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("added", BigInteger, nullable=False),
    Column("value", Text, nullable=False),
)

# Tasks that one process does for all: the end of the lease, unless renewed, and the progress (JSON).
leases = Table(
    "state_leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("until_s", Float(53), nullable=False),
    Column("note", Text, nullable=False),
)

# Processes that follow the records, with the revision each serves and the time of its last sign of life.
replicas = Table(
    "state_replicas",
    metadata,
    Column("id", Text, primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("seen_s", Float(53), nullable=False),
)
