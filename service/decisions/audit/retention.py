"""What is deleted: rows that are old enough, from the beginnings of chains, and keys of inputs."""

import calendar
from datetime import UTC, datetime

from sqlalchemy import Connection, delete, func, insert, select

from service.decisions.audit.database import Database
from service.decisions.audit.tables import checkpoints, decisions, input_keys
from service.errors import ConflictError, UnknownResourceError

_AT_ONCE = 2000  # rows of one transaction: decisions wait for it


def months_ago(months: int, now: datetime | None = None) -> str:
    """As `RecordedDecision.time`; the last day of a month that is too short."""
    now = now or datetime.now(UTC)
    years, month = divmod(now.month - 1 - months, 12)
    year = max(now.year + years, datetime.min.year)
    day = min(now.day, calendar.monthrange(year, month + 1)[1])
    return now.replace(year=year, month=month + 1, day=day).isoformat(timespec="microseconds")


def prune(database: Database, before: str) -> int:
    """Deletes older decisions, of one chain, up to its first that is not older; returns how many.

    Not all of them at once: call it until there are none. A checkpoint tells where the rest begins.

    Args:
        before: as `RecordedDecision.time`.

    Raises:
        StateUnavailableError: the trail cannot be written.
    """
    table = decisions.c
    with database.administering() as connection:
        old = connection.execute(select(table.chain).where(table.time < before).distinct())
        for chain in old.scalars().all():
            begins = select(table.sequence, table.time).where(table.chain == chain).order_by(table.sequence)
            first = connection.execute(begins.limit(1)).one()
            if first.time < before:
                return _pruned(connection, chain, first.sequence, before)
    return 0


def _pruned(connection: Connection, chain: str, first: int, before: str) -> int:
    table = decisions.c
    of_chain, end = table.chain == chain, first + _AT_ONCE
    kept = select(func.min(table.sequence)).where(of_chain, table.sequence < end, table.time >= before)
    last = (connection.execute(kept).scalar() or end) - 1
    gone = of_chain & (table.sequence <= last)
    query = select(table.sequence, table.hash).where(gone).order_by(table.sequence.desc()).limit(1)
    sequence, digest = connection.execute(query).one()
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    connection.execute(delete(checkpoints).where(checkpoints.c.chain == chain))
    connection.execute(insert(checkpoints).values(chain=chain, sequence=sequence, hash=digest, time=now))
    connection.execute(delete(input_keys).where(input_keys.c.id.in_(select(table.id).where(gone))))
    return connection.execute(delete(decisions).where(gone)).rowcount


def erase(database: Database, decision: str) -> None:
    """Deletes the key of a decision's sealed inputs; the row stays, and nobody can read them again.

    Raises:
        UnknownResourceError: there is no such decision.
        ConflictError: its inputs are not sealed, or were erased before.
        StateUnavailableError: the trail cannot be written.
    """
    with database.writing() as connection:
        kept = connection.execute(select(decisions.c.kept).where(decisions.c.id == decision)).scalar()
        if kept is None:
            raise UnknownResourceError(f"there is no decision '{decision[:80]}' in the audit trail")
        if kept != "sealed":
            raise ConflictError(
                f"the inputs of decision {decision} are kept {kept}: only sealed ones can be erased, and the "
                "chain would show it if they were deleted"
            )
        gone = connection.execute(delete(input_keys).where(input_keys.c.id == decision)).rowcount
    database.forget()
    if not gone:
        raise ConflictError(f"the inputs of decision {decision} were erased before")
