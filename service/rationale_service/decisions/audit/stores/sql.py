"""A trail in SQLite or PostgreSQL."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    LargeBinary,
    Select,
    case,
    cast,
    delete,
    event,
    exists,
    func,
    insert,
    select,
)
from sqlalchemy.exc import IntegrityError

from rationale_service.decisions.audit.rows import Row, checkpoint_of, time_text
from rationale_service.decisions.audit.stores.store import Chain, ChainEnds, DecisionQuery, DuplicateError
from rationale_service.decisions.audit.stores.tables import acts, checkpoints, decisions, erasures, input_keys
from rationale_service.errors import StateUnavailableError
from rationale_service.state.database import SCAN_S, Database, Schema

_READ_AT_ONCE = 500  # rows
_PRUNED_AT_ONCE = 2000  # rows per transaction, for which decisions wait
_SCHEMA = Schema(
    name="audit trail",
    setting="setting audit (RATIONALE_AUDIT) must be off, or",
)


class SqlStore(Database):
    """An `AuditStore` in SQLite or PostgreSQL, which connects on first use."""

    def __init__(self, where: str | Path, *, is_made: bool = True) -> None:
        """Name the database without connecting. Arguments and errors are those of `Database`."""
        super().__init__(where, _SCHEMA, is_made=is_made)

    def _create(self) -> Engine:
        engine = super()._create()
        if self.is_sqlite:
            event.listen(engine, "connect", _keep_bytes)
        return engine

    def append(self, rows: Sequence[Row], keys: Mapping[str, str]) -> None:
        try:
            with self.writing() as connection:
                connection.execute(insert(decisions), [dict(row) for row in rows])
                if keys:
                    wrapped = [{"id": decision, "wrapped": key} for decision, key in keys.items()]
                    connection.execute(insert(input_keys), wrapped)
        except IntegrityError as error:
            raise DuplicateError(str(error.orig)) from error

    def read(self, decision: str) -> Row | None:
        with self.reading() as connection:
            return next(_read(connection, _rows().where(decisions.c.id == decision)), None)

    def find(self, model: str, caller: str, key: str) -> list[Row]:
        table = decisions.c
        query = _rows().where(table.model == model, table.caller == caller, table.idempotency_key == key)
        with self.reading() as connection:
            return list(_read(connection, query.order_by(table.place)))

    def in_order(
        self, since: str | None, until: str | None, model: str | None, application: str | None = None
    ) -> Iterator[Row]:
        chosen = _conditions(DecisionQuery(application, None if model is None else [model], since, until))
        query = _rows().where(*chosen).order_by(*_PLACE)
        with self.reading(SCAN_S) as connection:
            yield from _read(connection.execution_options(yield_per=_READ_AT_ONCE), query)

    def latest(self, query: DecisionQuery) -> list[Row]:
        newest = _rows().where(*_conditions(query)).order_by(*(column.desc() for column in _PLACE))
        with self.reading() as connection:
            return list(_read(connection, newest.limit(query.most)))

    def case(self, decision: str) -> list[Row]:
        query = _rows().where((decisions.c.id == decision) | (decisions.c.reviews == decision))
        with self.reading() as connection:
            return list(_read(connection, query.order_by(*_PLACE)))

    def waiting(self, now: str) -> dict[str, tuple[int, int]]:
        is_late = case((decisions.c.review_by < now, 1), else_=0)
        query = select(decisions.c.model, func.count(), func.sum(is_late)).where(_IS_OPEN)
        with self.reading(SCAN_S) as connection:
            counts = connection.execute(query.group_by(decisions.c.model)).all()
        return {model: (count, late) for model, count, late in counts}

    def chains(self) -> Iterator[Chain]:
        with self.reading(SCAN_S) as connection:
            pruned = _checkpoints(connection)
            names = {*connection.execute(select(decisions.c.chain).distinct()).scalars(), *pruned}
            connection = connection.execution_options(yield_per=_READ_AT_ONCE)
            for name in sorted(names, key=str):
                chain = decisions.c.chain if isinstance(name, str) else cast(decisions.c.chain, LargeBinary)
                query = _rows().where(chain == name).order_by(decisions.c.sequence)
                yield Chain(name, pruned.get(name), _read(connection, query))

    def ends(self) -> list[ChainEnds]:
        table = decisions.c
        ends = select(table.chain, func.max(table.sequence).label("last")).group_by(table.chain).subquery()
        is_end = (table.chain == ends.c.chain) & (table.sequence == ends.c.last)
        erased: dict[str, list[int]] = {}
        with self.reading(SCAN_S) as connection:
            pruned = _checkpoints(connection)
            last = {row["chain"]: row for row in _read(connection, select(decisions).join(ends, is_end))}
            query = select(table.chain, table.sequence).join(erasures, table.id == erasures.c.id)
            for chain, sequence in connection.execute(query.order_by(table.sequence)):
                erased.setdefault(chain, []).append(sequence)
        return [
            ChainEnds(name, pruned.get(name), last.get(name), tuple(erased.get(name, ())))
            for name in sorted({*pruned, *last}, key=str)
        ]

    def prune(self, before: str) -> int:
        try:
            return self._prune_once(before)
        except (TypeError, ValueError) as error:
            raise StateUnavailableError(
                "the audit trail cannot be pruned: a row was altered, as `rationale audit verify` shows"
            ) from error

    def _prune_once(self, before: str) -> int:
        table = decisions.c
        with self.administering() as connection:
            old = connection.execute(select(table.chain).where(table.time < before).distinct())
            for chain in old.scalars().all():
                begins = select(table.sequence, table.time).where(table.chain == chain)
                first = connection.execute(begins.order_by(table.sequence).limit(1)).one()
                if first.time < before:
                    return _prune(connection, chain, first.sequence, before)
        return 0

    def erase(self, decision: str, time: str, signature: str) -> bool:
        with self.administering() as connection:  # no pruning meanwhile
            is_recorded = connection.execute(select(erasures.c.id).where(erasures.c.id == decision)).first()
            deleted = connection.execute(delete(input_keys).where(input_keys.c.id == decision)).rowcount
            if deleted and not is_recorded:
                record = {"id": decision, "time": time, "signature": signature}
                connection.execute(insert(erasures).values(record))
        self.forget()
        return bool(deleted)

    def add_act(self, make: Callable[[Row | None], Row]) -> None:
        with self.administering() as connection:
            last = next(_read(connection, select(acts).order_by(acts.c.number.desc()).limit(1)), None)
            connection.execute(insert(acts).values(dict(make(last))))

    def acts(self, since: str | None = None, until: str | None = None) -> Iterator[Row]:
        query = select(acts).order_by(acts.c.number)
        if since is not None:
            query = query.where(acts.c.time >= since)
        if until is not None:
            query = query.where(acts.c.time < until)
        with self.reading(SCAN_S) as connection:
            yield from _read(connection.execution_options(yield_per=_READ_AT_ONCE), query)

    def probe(self) -> None:
        with self.writing() as connection:
            if self.is_sqlite:  # a row that is rolled back would not reach the disk
                connection.exec_driver_sql("PRAGMA user_version = 0")
            else:
                with connection.begin_nested() as taken_back:
                    connection.execute(insert(input_keys), {"id": secrets.token_hex(16), "wrapped": ""})
                    taken_back.rollback()

    def forget(self) -> None:
        """Overwrite deleted data in SQLite's journal too; PostgreSQL does so at its next VACUUM.

        Raises:
            StateUnavailableError: if a reader keeps the journal from being overwritten.
        """
        if not self.is_sqlite:
            return
        with self.reading() as connection:
            driver: Any = connection.connection.driver_connection
            is_busy, *_ = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if is_busy:
            raise StateUnavailableError(
                "the journal still has deleted rows, because a reader is open (an export or a backup): "
                "try again after it ends"
            )


def _keep_bytes(connection: Any, _: Any) -> None:
    connection.text_factory = _text


def _text(value: bytes) -> str | bytes:
    """Decode SQLite's text; return the bytes if it is no UTF-8, so that the row's reader can report it."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


_PLACE = (decisions.c.time, decisions.c.chain, decisions.c.sequence)
_later = decisions.alias("later")
_IS_OPEN = decisions.c.review_by.is_not(None) & ~exists().where(
    _later.c.reviews == func.coalesce(decisions.c.reviews, decisions.c.id),
    _later.c.kind != "contest",
    _later.c.time > decisions.c.time,
)


def _conditions(query: DecisionQuery) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions of a query."""
    table = decisions.c
    if query.application is not None:
        yield table.application_id == query.application
    if query.models is not None:
        yield table.model.in_(query.models)
    if query.since is not None:
        yield table.time >= query.since
    if query.until is not None:
        yield table.time < query.until
    if query.is_open:
        yield _IS_OPEN


def _rows() -> Select[Any]:
    """Return the query of rows in the form of `AuditStore`."""
    joined = decisions.outerjoin(input_keys, decisions.c.id == input_keys.c.id)
    joined = joined.outerjoin(erasures, decisions.c.id == erasures.c.id)
    columns = (decisions, input_keys.c.wrapped, erasures.c.time.label("erased"), erasures.c.signature)
    return select(*columns).select_from(joined)


def _read(connection: Connection, query: Select[Any]) -> Iterator[Row]:
    for row in connection.execute(query).mappings():
        yield dict(row)


def _checkpoints(connection: Connection) -> dict[str, Row]:
    return {row["chain"]: row for row in _read(connection, select(checkpoints))}


def _prune(connection: Connection, chain: str, first: int, before: str) -> int:
    table = decisions.c
    of_chain, end = table.chain == chain, first + _PRUNED_AT_ONCE
    first_kept = select(func.min(table.sequence)).where(of_chain, table.sequence < end, table.time >= before)
    last = (connection.execute(first_kept).scalar() or end) - 1
    gone = of_chain & (table.sequence <= last)
    end_of_gone = select(decisions).where(gone).order_by(table.sequence.desc()).limit(1)
    connection.execute(delete(checkpoints).where(checkpoints.c.chain == chain))
    (row,) = _read(connection, end_of_gone)
    now = time_text()
    connection.execute(insert(checkpoints).values(**checkpoint_of(row), pruned=now))
    for by_id in (input_keys, erasures):
        connection.execute(delete(by_id).where(by_id.c.id.in_(select(table.id).where(gone))))
    return connection.execute(delete(decisions).where(gone)).rowcount
