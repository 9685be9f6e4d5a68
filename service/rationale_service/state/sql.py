"""The state's records, leases and replicas in SQLite or PostgreSQL."""

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, insert, select, text, update

from rationale_service.state import Change
from rationale_service.state.database import Database, Schema
from rationale_service.state.replica import Lease, Replica
from rationale_service.state.tables import leases, records, replicas, revision

SCHEMA = Schema(
    name="state",
    setting="setting state (RATIONALE_STATE) must be a folder, or",
)
LEASE_S = 10.0  # after which another machine's lease expires unless renewed
HEARD_S = 5.0  # after which a replica of another machine counts as gone


class StateDatabase(Database):
    """The state's database. Every method is one transaction, and may raise StateUnavailableError."""

    def __init__(self, where: str | Path, count: Callable[[], None] = lambda: None) -> None:
        super().__init__(where, SCHEMA, count=count)

    def revision(self) -> int:
        """Return the number of changes of the records so far."""
        with self.reading() as connection:
            return _number(connection)

    def snapshot(self) -> tuple[int, dict[str, list[dict[str, Any]]]]:
        """Return the revision and, by kind, all records in the order in which they were added."""
        by_kind: dict[str, list[dict[str, Any]]] = {}
        with self.reading() as connection:
            number = _number(connection)
            query = select(records.c.kind, records.c.value).order_by(records.c.added, records.c.key)
            for kind, value in connection.execute(query):
                by_kind.setdefault(kind, []).append(json.loads(value))
        return number, by_kind

    def write(self, changes: Collection[Change], since: int | None = None) -> int | None:
        """Save records, or delete those whose value is None: all of it or nothing.

        Args:
            since: revision on which the changes are based; None to write even if others have written since.

        Returns:
            The new revision; None if others have written since, so that nothing was changed.
        """
        with self.writing() as connection:
            number = self._locked_revision(connection)
            if since is not None and number != since:
                return None
            connection.execute(update(revision).values(number=number + 1))
            for kind, key, value in changes:
                _write(connection, kind, key, value, number + 1)
            return number + 1

    # --- leases -------------------------------------------------------------------------------------------

    def leases(self, replica: Replica) -> dict[str, Lease]:
        """Return the valid leases, by name."""
        with self.reading() as connection:
            now_s = self._now_s(connection)
            rows = connection.execute(select(leases)).mappings().all()
        live = (row for row in rows if row["until_s"] > now_s and not replica.is_dead(row["holder"]))
        return {row["name"]: Lease(row["holder"], json.loads(row["note"])) for row in live}

    def take(self, name: str, replica: Replica) -> str | None:
        """Take a free lease. Return None if a replica has it; else the replica that left it behind, or ""."""
        with self._in_turn() as connection:
            now_s = self._now_s(connection)
            query = select(leases.c.holder, leases.c.until_s).where(leases.c.name == name)
            lease = connection.execute(query).first()
            if lease is not None and lease.until_s > now_s and not replica.is_dead(lease.holder):
                return None
            connection.execute(delete(leases).where(leases.c.name == name))
            row = {"name": name, "holder": replica.id, "until_s": now_s + LEASE_S, "note": "{}"}
            connection.execute(insert(leases).values(row))
            return lease.holder if lease is not None else ""

    def renew(self, name: str, replica: Replica, note: Mapping[str, Any]) -> bool:
        """Prolong a lease and record its progress; return False if another replica has it by now."""
        with self.writing() as connection:
            until_s = self._now_s(connection) + LEASE_S
            own_lease = (leases.c.name == name) & (leases.c.holder == replica.id)
            changed = connection.execute(
                update(leases).where(own_lease).values(until_s=until_s, note=json.dumps(note))
            )
            return bool(changed.rowcount)

    def release(self, name: str, replica: Replica) -> None:
        """Release a lease if this replica has it."""
        with self.writing() as connection:
            connection.execute(delete(leases).where(leases.c.name == name, leases.c.holder == replica.id))

    # --- replicas -----------------------------------------------------------------------------------------

    def follow(self, replica: Replica, number: int) -> None:
        """Record that a replica serves a revision; forget replicas that have ended."""
        with self.writing() as connection:
            now_s = self._now_s(connection)
            rows = connection.execute(select(replicas)).mappings().all()
            gone = [
                row["id"] for row in rows if row["id"] == replica.id or self._is_gone(row, replica, now_s)
            ]
            connection.execute(delete(replicas).where(replicas.c.id.in_(gone)))
            connection.execute(insert(replicas).values(id=replica.id, revision=number, seen_s=now_s))

    def leave(self, replica: Replica) -> None:
        """Forget a replica and its leases."""
        with self.writing() as connection:
            connection.execute(delete(replicas).where(replicas.c.id == replica.id))
            connection.execute(delete(leases).where(leases.c.holder == replica.id))

    def behind(self, replica: Replica, number: int) -> list[str]:
        """Return the other running replicas that do not serve a revision yet."""
        with self.reading() as connection:
            now_s = self._now_s(connection)
            rows = connection.execute(select(replicas).where(replicas.c.revision < number)).mappings().all()
        return [r["id"] for r in rows if r["id"] != replica.id and not self._is_gone(r, replica, now_s)]

    # --- transactions -------------------------------------------------------------------------------------

    @contextmanager
    def _in_turn(self) -> Iterator[Connection]:
        with self.writing() as connection:
            self._locked_revision(connection)
            yield connection

    def _locked_revision(self, connection: Connection) -> int:
        """Return the revision and lock it: no other replica writes until the transaction ends."""
        return int(connection.execute(select(revision.c.number).with_for_update()).scalar_one())

    def _now_s(self, connection: Connection) -> float:
        """Return the time of the database's clock, which all replicas share."""
        if self.is_sqlite:
            return time.time()
        return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())

    def _is_gone(self, row: Any, replica: Replica, now_s: float) -> bool:
        """Tell whether a replica has ended.

        Replicas of one SQLite file see each other's processes; one from an earlier boot, or from a copied
        folder, has ended.
        """
        if self.is_sqlite:
            return replica.is_dead(row["id"]) or replica.is_of_another_boot(row["id"])
        return replica.is_dead(row["id"]) or row["seen_s"] < now_s - HEARD_S


def _number(connection: Connection) -> int:
    return int(connection.execute(select(revision.c.number)).scalar_one())


def _write(connection: Connection, kind: str, key: str, value: Mapping[str, Any] | None, number: int) -> None:
    place = (records.c.kind == kind) & (records.c.key == key)
    if value is None:
        connection.execute(delete(records).where(place))
        return
    written = json.dumps(value)
    if not connection.execute(update(records).where(place).values(value=written)).rowcount:
        connection.execute(insert(records).values(kind=kind, key=key, added=number, value=written))
