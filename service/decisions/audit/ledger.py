"""The trail for whoever writes it: appends what several requests decided, in one transaction."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import RowMapping, insert
from sqlalchemy.exc import IntegrityError

from service.decisions.audit.chain import new_chain
from service.decisions.audit.inputs import WrongInstanceError, canonical
from service.decisions.audit.store import AuditStore, found
from service.decisions.audit.tables import decisions, input_keys
from service.decisions.trail import RecordedDecision
from service.errors import ConflictError, StateUnavailableError

Request = Sequence[RecordedDecision]
_ATTEMPTS = 20
_Key = tuple[str, str, str]


class Ledger:
    """One chain of the trail. Used by one thread; `find` by any."""

    def __init__(self, store: AuditStore) -> None:
        self.store = store
        self._head = new_chain()

    def append(self, requests: Sequence[Request]) -> list[Request | ConflictError]:
        """Writes what was decided, each request's decisions or none of them.

        Returns:
            For each request what to answer. Under an idempotency key that was there before: the decisions of
            then, or the error where they were on other instances.

        Raises:
            StateUnavailableError: nothing was written.
        """
        earlier: dict[_Key, list[RowMapping]] = {}
        for _ in range(_ATTEMPTS):
            try:
                return self._append(requests, earlier)
            except IntegrityError:  # another process was the first with one of the keys
                earlier = self._earlier(requests)
            except BaseException:
                self._head = new_chain()  # what the database has of the last transaction is not known
                raise
        raise StateUnavailableError("the audit trail refuses decisions: their ids or keys are there already")

    def find(
        self, model: str, caller: str, key: str, instances: Sequence[Mapping[str, Any]]
    ) -> list[RecordedDecision]:
        """What was decided under an idempotency key. Raises ConflictError, StateUnavailableError."""
        return self._repeated(key, self.store.found(model, caller, key), instances)

    def _append(
        self, requests: Sequence[Request], earlier: Mapping[_Key, list[RowMapping]]
    ) -> list[Request | ConflictError]:
        head, rows, keys = self._head, list[dict[str, Any]](), list[dict[str, Any]]()
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
                row, wrapped = self.store.hidden(decision)
                linked, head = head.append(row)
                rows.append(linked)
                if wrapped is not None:
                    keys.append({"id": decision.id, "wrapped": wrapped})
            answers[i] = request
        if rows:
            with self.store.database.writing() as connection:
                connection.execute(insert(decisions), rows)
                if keys:
                    connection.execute(insert(input_keys), keys)
        self._head = head
        return [answers[i] for i in range(len(requests))]

    def _again(
        self, request: Request, first: Request | None, earlier: list[RowMapping]
    ) -> Request | ConflictError:
        instances = [decision.instance or {} for decision in request]
        try:
            if first is not None:
                return _same(request[0].idempotency_key or "", first, instances)
            return self._repeated(request[0].idempotency_key or "", earlier, instances)
        except ConflictError as error:
            return error

    def _repeated(
        self, key: str, rows: Sequence[RowMapping], instances: Sequence[Mapping[str, Any]]
    ) -> list[RecordedDecision]:
        """Raises ConflictError."""
        if not rows:
            return []
        if len(rows) != len(instances):
            raise _conflict(key)
        try:
            repeated = [
                self.store.shown(row, instance) for row, instance in zip(rows, instances, strict=True)
            ]
        except WrongInstanceError as error:
            raise _conflict(key) from error
        if any(decision.kept == "erased" for decision in repeated):
            raise ConflictError(
                f"what was decided under the idempotency key '{key}' cannot be shown: its inputs were "
                "erased. Take another key"
            )
        return repeated

    def _earlier(self, requests: Sequence[Request]) -> dict[_Key, list[RowMapping]]:
        keys = [key for key in map(_key, requests) if key is not None]
        with self.store.database.reading() as connection:
            return {key: found(connection, *key) for key in keys}


def _same(key: str, first: Request, instances: Sequence[Mapping[str, Any]]) -> Request:
    """Of two requests that came together. Raises ConflictError."""
    decided = [canonical(decision.instance or {}) for decision in first]
    if decided != [canonical(instance) for instance in instances]:
        raise _conflict(key)
    return first


def _conflict(key: str) -> ConflictError:
    return ConflictError(
        f"the idempotency key '{key}' was used for other instances: take a new key for a new request"
    )


def _key(request: Request) -> _Key | None:
    """What may be there once."""
    one = request[0]
    return None if one.idempotency_key is None else (one.model, one.caller, one.idempotency_key)
