"""The trail for whoever reads it: commands, replays, receipts."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import Connection, RowMapping, Select, select

from compiler.errors import InvalidOptionError
from service.decisions.audit.chain import text_digest
from service.decisions.audit.database import Database
from service.decisions.audit.inputs import ErasedError, Inputs, Instance, with_values, without_values
from service.decisions.audit.tables import decisions, input_keys
from service.decisions.trail import RecordedDecision
from service.errors import StateUnavailableError, UnknownResourceError
from service.settings import OFF, Settings

FILE = "audit.sqlite3"
_AT_ONCE = 500  # rows that are fetched together
_TIME = re.compile(r"\d{4}(-\d\d(-\d\d(T\d\d(:\d\d(:\d\d(\.\d+)?(\+00:00)?)?)?)?)?)?")


def place_of(settings: Settings) -> str | Path | None:
    """Where the trail is: a URL or a file; None where there is none."""
    if settings.audit is None:
        return settings.state_folder / FILE
    given = settings.audit.get_secret_value()
    return None if given == OFF else given


class AuditStore:
    """Reads decisions. All methods block."""

    def __init__(self, database: Database, inputs: Inputs) -> None:
        self.database = database
        self.inputs = inputs

    @staticmethod
    def open(settings: Settings, *, is_made: bool = False) -> "AuditStore":
        """The trail of these settings. It is looked for by its first use.

        Args:
            is_made: whether a file that is missing is made; else StateUnavailableError tells of it.

        Raises:
            UnknownResourceError: the trail is switched off.
            InvalidOptionError: its URL or key file makes no sense, or a library for them is missing.
        """
        place = place_of(settings)
        if place is None:
            raise UnknownResourceError("there is no audit trail: RATIONALE_AUDIT is off")
        inputs = Inputs(settings.audit_inputs, settings.audit_key_file)
        return AuditStore(Database(place, is_made=is_made), inputs)

    def read(self, decision: str, instance: Instance | None = None) -> RecordedDecision:
        """One decision by its id.

        Args:
            instance: what it was on, where only its digest was kept.

        Raises:
            UnknownResourceError: there is no such decision.
            WrongInstanceError: it was on another instance than that.
            InvalidOptionError: its inputs need another key file.
            StateUnavailableError: the trail is missing, or cannot be read.
        """
        with self.database.reading() as connection:
            row = connection.execute(_rows().where(decisions.c.id == decision)).mappings().first()
        if row is None:
            raise UnknownResourceError(f"there is no decision '{decision[:80]}' in the audit trail")
        return self.shown(row, instance)

    def in_order(
        self,
        since: str | None = None,
        until: str | None = None,
        model: str | None = None,
        *,
        with_inputs: bool = True,
    ) -> Iterator[RecordedDecision]:
        """Decisions by time, oldest first.

        Args:
            since, until: RFC 3339 times or their beginnings, such as 2026-11; `until` is not included.
            with_inputs: else instances are None, and no key is needed.

        Raises:
            StateUnavailableError, InvalidOptionError: as `read`, also in between.
        """
        for row in self.rows(since, until, model):
            yield self.shown(row, with_inputs=with_inputs)

    def rows(
        self, since: str | None = None, until: str | None = None, model: str | None = None
    ) -> Iterator[RowMapping]:
        """As `in_order`, as they are stored."""
        for given in (since, until):
            if given is not None and not _TIME.fullmatch(given):
                raise InvalidOptionError(
                    f"'{given[:80]}' is no time: give one in UTC or its beginning, such as 2026-11 or "
                    "2026-11-23T12:00"
                )
        query = _rows().order_by(decisions.c.time, decisions.c.chain, decisions.c.sequence)
        if since is not None:
            query = query.where(decisions.c.time >= since)
        if until is not None:
            query = query.where(decisions.c.time < until)
        if model is not None:
            query = query.where(decisions.c.model == model)
        with self.database.reading() as connection:
            yield from connection.execution_options(yield_per=_AT_ONCE).execute(query).mappings()

    def found(self, model: str, caller: str, key: str) -> list[RowMapping]:
        """The rows of a request with an idempotency key, in the order of its instances."""
        with self.database.reading() as connection:
            return found(connection, model, caller, key)

    def shown(
        self, row: RowMapping, instance: Instance | None = None, *, with_inputs: bool = True
    ) -> RecordedDecision:
        """A decision as it was answered, as far as its inputs can be shown. Raises as `read`."""
        try:
            return self._shown(row, instance, with_inputs=with_inputs)
        except (ValueError, TypeError, KeyError, AttributeError, StopIteration) as error:
            raise StateUnavailableError(
                f"decision '{row['id'][:80]}' cannot be read: its row was altered, as `rationale audit "
                "verify` shows"
            ) from error

    def _shown(self, row: RowMapping, instance: Instance | None, *, with_inputs: bool) -> RecordedDecision:
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

    def hidden(self, decision: RecordedDecision) -> tuple[dict[str, Any], str | None]:
        """A decision's row, but for its place in the chain, and the key of its inputs."""
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


def found(connection: Connection, model: str, caller: str, key: str) -> list[RowMapping]:
    """As `AuditStore.found`."""
    table = decisions.c
    query = _rows().where(table.model == model, table.caller == caller, table.idempotency_key == key)
    return list(connection.execute(query.order_by(table.place)).mappings())


def _rows() -> Select[Any]:
    beside = decisions.outerjoin(input_keys, decisions.c.id == input_keys.c.id)
    return select(decisions, input_keys.c.wrapped).select_from(beside)
