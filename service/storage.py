"""What survives a restart: records in SQLite and files beside them, in one folder that one gateway owns.

    STATE/
    ├── lock           held by the gateway that may write here
    ├── state.sqlite3  the records, in WAL mode
    ├── references/    reference sets, by content digest
    ├── staging/       what is being made; swept at the start
    └── artefacts/     compiled entries that no explainer uses now

Records are tables derived from `Base`, each in the module that owns it; import that module before the state
is opened. The folder is made by the first write and is nobody else's to read: it holds rows of real people.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import DeclarativeBase, Session

from service.errors import StateUnavailableError

try:
    import fcntl
except ImportError:  # Windows: two gateways on one state are not kept apart there
    fcntl = None  # type: ignore[assignment]  # the module or nothing; tested where it is used

DATABASE, LOCK = "state.sqlite3", "lock"
LAYOUT = 1  # of the tables; raise it with a change that an older gateway must not meet
_OWNER_ONLY = 0o700
_PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=5000")


class Base(DeclarativeBase):
    """Of every table."""


class Storage:
    """The state folder. Methods may be called from any thread; those that touch the disk block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.references = folder / "references"
        self.staging = folder / "staging"
        self.artefacts = folder / "artefacts"
        self._engine: sa.Engine | None = None
        self._lock: int | None = None
        self._opening = threading.Lock()

    @property
    def exists(self) -> bool:
        """Whether anything was ever written: where not, there is nothing to read."""
        return (self.folder / DATABASE).is_file()

    def open(self) -> sa.Engine:
        """Takes the folder for this process, making it where it is missing.

        Raises:
            StateUnavailableError: another gateway owns it, it cannot be written, or is of a newer version.
        """
        with self._opening:
            if self._engine is None:
                with _told(self.folder), contextlib.ExitStack() as on_failure:
                    on_failure.callback(self._release)
                    for folder in (self.folder, self.references, self.staging, self.artefacts):
                        folder.mkdir(_OWNER_ONLY, parents=True, exist_ok=True)
                    self._lock = _lock(self.folder)
                    self._engine = _engine(self.folder / DATABASE)
                    _prepare(self._engine, self.folder)
                    on_failure.pop_all()
            return self._engine

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """A transaction, opening the state where that was not done: committed at the end, or nothing of it.

        Raises:
            StateUnavailableError: as `open`, and where the records cannot be written (a full disk).
        """
        engine = self.open()
        with _told(self.folder), Session(engine, expire_on_commit=False) as session, session.begin():
            yield session

    def close(self) -> None:
        """Lets another gateway have it. Opened again by its next use."""
        with self._opening:
            self._release()

    def _release(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()
        handle, self._lock = self._lock, None
        if handle is not None:
            os.close(handle)


def sync(folder: Path) -> None:
    """Makes the names in a folder survive a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _lock(folder: Path) -> int:
    """A handle that owns the folder until it is closed, or the process ends in whatever way."""
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise StateUnavailableError(
            f"another gateway owns the state folder {folder.name}: only one may administer a repository. Ask "
            "that one, stop it, or give this one a repository and a state of its own (--repository, "
            "RATIONALE_STATE)"
        ) from error
    except BaseException:
        os.close(handle)
        raise
    return handle


def _engine(path: Path) -> sa.Engine:
    engine = sa.create_engine(f"sqlite:///{path}")

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")

    return engine


def _prepare(engine: sa.Engine, folder: Path) -> None:
    with engine.begin() as connection:
        found = connection.scalar(sa.text("PRAGMA user_version")) or 0
        if found > LAYOUT:
            raise StateUnavailableError(
                f"the state in {folder.name} was written by a newer version of the gateway: use that one, or "
                "move the folder away"
            )
        Base.metadata.create_all(connection)
        connection.execute(sa.text(f"PRAGMA user_version = {LAYOUT}"))


@contextlib.contextmanager
def _told(folder: Path) -> Iterator[None]:
    """What the disk or SQLite raises, as an error for the caller. Its cause stays in the log's traceback."""
    try:
        yield
    except OSError as error:
        raise StateUnavailableError(
            f"the state in {folder.name} cannot be written: {error.strerror}"
        ) from error
    except DatabaseError as error:
        raise StateUnavailableError(
            f"the records in {folder.name} cannot be read or written: {error.orig}"
        ) from error
