"""A SQLite file or a PostgreSQL database: opened when it is needed, with the tables of this version.

The audit trail and the state of the gateway are kept so, in one database or in two; each has all tables.
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

_BUSY_S = 5  # that SQLite waits for another process's transaction
_RETRY_S = 0.01
_CONNECT_S = 5
_ANSWER_S = 10.0  # after which a PostgreSQL that does not answer is given up
SCAN_S = 600.0  # the same, while it reads a whole table
_OWNER_ONLY = 0o700
_MIGRATIONS, VERSIONS = Path(__file__).parent / "migrations", "rationale_version"  # and where they are at
_OLD_VERSIONS = {"audit_version", "state_version"}  # tables of two chains of migrations, of no release
_LOCK = 0x7261_7469  # PostgreSQL's advisory one, of whoever migrates or prunes
_MIGRATING = threading.Lock()  # Alembic has one context for a whole process
_NOT_KEPT = re.compile(r"file:|:memory:")  # SQLite's own URIs, which may be of its memory


@dataclass(frozen=True)
class Schema:
    """What errors call a database.

    Attributes:
        name: what a user calls what is in them.
        setting: begins the error about a URL of no database: the setting, and what else it may be.
    """

    name: str
    setting: str


class Database:
    """Connections are made when they are needed, by any thread."""

    def __init__(
        self,
        where: str | Path,
        schema: Schema,
        *,
        is_made: bool = True,
        count: Callable[[], None] = lambda: None,
    ) -> None:
        """Name the database; connections are made later.

        Args:
            where: the file of a SQLite database, or a database URL.
            is_made: whether a file that is missing is made; else StateUnavailableError reports it.
            count: called for each transaction that the database fails.

        Raises:
            InvalidOptionError: no URL of a database that can be used here.
        """
        is_file = isinstance(where, Path)
        self.url = URL.create("sqlite", database=str(where)) if is_file else parse_url(str(where), schema)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._schema = schema
        self._is_made = is_made
        self._count = count
        self._engine: Engine | None = None
        self._file: tuple[int, int] | None = None  # of SQLite
        self._opening = threading.Lock()

    def close(self) -> None:
        """Close every connection; the next use makes others."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()

    @contextlib.contextmanager
    def reading(self, limit_s: float | None = None) -> Iterator[Connection]:
        """Yield a transaction that sees one state. Raise StateUnavailableError.

        Args:
            limit_s: that PostgreSQL may take for an answer, and the caller between two questions; None for
                what is usual.
        """
        with self._reported(), self._opened().connect() as connection:
            if not self.is_sqlite:  # there, it is so
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with self._limited(connection, limit_s):
                yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """Yield a transaction: all of it is on the disk when it ends without an error, or nothing.

        Raises:
            StateUnavailableError: it cannot be written.
            IntegrityError: a row is there already.
        """
        is_moved = False
        try:
            with self._reported(), _begun(self._opened()) as connection:
                yield connection
                if is_moved := self._is_moved():
                    raise StateUnavailableError(
                        f"the {self._schema.name} {self.url.database} was moved or removed meanwhile"
                    )
        finally:
            if is_moved:
                self.close()

    @contextlib.contextmanager
    def administering(self) -> Iterator[Connection]:
        """Yield what `writing` does, to one process at a time."""
        with self.writing() as connection:
            self._take_turn(connection)
            yield connection

    def _opened(self) -> Engine:
        """Return the engine, once its tables are of this version."""
        with self._opening:
            if self._engine is None:
                engine = self._create()
                try:
                    with _begun(engine) as connection:
                        self._take_turn(connection)
                        with self._limited(connection, SCAN_S):
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
        encoding = {"client_encoding": "utf8"}  # else one of SQL_ASCII gives bytes where text was written
        engine = create_engine(self.url, pool_pre_ping=True, connect_args=limits | encoding)
        event.listen(engine, "do_connect", lambda *given: LimitedConnection.connect(**given[-1]))
        event.listen(engine, "connect", lambda connection, _: connection.limit(_ANSWER_S))
        return engine

    @contextlib.contextmanager
    def _limited(self, connection: Connection, limit_s: float | None) -> Iterator[None]:
        """Give PostgreSQL another time for each answer of a transaction."""
        if self.is_sqlite or limit_s is None:
            yield
            return
        driver: Any = connection.connection.driver_connection
        before_s = driver.limit_s
        driver.limit(limit_s, "LOCAL")
        try:
            yield
        finally:
            driver.limit_s = before_s  # the server's own ends with the transaction

    def _is_moved(self) -> bool:
        """Tell whether SQLite writes to a file that is there no more."""
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
        with contextlib.suppress(FileExistsError):  # made by another process meanwhile
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))

    def _take_turn(self, connection: Connection) -> None:
        if not self.is_sqlite:  # there, a transaction that writes has no other at its side
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})

    def _migrate(self, connection: Connection) -> None:
        """Bring the tables to this version; raise StateUnavailableError if another one made them."""
        config = Config(attributes={"connection": connection})
        config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
        script = ScriptDirectory.from_config(config)
        versions = {"version_table": VERSIONS}
        found = MigrationContext.configure(connection, opts=versions).get_current_revision()
        if found is not None and found not in [known.revision for known in script.walk_revisions()]:
            raise StateUnavailableError(
                f"the {self._schema.name} was written by a newer version of Rationale (its tables are of "
                f"{found}): use that one, or another database"
            )
        if found is None and (old := sorted({*inspect(connection).get_table_names()} & _OLD_VERSIONS)):
            raise StateUnavailableError(
                f"the {self._schema.name} was written before version 0.1.0 (it has the table {old[0]}): move "
                "that database away, or name another one"
            )
        if found != script.get_current_head():
            with _MIGRATING:
                command.upgrade(config, "head")

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError:
            raise
        except (SQLAlchemyError, CommandError, OSError) as error:
            self._count()
            cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
            lines = str(cause).strip().splitlines() or [type(cause).__name__]
            what = f"the {self._schema.name} cannot be read or written"
            raise StateUnavailableError(f"{what}: {lines[0]}") from error


def parse_url(given: str, schema: Schema) -> URL:
    """Parse a database URL. Raises InvalidOptionError for what is none, or needs what is not installed."""
    try:
        url = make_url(given)
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
    """Return what tells a SQLite file from another; None where there is none."""
    with contextlib.suppress(OSError):
        found = os.stat(url.database or "")
        return found.st_dev, found.st_ino
    return None


@contextlib.contextmanager
def _begun(engine: Engine) -> Iterator[Connection]:
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        yield connection


def _set_up(connection: sqlite3.Connection, _: Any) -> None:
    connection.isolation_level = None  # `_begin` begins
    _switch_to_wal(connection)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA secure_delete=ON")


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Let readers work beside a writer.

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
