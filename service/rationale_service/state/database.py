"""A SQLite file or a PostgreSQL database, opened on first use, with the tables of this version.

It holds the audit trail and the gateway's state, in one database or in two; each has all tables.
"""

import contextlib
import importlib.util
import os
import re
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError

from rationale.distribution import install
from rationale.errors import InvalidOptionError
from rationale_service.errors import StateUnavailableError

_BUSY_S = 5  # SQLite's wait for another process's transaction
_RETRY_S = 0.01
_CONNECT_S = 5
_ANSWER_S = 10.0  # limit for an answer of PostgreSQL
SCAN_S = 600.0  # the same for reading a whole table
_OWNER_ONLY = 0o700
_MIGRATIONS, VERSIONS = Path(__file__).parent / "migrations", "rationale_version"  # table of the revision
_OLD_VERSIONS = {"audit_version", "state_version"}  # revision tables from before the first release
_LOCK = 0x7261_7469  # PostgreSQL's advisory lock for migrations and pruning
_MIGRATING = threading.Lock()  # Alembic has one context for a whole process
_NOT_KEPT = re.compile(r"file:|:memory:")  # SQLite's own URIs, which may name memory


@dataclass(frozen=True)
class Schema:
    """Names of a database in errors.

    Attributes:
        name: name in errors, such as state.
        setting: start of the error about an invalid URL: the setting and its other valid values.
    """

    name: str
    setting: str


class Database:
    """A database. Any thread may use it; it connects on first use."""

    def __init__(
        self,
        where: str | Path,
        schema: Schema,
        *,
        is_made: bool = True,
        count: Callable[[], None] = lambda: None,
    ) -> None:
        """Name the database without connecting to it.

        Args:
            where: file of a SQLite database, or a database URL.
            is_made: True to create a missing file; else StateUnavailableError reports it.
            count: function that counts each transaction that fails in the database.

        Raises:
            InvalidOptionError: if the URL names no database that can be used here.
        """
        is_file = isinstance(where, Path)
        self.url = URL.create("sqlite", database=str(where)) if is_file else parse_url(str(where), schema)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._schema = schema
        self._is_made = is_made
        self._count = count
        self._engine: Engine | None = None
        self._file: tuple[int, int] | None = None  # identity of SQLite's file
        self._opening = threading.Lock()

    def close(self) -> None:
        """Close every connection; the next use opens new ones."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()

    @contextlib.contextmanager
    def reading(self, limit_s: float | None = None) -> Iterator[Connection]:
        """Yield a transaction that sees one snapshot. Raises StateUnavailableError.

        Args:
            limit_s: limit for each answer of PostgreSQL and for each pause of the caller between two queries;
                None for the usual limit.
        """
        with self._errors_reported(), self._get_engine().connect() as connection:
            if not self.is_sqlite:  # SQLite does so always
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with self._time_limit(connection, limit_s):
                yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """Yield a transaction; its end without an error puts all of it on the disk, an error nothing.

        Raises:
            StateUnavailableError: if the database cannot be written.
            IntegrityError: if a row exists already.
        """
        is_moved = False
        try:
            with self._errors_reported(), _transaction(self._get_engine()) as connection:
                yield connection
                if is_moved := self._is_moved():
                    raise StateUnavailableError(
                        f"the {self._schema.name} {self.url.database} was moved or deleted while the "
                        "gateway ran"
                    )
        finally:
            if is_moved:
                self.close()

    @contextlib.contextmanager
    def administering(self) -> Iterator[Connection]:
        """Yield a transaction as `writing` does, to one process at a time."""
        with self.writing() as connection:
            self._take_turn(connection)
            yield connection

    def _get_engine(self) -> Engine:
        """Return the engine; first migrate its tables to this version."""
        with self._opening:
            if self._engine is None:
                engine = self._create()
                try:
                    with _transaction(engine) as connection:
                        self._take_turn(connection)
                        with self._time_limit(connection, SCAN_S):
                            self._migrate(connection)
                except BaseException:
                    engine.dispose()
                    raise
                self._engine, self._file = engine, _identity(self.url)
                weakref.finalize(self, engine.dispose).atexit = False
            return self._engine

    def _create(self) -> Engine:
        if self.is_sqlite:
            self._make_folder()
            engine = create_engine(self.url, connect_args={"timeout": _BUSY_S})
            event.listen(engine, "connect", _set_up)
            event.listen(engine, "begin", _begin)
            return engine
        from rationale_service.state.postgres import LimitedConnection

        limits = {
            "connect_timeout": _CONNECT_S,
            "tcp_user_timeout": int(_ANSWER_S * 1e3),
            "keepalives_idle": _CONNECT_S,
        }
        encoding = {"client_encoding": "utf8"}  # otherwise an SQL_ASCII database returns bytes for text
        engine = create_engine(self.url, pool_pre_ping=True, connect_args=limits | encoding)
        event.listen(engine, "do_connect", lambda *arguments: LimitedConnection.connect(**arguments[-1]))
        event.listen(engine, "connect", lambda connection, _: connection.limit(_ANSWER_S))
        return engine

    @contextlib.contextmanager
    def _time_limit(self, connection: Connection, limit_s: float | None) -> Iterator[None]:
        """Set another time limit for each answer of PostgreSQL in a transaction."""
        if self.is_sqlite or limit_s is None:
            yield
            return
        driver: Any = connection.connection.driver_connection
        before_s = driver.limit_s
        driver.limit(limit_s, "LOCAL")
        try:
            yield
        finally:
            driver.limit_s = before_s  # the server's limit ends with the transaction

    def _is_moved(self) -> bool:
        """Tell whether SQLite writes to a file that has been moved or removed."""
        return self.is_sqlite and _identity(self.url) != self._file

    def _make_folder(self) -> None:
        file = Path(self.url.database or "")
        if file.is_file():
            return
        if not self._is_made:
            raise StateUnavailableError(
                f"there is no {self._schema.name}: {file} is missing. "
                "Give the gateway's --repository or --config"
            )
        file.parent.mkdir(_OWNER_ONLY, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another process may have created it
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))

    def _take_turn(self, connection: Connection) -> None:
        if not self.is_sqlite:  # SQLite has one writing transaction at a time
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})

    def _migrate(self, connection: Connection) -> None:
        """Migrate the tables to this version; raise StateUnavailableError if another one made them."""
        config = Config(attributes={"connection": connection})
        config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
        script = ScriptDirectory.from_config(config)
        versions = {"version_table": VERSIONS}
        current = MigrationContext.configure(connection, opts=versions).get_current_revision()
        if current is not None and current not in [
            script_revision.revision for script_revision in script.walk_revisions()
        ]:
            raise StateUnavailableError(
                f"a newer version of Rationale wrote the {self._schema.name} (its tables have the revision "
                f"{current}): use that version, or another database"
            )
        if current is None and (old := sorted({*inspect(connection).get_table_names()} & _OLD_VERSIONS)):
            raise StateUnavailableError(
                f"a version before 0.1.0 wrote the {self._schema.name} (it has the table {old[0]}): move "
                "that database away, or use another one"
            )
        if current != script.get_current_head():
            with _MIGRATING:
                command.upgrade(config, "head")

    @contextlib.contextmanager
    def _errors_reported(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError:
            raise
        except (SQLAlchemyError, CommandError, OSError) as error:
            self._count()
            cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
            lines = str(cause).strip().splitlines() or [type(cause).__name__]
            failure = f"the {self._schema.name} cannot be read or written"
            raise StateUnavailableError(f"{failure}: {lines[0]}") from error


def parse_url(text: str, schema: Schema) -> URL:
    """Parse a database URL. Raises InvalidOptionError if it is invalid or its driver is not installed."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        url = None
    if url is not None and url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    is_kept = url is not None and bool(url.database) and _NOT_KEPT.match(url.database or "") is None
    if url is None or url.drivername not in ("sqlite", "postgresql+psycopg") or not is_kept:
        raise InvalidOptionError(
            f"{schema.setting} a URL of a database such as postgresql://USER:PASSWORD@HOST/DATABASE or "
            "sqlite:////var/lib/rationale/FILE.sqlite3"
        )
    if url.drivername == "postgresql+psycopg" and importlib.util.find_spec("psycopg") is None:
        raise InvalidOptionError(f"the {schema.name} in PostgreSQL needs psycopg: {install('postgres')}")
    return url


def _identity(url: URL) -> tuple[int, int] | None:
    """Return the identity of a SQLite file, (device, inode); None if there is no file."""
    with contextlib.suppress(OSError):
        status = os.stat(url.database or "")
        return status.st_dev, status.st_ino
    return None


@contextlib.contextmanager
def _transaction(engine: Engine) -> Iterator[Connection]:
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        yield connection


def _set_up(connection: sqlite3.Connection, _: Any) -> None:
    connection.isolation_level = None  # `_begin` begins
    _switch_to_wal(connection)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA secure_delete=ON")


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Switch SQLite to WAL, so that readers work beside a writer.

    SQLite's own timeout does not cover this switch: while another connection writes to a new file, SQLite
    reports a locked database without waiting.
    """
    end = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(_RETRY_S)


def _begin(connection: Connection) -> None:
    is_writing = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")
