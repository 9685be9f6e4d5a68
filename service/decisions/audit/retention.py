"""What is deleted: rows that are old enough, from the beginnings of chains, and keys of inputs.

Both leave evidence: a checkpoint that shows how old the last row was, and a signed record of each key.
"""

import calendar
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select

from service.decisions.audit.chain import content_digest, text_digest
from service.decisions.audit.database import Database
from service.decisions.audit.signatures import PrivateKey
from service.decisions.audit.tables import checkpoints, decisions, erasures, input_keys
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
    end_of_gone = select(decisions).where(gone).order_by(table.sequence.desc()).limit(1)
    connection.execute(delete(checkpoints).where(checkpoints.c.chain == chain))
    row = connection.execute(end_of_gone).mappings().one()
    connection.execute(insert(checkpoints).values(**checkpoint_of(dict(row)), pruned=_now()))
    for beside in (input_keys, erasures):
        connection.execute(delete(beside).where(beside.c.id.in_(select(table.id).where(gone))))
    return connection.execute(delete(decisions).where(gone)).rowcount


def checkpoint_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What shows that a row was there, and when it was made."""
    kept = ("chain", "sequence", "hash", "previous", "time")
    return {**{name: row[name] for name in kept}, "content": content_digest(row)}


def erase(database: Database, decision: str, key: PrivateKey) -> None:
    """Deletes the key of a decision's sealed inputs; the row stays, and nobody can read them again.

    Args:
        key: signs the record of it.

    Raises:
        UnknownResourceError: there is no such decision.
        ConflictError: its inputs are not sealed, or their key is gone already, or another's.
        StateUnavailableError: the trail cannot be written.
    """
    with database.administering() as connection:  # the row is not pruned meanwhile
        found = connection.execute(select(decisions).where(decisions.c.id == decision)).mappings().first()
        if found is None:
            raise UnknownResourceError(f"there is no decision '{decision[:80]}' in the audit trail")
        if found["kept"] != "sealed":
            raise ConflictError(
                f"the inputs of decision {decision} are kept {found['kept']}: only sealed ones can be "
                "erased, and the chain would show it if they were deleted"
            )
        query = select(input_keys.c.wrapped).where(input_keys.c.id == decision)
        wrapped = connection.execute(query).scalar()
        if wrapped is not None and text_digest(wrapped) != found["key_digest"]:
            raise ConflictError(
                f"the key of decision {decision} is not its own, and to delete it would erase nothing: see "
                "`rationale audit verify`"
            )
        is_gone = not connection.execute(delete(input_keys).where(input_keys.c.id == decision)).rowcount
        recorded = connection.execute(select(erasures.c.id).where(erasures.c.id == decision)).first()
        if not is_gone and recorded is None:
            time = _now()
            record = {"id": decision, "time": time, "signature": key.sign(erasure_of(dict(found), time))}
            connection.execute(insert(erasures).values(record))
    database.forget()
    if is_gone and recorded is None:
        raise ConflictError(
            f"the key of decision {decision} is gone, and nobody recorded that it was erased: see `rationale "
            "audit verify`"
        )
    if is_gone:
        raise ConflictError(f"the inputs of decision {decision} were erased before")


def erasure_of(row: Mapping[str, Any], time: str) -> dict[str, Any]:
    """What is signed of an erasure: of this row alone."""
    return {"erased": {name: row[name] for name in ("chain", "sequence", "hash", "id")}, "time": time}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
