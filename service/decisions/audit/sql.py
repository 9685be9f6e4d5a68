"""A trail in SQLite or PostgreSQL: how it is opened, read and written, and what is reported when it fails."""

import contextlib
import importlib.util
import os
import re
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    Select,
    create_engine,
    delete,
    event,
    func,
    insert,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError

from compiler.errors import InvalidOptionError
from service.decisions.audit.rows import Row, checkpoint_of
from service.decisions.audit.store import Chain, ChainEnds, DuplicateError
from service.decisions.audit.tables import checkpoints, decisions, erasures, input_keys
from service.errors import StateUnavailableError

_READ_AT_ONCE = 500  # rows
_PRUNED_AT_ONCE = 2000  # rows of one transaction: decisions wait for it
_BUSY_S = 5  # that SQLite waits for another process's transaction
_CONNECT_S = 5
_LOST_MS = 10_000  # after which a PostgreSQL that takes no bytes is given up
_OWNER_ONLY = 0o700
_NOT_KEPT = re.compile(r"file:|:memory:")  # SQLite's own URIs, which may be of its memory
_ADMINISTER = 0x7261_7469  # PostgreSQL's advisory lock of whoever migrates or prunes


class SqlStore:
    """An `AuditStore` in SQLite or PostgreSQL. Connections are made when they are needed."""

    def __init__(self, where: str | Path, *, is_made: bool = True) -> None:
        """Name the database; connections are made later.

        Args:
            where: the file of a SQLite database, or a database URL.
            is_made: whether a file that is missing is made; else StateUnavailableError reports it.

        Raises:
            InvalidOptionError: no URL of a database that can be used here.
        """
        self.url = URL.create("sqlite", database=str(where)) if isinstance(where, Path) else _url(where)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._is_made = is_made
        self._engine: Engine | None = None
        self._file: tuple[int, int] | None = None  # of SQLite
        self._opening = threading.Lock()

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

    def in_order(self, since: str | None, until: str | None, model: str | None) -> Iterator[Row]:
        table = decisions.c
        query = _rows().order_by(table.time, table.chain, table.sequence)
        if since is not None:
            query = query.where(table.time >= since)
        if until is not None:
            query = query.where(table.time < until)
        if model is not None:
            query = query.where(table.model == model)
        with self.reading() as connection:
            yield from _read(connection.execution_options(yield_per=_READ_AT_ONCE), query)

    def chains(self) -> Iterator[Chain]:
        with self.reading() as connection:
            pruned = _checkpoints(connection)
            names = {*connection.execute(select(decisions.c.chain).distinct()).scalars(), *pruned}
            connection = connection.execution_options(yield_per=_READ_AT_ONCE)
            for name in sorted(names):
                query = _rows().where(decisions.c.chain == name).order_by(decisions.c.sequence)
                yield Chain(name, pruned.get(name), _read(connection, query))

    def ends(self) -> list[ChainEnds]:
        table = decisions.c
        ends = select(table.chain, func.max(table.sequence).label("last")).group_by(table.chain).subquery()
        is_end = (table.chain == ends.c.chain) & (table.sequence == ends.c.last)
        erased: dict[str, list[int]] = {}
        with self.reading() as connection:
            pruned = _checkpoints(connection)
            last = {row["chain"]: row for row in _read(connection, select(decisions).join(ends, is_end))}
            query = select(table.chain, table.sequence).join(erasures, table.id == erasures.c.id)
            for chain, sequence in connection.execute(query.order_by(table.sequence)):
                erased.setdefault(chain, []).append(sequence)
        return [
            ChainEnds(name, pruned.get(name), last.get(name), tuple(erased.get(name, ())))
            for name in sorted({*pruned, *last})
        ]

    def prune(self, before: str) -> int:
        table = decisions.c
        with self._administering() as connection:
            old = connection.execute(select(table.chain).where(table.time < before).distinct())
            for chain in old.scalars().all():
                begins = select(table.sequence, table.time).where(table.chain == chain)
                first = connection.execute(begins.order_by(table.sequence).limit(1)).one()
                if first.time < before:
                    return _prune(connection, chain, first.sequence, before)
        return 0

    def erase(self, decision: str, time: str, signature: str) -> bool:
        with self._administering() as connection:  # the row is not pruned meanwhile
            is_recorded = connection.execute(select(erasures.c.id).where(erasures.c.id == decision)).first()
            deleted = connection.execute(delete(input_keys).where(input_keys.c.id == decision)).rowcount
            if deleted and not is_recorded:
                record = {"id": decision, "time": time, "signature": signature}
                connection.execute(insert(erasures).values(record))
        self.forget()
        return bool(deleted)

    def probe(self) -> None:
        with self.writing() as connection:
            if self.is_sqlite:  # a row that is taken back would not reach the disk
                connection.exec_driver_sql("PRAGMA user_version = 0")
            else:
                with connection.begin_nested() as taken_back:
                    connection.execute(insert(input_keys), {"id": secrets.token_hex(16), "wrapped": ""})
                    taken_back.rollback()

    def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a transaction that sees one state. Raise StateUnavailableError."""
        with _reported(), self._opened().connect() as connection:
            if not self.is_sqlite:  # there, it is so
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """Yield a transaction: all of it is on the disk when it ends without an error, or nothing.

        Raises:
            StateUnavailableError: it cannot be written.
            IntegrityError: a row is there already.
        """
        with _reported(), _begun(self._opened()) as connection:
            yield connection
            self._check_place()

    @contextlib.contextmanager
    def _administering(self) -> Iterator[Connection]:
        """Yield what `writing` does, to one process at a time."""
        with self.writing() as connection:
            self._take_turn(connection)
            yield connection

    def forget(self) -> None:
        """Overwrite what was deleted in SQLite's journal too; PostgreSQL does so at its next VACUUM.

        Raises:
            StateUnavailableError: somebody reads, so that the journal cannot be overwritten.
        """
        if not self.is_sqlite:
            return
        with self.reading() as connection:
            driver: Any = connection.connection.driver_connection
            is_busy, *_ = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if is_busy:
            raise StateUnavailableError(
                "what was deleted is still in the journal, which somebody reads (an export, a backup?): ask "
                "again when that is over"
            )

    def _opened(self) -> Engine:
        """Return the engine, once its tables are of this version."""
        with self._opening:
            if self._engine is None:
                engine = self._create()
                try:
                    with _begun(engine) as connection:
                        self._take_turn(connection)
                        _migrate(connection)
                except BaseException:
                    engine.dispose()
                    raise
                self._engine, self._file = engine, _identity(self.url)
            return self._engine

    def _create(self) -> Engine:
        if self.is_sqlite:
            self._make_folder()
            engine = create_engine(self.url, connect_args={"timeout": _BUSY_S})
            event.listen(engine, "connect", _set_up)
            event.listen(engine, "begin", _begin)
            return engine
        limits = {"connect_timeout": _CONNECT_S, "tcp_user_timeout": _LOST_MS, "keepalives_idle": _CONNECT_S}
        return create_engine(self.url, pool_pre_ping=True, connect_args=limits)

    def _check_place(self) -> None:
        """Raise StateUnavailableError where SQLite writes to a file that is there no more."""
        if not self.is_sqlite or _identity(self.url) == self._file:
            return
        self.close()
        raise StateUnavailableError(f"the audit trail {self.url.database} was moved or removed meanwhile")

    def _make_folder(self) -> None:
        file = Path(self.url.database or "")
        if file.is_file():
            return
        if not self._is_made:
            raise StateUnavailableError(f"there is no audit trail: {file} is missing")
        file.parent.mkdir(_OWNER_ONLY, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # made by another process meanwhile
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))

    def _take_turn(self, connection: Connection) -> None:
        if not self.is_sqlite:  # there, a transaction that writes has no other at its side
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADMINISTER})


def _rows() -> Select[Any]:
    """Return the query of rows as `AuditStore` gives them."""
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
    kept = select(func.min(table.sequence)).where(of_chain, table.sequence < end, table.time >= before)
    last = (connection.execute(kept).scalar() or end) - 1
    gone = of_chain & (table.sequence <= last)
    end_of_gone = select(decisions).where(gone).order_by(table.sequence.desc()).limit(1)
    connection.execute(delete(checkpoints).where(checkpoints.c.chain == chain))
    (row,) = _read(connection, end_of_gone)
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    connection.execute(insert(checkpoints).values(**checkpoint_of(row), pruned=now))
    for by_id in (input_keys, erasures):
        connection.execute(delete(by_id).where(by_id.c.id.in_(select(table.id).where(gone))))
    return connection.execute(delete(decisions).where(gone)).rowcount


def _url(given: str) -> URL:
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):
        url = None
    if url is not None and url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    is_kept = url is not None and bool(url.database) and _NOT_KEPT.match(url.database or "") is None
    if url is None or url.drivername not in ("sqlite", "postgresql+psycopg") or not is_kept:
        raise InvalidOptionError(
            "setting audit (RATIONALE_AUDIT) must be off, or a URL of a database such as "
            "postgresql://USER:PASSWORD@HOST/DATABASE or sqlite:////var/lib/rationale/audit.sqlite3"
        )
    if url.drivername == "postgresql+psycopg" and importlib.util.find_spec("psycopg") is None:
        raise InvalidOptionError("an audit trail in PostgreSQL needs pip install 'rationale[audit]'")
    return url


def _identity(url: URL) -> tuple[int, int] | None:
    """Return what tells a SQLite file from another; None where there is none."""
    with contextlib.suppress(OSError):
        found = os.stat(url.database or "")
        return found.st_dev, found.st_ino
    return None


@contextlib.contextmanager
def _begun(engine: Engine) -> Iterator[Connection]:
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        yield connection


def _set_up(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # `_begin` begins
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA secure_delete=ON")


def _begin(connection: Connection) -> None:
    is_writing = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")


def _migrate(connection: Connection) -> None:
    """Raise StateUnavailableError where a newer version has been here."""
    config = Config(attributes={"connection": connection})
    folder = str(Path(__file__).parent / "migrations")
    config.set_main_option("script_location", folder.replace("%", "%%"))
    script = ScriptDirectory.from_config(config)
    found = MigrationContext.configure(
        connection, opts={"version_table": "audit_version"}
    ).get_current_revision()
    if found is not None and found not in [known.revision for known in script.walk_revisions()]:
        raise StateUnavailableError(
            f"the audit trail was written by a newer version of Rationale (its tables are of {found}): use "
            "that one, or another database"
        )
    if found != script.get_current_head():
        command.upgrade(config, "head")


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except IntegrityError:
        raise
    except (SQLAlchemyError, CommandError, OSError) as error:
        cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        lines = str(cause).strip().splitlines() or [type(cause).__name__]
        raise StateUnavailableError(f"the audit trail cannot be read or written: {lines[0]}") from error
