"""A second audit store, in memory: what a store has to do, without SQL."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rationale_service.decisions.audit.rows import Row, checkpoint_of
from rationale_service.decisions.audit.stores.store import Chain, ChainEnds, DecisionQuery, DuplicateError


class MemoryStore:
    """An `AuditStore` whose rows go with it."""

    def __init__(self) -> None:
        self._acts: list[Row] = []
        self._lock = threading.Lock()
        self._rows: list[Row] = []
        self._keys: dict[str, str] = {}
        self._erasures: dict[str, tuple[str, str]] = {}
        self._checkpoints: dict[str, Row] = {}

    def append(self, rows: Sequence[Row], keys: Mapping[str, str]) -> None:
        with self._lock:
            there = {unique for row in self._rows for unique in _unique(row)}
            for row in rows:
                for unique in _unique(row):
                    if unique in there:
                        raise DuplicateError(str(unique))
                    there.add(unique)
            self._rows += [dict(row) for row in rows]
            self._keys |= keys

    def read(self, decision: str) -> Row | None:
        return next((row for row in self._read() if row["id"] == decision), None)

    def find(self, model: str, caller: str, key: str) -> list[Row]:
        request = (model, caller, key)
        rows = [row for row in self._read() if _request(row) == request]
        return sorted(rows, key=lambda row: row["place"])

    def in_order(
        self, since: str | None, until: str | None, model: str | None, application: str | None = None
    ) -> Iterator[Row]:
        for row in sorted(self._read(), key=lambda row: (row["time"], row["chain"], row["sequence"])):
            is_in_time = row["time"] >= (since or "") and (until is None or row["time"] < until)
            if is_in_time and model in (None, row["model"]) and application in (None, row["application_id"]):
                yield row

    def latest(self, query: DecisionQuery) -> list[Row]:
        rows = [
            row
            for row in self.in_order(query.since, query.until, None, query.application)
            if (query.models is None or row["model"] in query.models)
            and (not query.is_open or self._is_open(row))
        ]
        return rows[: -query.most - 1 : -1]

    def case(self, decision: str) -> list[Row]:
        rows = self.in_order(None, None, None)
        return [row for row in rows if decision in (row["id"], row["reviews"])]

    def waiting(self, now: str) -> dict[str, tuple[int, int]]:
        is_open = [row for row in self._read() if self._is_open(row)]
        return {
            model: (
                len(of_model := [row for row in is_open if row["model"] == model]),
                sum(row["review_by"] < now for row in of_model),
            )
            for model in {row["model"] for row in is_open}
        }

    def _is_open(self, row: Row) -> bool:
        case = self.case(row["reviews"] or row["id"])
        later = [other for other in case if other["time"] > row["time"] and other["reviews"]]
        return row["review_by"] is not None and all(other["kind"] == "contest" for other in later)

    def chains(self) -> Iterator[Chain]:
        rows, pruned = self._read(), dict(self._checkpoints)
        for name in sorted({*(row["chain"] for row in rows), *pruned}):
            of_chain = sorted((r for r in rows if r["chain"] == name), key=lambda row: row["sequence"])
            yield Chain(name, pruned.get(name), iter(of_chain))

    def ends(self) -> list[ChainEnds]:
        collected = []
        for chain in self.chains():
            rows = list(chain.rows)
            erased = tuple(row["sequence"] for row in rows if row["erased"] is not None)
            collected.append(ChainEnds(chain.name, chain.checkpoint, rows[-1] if rows else None, erased))
        return collected

    def prune(self, before: str) -> int:
        for chain in self.chains():
            old = []
            for row in chain.rows:
                if row["time"] >= before:
                    break
                old.append(row)
            if old:
                with self._lock:
                    self._checkpoints[chain.name] = {**checkpoint_of(old[-1]), "pruned": before}
                    self._forget({row["id"] for row in old})
                return len(old)
        return 0

    def erase(self, decision: str, time: str, signature: str) -> bool:
        with self._lock:
            if self._keys.pop(decision, None) is None:
                return False
            self._erasures.setdefault(decision, (time, signature))
            return True

    def add_act(self, make: Callable[[Row | None], Row]) -> None:
        with self._lock:
            self._acts.append(make(self._acts[-1] if self._acts else None))

    def acts(self, since: str | None = None, until: str | None = None) -> Iterator[Row]:
        for row in list(self._acts):
            if (since is None or row["time"] >= since) and (until is None or row["time"] < until):
                yield row

    def probe(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _forget(self, ids: set[Any]) -> None:
        self._rows = [row for row in self._rows if row["id"] not in ids]
        for decision in ids:
            self._keys.pop(decision, None)
            self._erasures.pop(decision, None)

    def _read(self) -> list[Row]:
        with self._lock:
            return [self._with_key(row) for row in self._rows]

    def _with_key(self, row: Row) -> Row:
        erased, signature = self._erasures.get(row["id"], (None, None))
        return {**row, "wrapped": self._keys.get(row["id"]), "erased": erased, "signature": signature}


def _request(row: Row) -> tuple[Any, ...]:
    return row["model"], row["caller"], row["idempotency_key"]


def _unique(row: Row) -> list[tuple[Any, ...]]:
    """What may be there once."""
    keys = [("place", row["chain"], row["sequence"]), ("id", row["id"])]
    return [*keys, ("key", *_request(row), row["place"])] if row["idempotency_key"] is not None else keys
