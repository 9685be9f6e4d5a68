"""The rows of a trail, which are chained so that none can change or go unseen, and the protocol of a store.

A row's digest is the SHA-256 of a JSON array, without spaces, in UTF-8: of the row's place, its time, and the
digest of all else. So a checkpoint can show when a row was made that is there no more, and no more of it.
Whoever has the table can compute both without Rationale.
"""

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol

GENESIS = "0" * 64  # what the first row of a chain follows
PLACED = ("chain", "sequence", "previous", "time", "content")
CONTENT = (
    *("id", "model", "version", "caller", "request_id", "latency_ms", "answer", "runtime", "kept", "inputs"),
    *("key_digest", "idempotency_key", "place"),
)

# As it is written, the columns of `audit_decisions`. As it is read, also `wrapped`, the key of its sealed
# inputs, and of their erasure `erased`, the time, and `signature`; None where there is none.
Row = Mapping[str, Any]


class DuplicateError(Exception):
    """A row with this id, or this idempotency key and place in its request, is there already."""


@dataclass(frozen=True)
class Chain:
    """A chain as it is at one moment.

    Attributes:
        checkpoint: of the last row that was pruned, as `checkpoint_of` makes it; None where none was.
        rows: in order, to be read before the next chain is.
    """

    name: str
    checkpoint: Row | None
    rows: Iterator[Row]


@dataclass(frozen=True)
class ChainEnds:
    """Both ends of a chain.

    Attributes:
        checkpoint: as `Chain`'s.
        last: its last row; None where all are pruned.
        erased: numbers of rows whose inputs were erased, in order.
    """

    name: str
    checkpoint: Row | None
    last: Row | None
    erased: tuple[int, ...]


class AuditStore(Protocol):
    """Keeps the rows of a trail. Every method blocks, may be called from any thread, and opens what it needs.

    A store knows no decision: rows come chained and sealed, and are verified by whoever reads them. Each
    method raises StateUnavailableError where the trail cannot be read or written.
    """

    def append(self, rows: Sequence[Row], keys: Mapping[str, str]) -> None:
        """Write rows, and keys of their inputs by id: all of them are on the disk, or none.

        Raises:
            DuplicateError: one of them is there already.
        """

    def read(self, decision: str) -> Row | None:
        """Return the row with this id."""

    def find(self, model: str, caller: str, key: str) -> list[Row]:
        """Return the rows of a request with an idempotency key, in the order of its instances."""

    def in_order(self, since: str | None, until: str | None, model: str | None) -> Iterator[Row]:
        """Yield rows by time, oldest first, then by chain and number.

        Args:
            since, until: RFC 3339 times or their beginnings, compared as texts; `until` is not included.
        """

    def chains(self) -> Iterator[Chain]:
        """Yield every chain by name, as all are at one moment; those of which all rows are pruned too."""

    def ends(self) -> list[ChainEnds]:
        """Return both ends of every chain by name, as all are at one moment."""

    def prune(self, before: str) -> int:
        """Delete older rows of one chain, up to its first that is not older; return how many.

        A checkpoint takes the place of the last one. Keys and erasures of deleted rows go along. A store may
        delete fewer, so that decisions do not wait long: it is called until there are none.
        """

    def erase(self, decision: str, time: str, signature: str) -> bool:
        """Delete the key of a row's inputs; return whether there was one.

        The deletion is recorded, unless it was before. Nothing of the key is left on the disk.
        """

    def probe(self) -> None:
        """Write what leaves no row, so that it is known whether one could be written."""

    def close(self) -> None:
        """Free what is open; the next use opens it again."""


@dataclass(frozen=True)
class Head:
    """The end of a chain: the number and the digest of its last row."""

    chain: str
    sequence: int = 0
    hash: str = GENESIS

    def append(self, row: Row) -> tuple[dict[str, Any], "Head"]:
        """Return the row with its place in the chain, and the chain's new end."""
        linked = {**row, "chain": self.chain, "sequence": self.sequence + 1, "previous": self.hash}
        linked["hash"] = digest(linked)
        return linked, Head(self.chain, self.sequence + 1, linked["hash"])


def new_chain() -> Head:
    return Head(secrets.token_hex(16))


def checkpoint_of(row: Row) -> dict[str, Any]:
    """Return what shows that a row was there, and when it was made."""
    kept = ("chain", "sequence", "hash", "previous", "time")
    return {**{name: row[name] for name in kept}, "content": content_digest(row)}


def digest(row: Row) -> str:
    """Return the digest of all but the row's own `hash`."""
    return placed_digest({**row, "content": content_digest(row)})


def content_digest(row: Row) -> str:
    """Return the digest of what a checkpoint does not keep."""
    return _digest([row[name] for name in CONTENT])


def placed_digest(checkpoint: Row) -> str:
    """Return the digest of a row, from what a checkpoint keeps of it."""
    return _digest([checkpoint[name] for name in PLACED])


def text_digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _digest(columns: Sequence[Any]) -> str:
    return text_digest(json.dumps(columns, ensure_ascii=False, separators=(",", ":")))
