"""Administrators' acts: caller, act, address and time, each chained to the act before.

All processes of a trail add to one chain. An act's digest is the SHA-256 of a JSON array, without spaces, in
UTF-8, of its columns except `hash`.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rationale_service.decisions.audit.evidence.verify import ChainFault
from rationale_service.decisions.audit.rows import GENESIS, Row, text_digest, time_text, unreadable
from rationale_service.decisions.audit.stores.store import AuditStore
from rationale_service.errors import StateUnavailableError

log = logging.getLogger(__name__)

CHAIN = "acts"
COLUMNS = (
    *("number", "previous", "time", "caller", "address", "act", "target", "status", "request_id", "detail"),
)


@dataclass(frozen=True)
class AdminAct:
    """One call of the admin API, successful or not.

    Attributes:
        caller: name of the key or token; empty if none is needed.
        address: address of the caller, as the gateway saw it.
        act: HTTP method; `target` is the path and query.
        status: HTTP status of the answer.
        detail: content of the call beyond its path.
        time: time of the call, RFC 3339 in UTC with microseconds.
    """

    caller: str
    address: str
    act: str
    target: str
    status: int
    request_id: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    time: str = field(default_factory=time_text)


class ActLog:
    """The acts of a trail; without a trail they go to the gateway's own log."""

    def __init__(self, make: Callable[[], AuditStore] | None) -> None:
        """Take a function that opens the store; None if the trail is off."""
        self._make = make
        self._store: AuditStore | None = None

    async def check(self) -> None:
        """Raise StateUnavailableError if an act could not be recorded, so that it must not be done."""
        make = self._make
        if make is None:
            return
        try:
            await asyncio.to_thread(lambda: self._get_store(make).probe())
        except StateUnavailableError as error:
            log.error("an act cannot be recorded, and is refused: %s", error)  # it may name machines
            raise StateUnavailableError(
                "the audit trail is not available, so the gateway changed nothing: try again later", 5
            ) from error

    async def note(self, act: AdminAct) -> None:
        """Record a finished act; if that fails, write it to the gateway's own log."""
        make = self._make
        if make is None:
            log.info("act: %s", asdict(act))
            return
        try:
            await asyncio.to_thread(lambda: record(self._get_store(make), act))
        except StateUnavailableError as error:
            log.error("an act is not recorded: %s: %s", error, asdict(act))

    async def stop(self) -> None:
        """Close the store."""
        if self._store is not None:
            await asyncio.to_thread(self._store.close)

    def _get_store(self, make: Callable[[], AuditStore]) -> AuditStore:
        if self._store is None:
            self._store = make()
        return self._store


def record(store: AuditStore, act: AdminAct) -> None:
    """Add an act to the chain. Raises StateUnavailableError."""

    def add_to_chain(last: Row | None) -> Row:
        if last is not None and unreadable(last):
            raise _altered_error(last)
        number, previous = (1, GENESIS) if last is None else (last["number"] + 1, last["hash"])
        detail = json.dumps(act.detail, ensure_ascii=False, sort_keys=True)
        row = {**asdict(act), "detail": detail, "number": number, "previous": previous}
        return {**row, "hash": digest(row)}

    store.add_act(add_to_chain)


def open_act(row: Row) -> dict[str, Any]:
    """Return an act with its detail. Raises StateUnavailableError if its row was altered."""
    try:
        if not unreadable(row):
            return {**row, "detail": json.loads(row["detail"])}
    except ValueError as error:
        raise _altered_error(row) from error
    raise _altered_error(row)


def _altered_error(row: Row) -> StateUnavailableError:
    return StateUnavailableError(
        f"act {row['number']} cannot be read: its row was altered, as `rationale audit verify` shows"
    )


def digest(row: Row) -> str:
    """Return the digest of all columns except the row's own `hash`."""
    columns = [row[name] for name in COLUMNS]
    return text_digest(json.dumps(columns, ensure_ascii=False, separators=(",", ":")))


def verify_acts(store: AuditStore) -> Iterator[ChainFault | int]:
    """Yield the chain's faults and, at the end, its number of acts.

    It cannot detect acts missing from the end. Raises StateUnavailableError.
    """
    number, previous = 0, GENESIS
    for row in store.acts():
        if columns := unreadable(row):
            place = row["number"] if isinstance(row["number"], int) else number + 1
            yield ChainFault(CHAIN, place, f"cannot be read: {columns} cannot have been written so")
            if isinstance(row["number"], int):
                number, previous = row["number"], row["hash"]
            continue
        if row["number"] != number + 1:
            yield ChainFault(CHAIN, row["number"], f"{row['number'] - number - 1} before it are missing")
        elif row["previous"] != previous:
            yield ChainFault(CHAIN, row["number"], "it does not follow the one before")
        if digest(row) != row["hash"]:
            yield ChainFault(CHAIN, row["number"], "it was altered")
        number, previous = row["number"], row["hash"]
    yield number
