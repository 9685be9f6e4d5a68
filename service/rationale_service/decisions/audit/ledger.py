"""Decisions in a store: recorded with their inputs kept as the settings say, found again by key, and read."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from rationale.errors import InvalidOptionError
from rationale_service.decisions.audit.rows import (
    ErasedError,
    Inputs,
    Instance,
    Row,
    WrongInstanceError,
    canonical,
    new_chain,
    text_digest,
    unreadable,
    with_values,
    without_values,
)
from rationale_service.decisions.audit.sql import SqlStore
from rationale_service.decisions.audit.store import AuditStore, DuplicateError
from rationale_service.decisions.trail import RecordedDecision
from rationale_service.errors import (
    ConflictError,
    ErasedInputsError,
    StateUnavailableError,
    UnknownResourceError,
)
from rationale_service.settings import OFF, Settings

FILE = "audit.sqlite3"
Request = Sequence[RecordedDecision]
_ATTEMPTS = 20
_TIME = re.compile(r"\d{4}(-\d\d(-\d\d(T\d\d(:\d\d(:\d\d(\.\d+)?(\+00:00)?)?)?)?)?)?")
_Key = tuple[str, str, str]


def place_of(settings: Settings) -> str | Path | None:
    """Return where the trail is: a URL or a file; None where there is none."""
    if settings.audit is None:
        return settings.state_url or settings.state_folder / FILE
    given = settings.audit.get_secret_value()
    return None if given == OFF else given


def open_ledger(settings: Settings, *, is_made: bool = False) -> "Ledger":
    """Return the trail of these settings, which its first use opens.

    Args:
        is_made: whether a trail that is missing is made; else StateUnavailableError reports it.

    Raises:
        UnknownResourceError: the trail is switched off.
        InvalidOptionError: its URL or key file makes no sense, or a library for them is missing.
    """
    place = place_of(settings)
    if place is None:
        raise UnknownResourceError("there is no audit trail: RATIONALE_AUDIT is off")
    inputs = Inputs(settings.audit_inputs, settings.audit_key_file)
    return Ledger(SqlStore(place, is_made=is_made), inputs)


class Ledger:
    """Decisions of a store, which it adds as one chain. `append` is for one thread, all else for any."""

    def __init__(self, store: AuditStore, inputs: Inputs) -> None:
        self.store = store
        self.inputs = inputs
        self._head = new_chain()

    def append(self, requests: Sequence[Request]) -> list[Request | ConflictError]:
        """Write what was decided, each request's decisions or none of them.

        Returns:
            For each request what to answer. Under an idempotency key that was there before: the decisions of
            then, or the error where they were on other instances.

        Raises:
            StateUnavailableError: nothing was written.
        """
        earlier: dict[_Key, list[Row]] = {}
        for _ in range(_ATTEMPTS):
            try:
                return self._append(requests, earlier)
            except DuplicateError:  # another process was the first with one of the keys
                earlier = {key: self.store.find(*key) for key in map(_key, requests) if key is not None}
            except BaseException:
                self._head = new_chain()  # what the store has of the last transaction is not known
                raise
        raise StateUnavailableError("the audit trail refuses decisions: their ids or keys are there already")

    def find(self, model: str, caller: str, key: str, instances: Sequence[Instance]) -> Request:
        """Return what was decided under an idempotency key. Raise ConflictError, StateUnavailableError."""
        return self._repeated(key, self.store.find(model, caller, key), instances)

    def read(self, decision: str, instance: Instance | None = None) -> RecordedDecision:
        """Return one decision by its id.

        Args:
            instance: what it was on, where only its digest was kept.

        Raises:
            UnknownResourceError: there is no such decision.
            WrongInstanceError: it was on another instance than that.
            InvalidOptionError: its inputs need another key file.
            StateUnavailableError: the trail is missing, or cannot be read.
        """
        return self._shown(row_of(self.store, decision), instance)

    def in_order(
        self,
        since: str | None = None,
        until: str | None = None,
        model: str | None = None,
        *,
        with_inputs: bool = True,
    ) -> Iterator[RecordedDecision]:
        """Yield decisions by time, oldest first.

        Args:
            since, until: RFC 3339 times or their beginnings, such as 2026-11; `until` is not included.
            with_inputs: else instances are None, and no key is needed.

        Raises:
            StateUnavailableError, InvalidOptionError: as `read`, also in between.
        """
        for given in (since, until):
            if given is not None and not _TIME.fullmatch(given):
                raise InvalidOptionError(
                    f"'{given[:80]}' is no time: give one in UTC or its beginning, such as 2026-11 or "
                    "2026-11-23T12:00"
                )
        for row in self.store.in_order(since, until, model):
            yield self._shown(row, with_inputs=with_inputs)

    def close(self) -> None:
        """Free what is open; the next use opens it again."""
        self.store.close()

    def _append(
        self, requests: Sequence[Request], earlier: Mapping[_Key, list[Row]]
    ) -> list[Request | ConflictError]:
        head, rows, keys = self._head, list[Row](), dict[str, str]()
        first: dict[_Key, Request] = {}
        answers: dict[int, Request | ConflictError] = {}
        # In one order in every process: else two could each wait for a row of the other.
        for i in sorted(range(len(requests)), key=lambda i: _key(requests[i]) or ("", "", "")):
            request, key = requests[i], _key(requests[i])
            if key is not None and (key in first or earlier.get(key)):
                answers[i] = self._again(request, first.get(key), earlier.get(key, []))
                continue
            if key is not None:
                first[key] = request
            for decision in request:
                row, wrapped = self._hidden(decision)
                linked, head = head.append(row)
                rows.append(linked)
                if wrapped is not None:
                    keys[decision.id] = wrapped
            answers[i] = request
        if rows:
            self.store.append(rows, keys)
        self._head = head
        return [answers[i] for i in range(len(requests))]

    def _again(self, request: Request, first: Request | None, earlier: list[Row]) -> Request | ConflictError:
        instances = [decision.instance or {} for decision in request]
        try:
            if first is not None:
                return _same(request[0].idempotency_key or "", first, instances)
            return self._repeated(request[0].idempotency_key or "", earlier, instances)
        except ConflictError as error:
            return error

    def _repeated(self, key: str, rows: Sequence[Row], instances: Sequence[Instance]) -> Request:
        """Return the decisions of rows that are on these instances. Raise ConflictError."""
        if not rows:
            return []
        if len(rows) != len(instances):
            raise _conflict(key)
        try:
            repeated = [self._shown(row, instance) for row, instance in zip(rows, instances, strict=True)]
        except WrongInstanceError as error:
            raise _conflict(key) from error
        if any(decision.kept == "erased" for decision in repeated):
            raise ErasedInputsError(
                f"what was decided under the idempotency key '{key}' cannot be shown: its inputs were "
                "erased. Take another key",
                repeated,
            )
        return repeated

    def _shown(
        self, row: Row, instance: Instance | None = None, *, with_inputs: bool = True
    ) -> RecordedDecision:
        """Return a decision as it was answered, as far as its inputs can be shown. Raise as `read`."""
        try:
            return self._decision(row, instance, with_inputs=with_inputs)
        except (ValueError, TypeError, KeyError, AttributeError, StopIteration) as error:
            raise StateUnavailableError(
                f"decision '{str(row['id'])[:80]}' cannot be read: its row was altered, as `rationale audit "
                "verify` shows"
            ) from error

    def _decision(self, row: Row, instance: Instance | None, *, with_inputs: bool) -> RecordedDecision:
        if columns := unreadable(row):
            raise ValueError(columns)
        kept, values = row["kept"], None
        try:
            if with_inputs:
                instance, values = self.inputs.show(row["id"], kept, row["inputs"], row["wrapped"], instance)
        except ErasedError:
            instance, kept = None, "erased"
        answer = dict(orjson.loads(row["answer"]))
        return RecordedDecision(
            row["id"],
            row["time"],
            row["model"],
            row["version"],
            row["caller"],
            row["request_id"],
            row["latency_ms"],
            instance,
            answer if values is None else with_values(answer, iter(values)),
            row["idempotency_key"],
            row["place"],
            kept,
            orjson.loads(row["runtime"]),
        )

    def _hidden(self, decision: RecordedDecision) -> tuple[dict[str, Any], str | None]:
        """Return a decision's row, but for its place in the chain, and the key of its inputs."""
        values: list[Any] = []
        answer = orjson.dumps(without_values(decision.answer, values), option=orjson.OPT_SERIALIZE_NUMPY)
        inputs, wrapped = self.inputs.keep(decision.id, decision.instance or {}, values)
        row = {
            "id": decision.id,
            "time": decision.time,
            "model": decision.model,
            "version": decision.version,
            "caller": decision.caller,
            "request_id": decision.request_id,
            "latency_ms": decision.latency_ms,
            "answer": answer.decode(),
            "runtime": orjson.dumps(decision.runtime).decode(),
            "kept": self.inputs.kept,
            "inputs": inputs,
            "key_digest": None if wrapped is None else text_digest(wrapped),
            "idempotency_key": decision.idempotency_key,
            "place": decision.place,
        }
        return row, wrapped


def row_of(store: AuditStore, decision: str) -> Row:
    """Return the row with this id. Raise UnknownResourceError, StateUnavailableError."""
    row = store.read(decision)
    if row is None:
        raise UnknownResourceError(f"there is no decision '{decision[:80]}' in the audit trail")
    return row


def _same(key: str, first: Request, instances: Sequence[Instance]) -> Request:
    """Return the first of two requests that came together. Raise ConflictError."""
    decided = [canonical(decision.instance or {}) for decision in first]
    if decided != [canonical(instance) for instance in instances]:
        raise _conflict(key)
    return first


def _conflict(key: str) -> ConflictError:
    return ConflictError(
        f"the idempotency key '{key}' was used for other instances: take a new key for a new request"
    )


def _key(request: Request) -> _Key | None:
    """Return what may be there once."""
    one = request[0]
    return None if one.idempotency_key is None else (one.model, one.caller, one.idempotency_key)
