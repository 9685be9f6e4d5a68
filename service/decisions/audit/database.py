"""The database of a trail: where it is, how it is opened, and what of it is told when it fails."""

import contextlib
import importlib.util
import os
import re
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, create_engine, event, insert, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError

from compiler.errors import InvalidOptionError
from service.decisions.audit.tables import input_keys
from service.errors import StateUnavailableError

_BUSY_S = 5  # that SQLite waits for another process's transaction
_CONNECT_S = 5
_LOST_MS = 10_000  # after which a PostgreSQL that takes no bytes is given up
_OWNER_ONLY = 0o700
_NOT_KEPT = re.compile(r"file:|:memory:")  # SQLite's own URIs, which may be of its memory
_ADMINISTER = 0x7261_7469  # PostgreSQL's advisory lock of whoever migrates or prunes


class Database:
    """Connections are made when they are needed. All methods block, and may be called from any thread."""

    def __init__(self, where: str | Path, *, is_made: bool = True) -> None:
        """
        Args:
            where: the file of a SQLite database, or a database URL.
            is_made: whether a file that is missing is made.

        Raises:
            InvalidOptionError: no URL of a database that can be used here.
        """
        self.url = URL.create("sqlite", database=str(where)) if isinstance(where, Path) else _url(where)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._is_made = is_made
        self._engine: Engine | None = None
        self._file: tuple[int, int] | None = None  # of SQLite
        self._opening = threading.Lock()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state. Raises StateUnavailableError."""
        with _told(), self._opened().connect() as connection:
            if not self.is_sqlite:  # there, it is so
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction: all that is done in it is on the disk when it ends without an error, or none of it.

        Raises:
            StateUnavailableError: it cannot be written.
            IntegrityError: a row is there already.
        """
        with _told(), _begun(self._opened()) as connection:
            yield connection
            self._check_place()

    @contextlib.contextmanager
    def administering(self) -> Iterator[Connection]:
        """As `writing`, one process at a time."""
        with self.writing() as connection:
            self._take_turn(connection)
            yield connection

    @property
    def exists(self) -> bool:
        """Whether there may be something to read."""
        return not self.is_sqlite or Path(self.url.database or "").is_file()

    def open(self) -> None:
        """Makes its tables, or what is new of them. Raises StateUnavailableError."""
        with _told():
            self._opened()

    def try_writing(self) -> None:
        """Opens it, and writes what leaves nothing behind. Raises StateUnavailableError."""
        with self.writing() as connection:
            if self.is_sqlite:  # a row that is taken back would not reach the disk
                connection.exec_driver_sql("PRAGMA user_version = 0")
            else:
                with connection.begin_nested() as taken_back:
                    connection.execute(insert(input_keys), {"id": secrets.token_hex(16), "wrapped": ""})
                    taken_back.rollback()

    def forget(self) -> None:
        """Has SQLite overwrite what was deleted in its journal too; PostgreSQL does so at its next VACUUM.

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

    def close(self) -> None:
        """Opened again by its next use."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()

    def _opened(self) -> Engine:
        """With tables of this version."""
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
        """Raises StateUnavailableError where SQLite writes to a file that is there no more."""
        if not self.is_sqlite or _identity(self.url) == self._file:
            return
        self.close()
        raise StateUnavailableError(f"the audit trail {self.url.database} was moved or removed meanwhile")

    def _make_folder(self) -> None:
        if self.exists:
            return
        file = Path(self.url.database or "")
        if not self._is_made:
            raise StateUnavailableError(f"there is no audit trail: {file} is missing")
        file.parent.mkdir(_OWNER_ONLY, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # made by another process meanwhile
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))

    def _take_turn(self, connection: Connection) -> None:
        if not self.is_sqlite:  # there, a transaction that writes has no other beside it
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADMINISTER})


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
    """Of a SQLite file; None where there is none."""
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
    """Raises StateUnavailableError where a newer version has been here."""
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
def _told() -> Iterator[None]:
    try:
        yield
    except IntegrityError:
        raise
    except (SQLAlchemyError, CommandError, OSError) as error:
        cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        lines = str(cause).strip().splitlines() or [type(cause).__name__]
        raise StateUnavailableError(f"the audit trail cannot be read or written: {lines[0]}") from error
