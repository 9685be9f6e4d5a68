"""Decisions in a store: record them with inputs in the configured form, find them by key, and read them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from rationale_service.decisions.audit.rows import (
    ErasedError,
    InputCodec,
    Instance,
    Row,
    WrongInstanceError,
    canonical,
    check_times,
    new_chain,
    text_digest,
    unreadable,
    with_values,
    without_values,
)
from rationale_service.decisions.audit.stores.sql import SqlStore
from rationale_service.decisions.audit.stores.store import AuditStore, DecisionQuery, DuplicateError
from rationale_service.decisions.audit.trail import Case, RecordedDecision
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
_Key = tuple[str, str, str]


def place_of(settings: Settings) -> str | Path | None:
    """Return the place of the trail, a URL or a file; None without a trail."""
    if settings.audit is None:
        return settings.state_url or settings.state_folder / FILE
    place = settings.audit.get_secret_value()
    return None if place == OFF else place


def open_ledger(settings: Settings, *, is_made: bool = False) -> "Ledger":
    """Return the trail of these settings; its first use opens it.

    Args:
        is_made: True to create a missing trail; else StateUnavailableError reports it.

    Raises:
        UnknownResourceError: if the trail is off.
        InvalidOptionError: if its URL or key file is invalid, or a library for them is missing.
    """
    store = open_store(settings, is_made=is_made)
    if store is None:
        raise UnknownResourceError("there is no audit trail: RATIONALE_AUDIT is off")
    return Ledger(store, InputCodec(settings.audit_inputs, settings.audit_key_file))


def open_store(settings: Settings, *, is_made: bool = False) -> AuditStore | None:
    """Return the store of the trail of these settings; None without a trail. Arguments as `open_ledger`."""
    place = place_of(settings)
    return None if place is None else SqlStore(place, is_made=is_made)


class Ledger:
    """Decisions of a store; new ones form one chain. One thread may call `append`, any thread the rest."""

    def __init__(self, store: AuditStore, inputs: InputCodec) -> None:
        self.store = store
        self.inputs = inputs
        self._head = new_chain()

    def append(self, requests: Sequence[Request]) -> list[Request | ConflictError]:
        """Write decisions, all of a request or none.

        Returns:
            The answer to each request. If its idempotency key exists already: the earlier decisions, or an
                error
            if they were on other instances.

        Raises:
            StateUnavailableError: if nothing could be written.
        """
        earlier: dict[_Key, list[Row]] = {}
        for _ in range(_ATTEMPTS):
            try:
                return self._append(requests, earlier)
            except DuplicateError:  # another process was first with one of the keys
                earlier = {key: self.store.find(*key) for key in map(_key, requests) if key is not None}
            except BaseException:
                self._head = new_chain()  # the result of the last transaction is unknown
                raise
        raise StateUnavailableError(
            "the audit trail refuses these decisions: their ids or keys exist already"
        )

    def find(self, model: str, caller: str, key: str, instances: Sequence[Instance]) -> Request:
        """Return earlier decisions under an idempotency key. Raises ConflictError, StateUnavailableError."""
        return self._find_repeated(key, self.store.find(model, caller, key), instances)

    def read(self, decision: str, instance: Instance | None = None) -> RecordedDecision:
        """Return one decision by its id.

        Args:
            instance: instance of the decision, if only its digest was kept.

        Raises:
            UnknownResourceError: if there is no such decision.
            WrongInstanceError: if it was on another instance.
            InvalidOptionError: if its inputs need another key file.
            StateUnavailableError: if the trail is missing or cannot be read.
        """
        return self._as_answered(row_of(self.store, decision), instance)

    def in_order(
        self,
        since: str | None = None,
        until: str | None = None,
        model: str | None = None,
        application: str | None = None,
        *,
        with_inputs: bool = True,
    ) -> Iterator[RecordedDecision]:
        """Yield decisions by time, oldest first.

        Args:
            since, until: RFC 3339 times or their beginnings, such as 2026-11; `until` is not included.
            application: lender's own id of the decisions' application; None for all.
            with_inputs: False to leave instances None, which needs no key.

        Raises:
            StateUnavailableError, InvalidOptionError: if `read` would raise them, also during the iteration.
        """
        check_times(since, until)
        for row in self.store.in_order(since, until, model, application):
            yield self._as_answered(row, with_inputs=with_inputs)

    def latest(self, query: DecisionQuery) -> list[RecordedDecision]:
        """Return the latest decisions of a query, newest first, without inputs. Raises as `in_order`."""
        check_times(query.since, query.until)
        return [self._as_answered(row, with_inputs=False) for row in self.store.latest(query)]

    def case(self, decision: str) -> list[RecordedDecision]:
        """Return a first decision and all that contests or reviews it, by time. Raises as `read`.

        Contests have the applicant's words, as far as they can be shown.
        """
        return [self._as_answered(row) for row in self.store.case(decision)]

    def case_of(self, decision: RecordedDecision) -> Case:
        """Return the case of a decision; without its first decision if that was pruned. Raises as `read`."""
        return Case(self.case(decision.reviews or decision.id))

    def first_of(self, decision: RecordedDecision) -> RecordedDecision | None:
        """Return the decision that this one reviews; None if it reviews none, or that was pruned."""
        first = None if decision.reviews is None else self.case_of(decision).first
        return None if first is None or first.id != decision.reviews else first

    def close(self) -> None:
        """Close the store; the next use opens it again."""
        self.store.close()

    def _append(
        self, requests: Sequence[Request], earlier: Mapping[_Key, list[Row]]
    ) -> list[Request | ConflictError]:
        head, rows, keys = self._head, list[Row](), dict[str, str]()
        first: dict[_Key, Request] = {}
        answers: dict[int, Request | ConflictError] = {}
        # All processes use one order: otherwise two could each wait for a row of the other.
        for i in sorted(range(len(requests)), key=lambda i: _key(requests[i]) or ("", "", "")):
            request, key = requests[i], _key(requests[i])
            if key is not None and (key in first or earlier.get(key)):
                answers[i] = self._answer_repeat(request, first.get(key), earlier.get(key, []))
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

    def _answer_repeat(
        self, request: Request, first: Request | None, earlier: list[Row]
    ) -> Request | ConflictError:
        instances = [decision.instance or {} for decision in request]
        try:
            if first is not None:
                return _same(request[0].idempotency_key or "", first, instances)
            return self._find_repeated(request[0].idempotency_key or "", earlier, instances)
        except ConflictError as error:
            return error

    def _find_repeated(self, key: str, rows: Sequence[Row], instances: Sequence[Instance]) -> Request:
        """Return the decisions of rows if they are on these instances; raise ConflictError if not."""
        if not rows:
            return []
        if len(rows) != len(instances):
            raise _conflict(key)
        try:
            repeated = [
                self._as_answered(row, instance) for row, instance in zip(rows, instances, strict=True)
            ]
        except WrongInstanceError as error:
            raise _conflict(key) from error
        if any(decision.kept == "erased" for decision in repeated):
            raise ErasedInputsError(
                f"the decision with the idempotency key '{key}' cannot be shown, because its inputs were "
                "erased. Use another key",
                repeated,
            )
        return repeated

    def _as_answered(
        self, row: Row, instance: Instance | None = None, *, with_inputs: bool = True
    ) -> RecordedDecision:
        """Return a decision as answered, with the inputs that can be shown. Raises as `read`."""
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
        form, values = row["kept"], None
        try:
            if with_inputs:
                instance, values = self.inputs.show(row["id"], form, row["inputs"], row["wrapped"], instance)
        except ErasedError:
            instance, form = None, "erased"
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
            form,
            orjson.loads(row["runtime"]),
            row["kind"],
            row["review_by"],
        )

    def _hidden(self, decision: RecordedDecision) -> tuple[dict[str, Any], str | None]:
        """Return a decision's row without its place in the chain, and the key of its inputs."""
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
            "kept": self.inputs.form,
            "inputs": inputs,
            "key_digest": None if wrapped is None else text_digest(wrapped),
            "idempotency_key": decision.idempotency_key,
            "place": decision.place,
            "kind": decision.kind,
            "application_id": decision.answer.get("application_id"),
            "reviews": decision.answer.get("reviews"),
            "review_by": decision.review_by,
        }
        return row, wrapped


def row_of(store: AuditStore, decision: str) -> Row:
    """Return the row with this id. Raises UnknownResourceError, StateUnavailableError."""
    row = store.read(decision)
    if row is None:
        raise UnknownResourceError(f"there is no decision '{decision[:80]}' in the audit trail")
    return row


def _same(key: str, first: Request, instances: Sequence[Instance]) -> Request:
    """Return the first of two simultaneous requests if their instances agree; else raise ConflictError."""
    decided = [canonical(decision.instance or {}) for decision in first]
    if decided != [canonical(instance) for instance in instances]:
        raise _conflict(key)
    return first


def _conflict(key: str) -> ConflictError:
    return ConflictError(
        f"the idempotency key '{key}' was used for other instances: take a new key for a new request"
    )


def _key(request: Request) -> _Key | None:
    """Return the unique key of a request; None without an idempotency key."""
    first = request[0]
    return None if first.idempotency_key is None else (first.model, first.caller, first.idempotency_key)
