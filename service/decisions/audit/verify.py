"""Holds every row against its digest and the row before it, and chains against heads that were signed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, func, select

from service.decisions.audit.chain import GENESIS, Head, digest
from service.decisions.audit.database import Database
from service.decisions.audit.heads import SignedHead
from service.decisions.audit.tables import checkpoints, decisions

_AT_ONCE = 500


@dataclass(frozen=True)
class Fault:
    """Where a chain is not as it was written."""

    chain: str
    sequence: int
    what: str

    def __str__(self) -> str:
        return f"chain {self.chain}, row {self.sequence}: {self.what}"


def chains(connection: Connection) -> list[str]:
    """Every chain that there is, or was and is pruned."""
    pruned = select(checkpoints.c.chain)
    return sorted(connection.execute(select(decisions.c.chain).union(pruned)).scalars())


def pruned_rows(database: Database) -> int:
    """What is gone by retention. Raises StateUnavailableError."""
    with database.reading() as connection:
        return int(connection.execute(select(func.sum(checkpoints.c.sequence))).scalar() or 0)


def verify(
    database: Database, signed: Sequence[SignedHead] = (), kept_since: str | None = None
) -> Iterator[Fault | int]:
    """Walks all chains as they are at one moment.

    Args:
        signed: heads that chains must still hold.
        kept_since: the time before which rows of signed heads may be pruned; None: none may be.

    Yields:
        Faults, and in between how many rows were read.

    Raises:
        StateUnavailableError: the trail cannot be read.
    """
    heads: dict[str, list[SignedHead]] = {}
    for head in signed:
        heads.setdefault(head.chain, []).append(head)
    read = 0
    with database.reading() as connection:
        for chain in sorted({*chains(connection), *heads}):
            for found in _walk(connection, chain, heads.get(chain, []), kept_since):
                if found is None:
                    read += 1
                    if read % _AT_ONCE == 0:
                        yield read
                else:
                    yield found
    yield read


def _walk(
    connection: Connection, chain: str, signed: Sequence[SignedHead], kept_since: str | None
) -> Iterator[Fault | None]:
    """None for each row."""
    last = _beginning(connection, chain)
    begins = last.sequence
    hashes = {head.sequence: "" for head in signed}
    if begins in hashes:
        hashes[begins] = last.hash
    query = select(decisions).where(decisions.c.chain == chain).order_by(decisions.c.sequence)
    for row in connection.execution_options(yield_per=_AT_ONCE).execute(query).mappings():
        yield from _faults(row, last)
        yield None
        last = Head(chain, row["sequence"], row["hash"])
        if last.sequence in hashes:
            hashes[last.sequence] = last.hash
    for head in signed:
        if head.sequence < begins:
            if kept_since is None or head.time >= kept_since:
                yield Fault(chain, head.sequence, f"is of {head.time}, and was pruned before its time")
        elif head.sequence > last.sequence:
            yield Fault(
                chain,
                last.sequence + 1,
                f"is gone, and all up to row {head.sequence}, of which there is a signed head",
            )
        elif hashes[head.sequence] not in ("", head.hash):
            yield Fault(chain, head.sequence, "is not the row of the signed head: the chain was written anew")


def _beginning(connection: Connection, chain: str) -> Head:
    query = select(checkpoints.c.sequence, checkpoints.c.hash).where(checkpoints.c.chain == chain)
    found = connection.execute(query).first()
    return Head(chain, 0, GENESIS) if found is None else Head(chain, found.sequence, found.hash)


def _faults(row: RowMapping, last: Head) -> Iterator[Fault]:
    chain, sequence, expected = row["chain"], row["sequence"], last.sequence + 1
    if sequence > expected:
        gone = f"rows {expected} to {sequence - 1} are" if sequence > expected + 1 else f"row {expected} is"
        yield Fault(chain, expected, f"{gone} removed")
    elif sequence < expected:
        yield Fault(chain, sequence, "stands before what was pruned: it was inserted")
    elif row["previous"] != last.hash:
        yield Fault(chain, sequence, "does not follow the row before it: one of them was replaced")
    if digest(dict(row)) != row["hash"]:
        yield Fault(chain, sequence, "was altered: it does not have its digest")
