"""The protocol of what keeps the rows of a trail."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rationale_service.decisions.audit.rows import Row


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

    def add_act(self, make: Callable[[Row | None], Row]) -> None:
        """Add to the chain of acts the row that `make` makes of its last one; one process at a time does."""

    def acts(self, since: str | None = None, until: str | None = None) -> Iterator[Row]:
        """Yield acts in the order in which they were added; times as for `in_order`."""

    def probe(self) -> None:
        """Write what leaves no row, so that it is known whether one could be written."""

    def close(self) -> None:
        """Free what is open; the next use opens it again."""
