"""The protocol of a store for the rows of a trail."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rationale_service.decisions.audit.rows import Row


class DuplicateError(Exception):
    """A row whose id, or idempotency key and place in its request, exists already."""


@dataclass(frozen=True)
class Chain:
    """A chain in one snapshot.

    Attributes:
        checkpoint: checkpoint of the last pruned row (`checkpoint_of`); None if no row was pruned.
        rows: rows in order; read them before the next chain.
    """

    name: str
    checkpoint: Row | None
    rows: Iterator[Row]


@dataclass(frozen=True)
class ChainEnds:
    """Both ends of a chain.

    Attributes:
        checkpoint: checkpoint as in `Chain`.
        last: last row; None if all are pruned.
        erased: numbers of rows whose inputs were erased, in order.
    """

    name: str
    checkpoint: Row | None
    last: Row | None
    erased: tuple[int, ...]


@dataclass(frozen=True)
class DecisionQuery:
    """A query for the latest decisions; None asks for all.

    Attributes:
        application: lender's own id of the application.
        since, until: the same limits as in `AuditStore.in_order`.
        is_open: True for decisions and contests that wait for a review.
        most: most decisions to return.
    """

    application: str | None = None
    models: Collection[str] | None = None
    since: str | None = None
    until: str | None = None
    is_open: bool = False
    most: int = 100


class AuditStore(Protocol):
    """A store of a trail's rows. Every method blocks, may run in any thread, and opens the store if needed.

    A store does not interpret rows: they come chained and sealed, and their readers verify them. Each method
    raises StateUnavailableError if the trail cannot be read or written.
    """

    def append(self, rows: Sequence[Row], keys: Mapping[str, str]) -> None:
        """Write rows, and keys of their inputs by id: all of them or none.

        Raises:
            DuplicateError: if one of the rows exists already.
        """

    def read(self, decision: str) -> Row | None:
        """Return the row with this id."""

    def find(self, model: str, caller: str, key: str) -> list[Row]:
        """Return the rows of a request with an idempotency key, in the order of its instances."""

    def in_order(
        self, since: str | None, until: str | None, model: str | None, application: str | None = None
    ) -> Iterator[Row]:
        """Yield rows by time, oldest first, then by chain and number.

        Args:
            since, until: RFC 3339 times or their beginnings, compared as texts; `until` is not included.
        """

    def latest(self, query: DecisionQuery) -> list[Row]:
        """Return the latest rows of a query, newest first."""

    def case(self, decision: str) -> list[Row]:
        """Return the row with this id and those that review it, in the order of `in_order`."""

    def waiting(self, now: str) -> dict[str, tuple[int, int]]:
        """Return the numbers of rows that wait for a review, and of those past `review_by`, by model.

        A row with `review_by` waits until a later row of its case decides: any but a contest.
        """

    def chains(self) -> Iterator[Chain]:
        """Yield every chain by name in one snapshot, including those whose rows are all pruned."""

    def ends(self) -> list[ChainEnds]:
        """Return both ends of every chain by name in one snapshot."""

    def prune(self, before: str) -> int:
        """Delete rows of one chain older than `before`, up to its first newer one; return their number.

        A checkpoint replaces the last one. Keys and erasures of the rows are deleted too. A store may delete
        fewer, so that decisions do not wait long: callers repeat the call until it returns 0.
        """

    def erase(self, decision: str, time: str, signature: str) -> bool:
        """Delete the key of a row's inputs; return False if there was none.

        It records the deletion, unless it is recorded already. Nothing of the key is left on the disk.
        """

    def add_act(self, make: Callable[[Row | None], Row]) -> None:
        """Append the row that `make` makes from the last act; only one process at a time does so."""

    def acts(self, since: str | None = None, until: str | None = None) -> Iterator[Row]:
        """Yield acts in the order of their addition; times as for `in_order`."""

    def probe(self) -> None:
        """Write without leaving a row, to find out if a row could be written."""

    def close(self) -> None:
        """Close the store; the next use opens it again."""
