"""What survives a restart: records in SQLite and files beside them, in one folder that one gateway owns.

    STATE/
    ├── lock           held by the gateway that may write here
    ├── state.sqlite3  the records, in WAL mode
    ├── references/    reference sets, by content digest
    └── staging/       what is being made; swept at the start

Records are JSON objects, by kind and key. The folder is made by the first write and is nobody else's to
read: it holds rows of real people.
"""

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from service.errors import StateUnavailableError

try:
    import fcntl
except ImportError:  # Windows: two gateways on one state are not kept apart there
    fcntl = None  # type: ignore[assignment]  # the module or nothing; tested where it is used

DATABASE, LOCK = "state.sqlite3", "lock"
LAYOUT = 3  # of the records; raise it with a change that an older gateway must not meet
_OWNER_ONLY = 0o700
_RECORDS = "records (kind TEXT, key TEXT, value TEXT NOT NULL, PRIMARY KEY (kind, key))"

Change = tuple[str, str, dict[str, Any] | None]


class Storage:
    """The state folder. Methods may be called from any thread; those that touch the disk block."""

    def __init__(self, folder: Path, *, is_owned: bool = True) -> None:
        """Set the folder's paths; nothing on the disk is touched yet.

        Args:
            is_owned: by this process; else by another one of the same gateway, and this one reads.
        """
        self.folder = folder
        self.is_owned = is_owned
        self.references = folder / "references"
        self.staging = folder / "staging"
        self._database: sqlite3.Connection | None = None
        self._lock: int | None = None
        self._opening, self._turn = threading.Lock(), threading.Lock()

    @property
    def exists(self) -> bool:
        """Whether anything was ever written: where not, there is nothing to read."""
        return (self.folder / DATABASE).is_file()

    def open(self) -> sqlite3.Connection:
        """Take the folder for this process, making it where it is missing.

        Raises:
            StateUnavailableError: another gateway owns it, it cannot be written, or is of a newer version.
        """
        with self._opening:
            if self._database is None:
                with self._told(), contextlib.ExitStack() as on_failure:
                    on_failure.callback(self._release)
                    if self.is_owned:
                        for folder in (self.folder, self.references, self.staging):
                            folder.mkdir(_OWNER_ONLY, parents=True, exist_ok=True)
                        self._lock = _lock(self.folder)
                    self._database = _database(self.folder)
                    on_failure.pop_all()
            return self._database

    def read(self, kind: str) -> list[dict[str, Any]]:
        """Return every record of a kind; none where nothing was ever written.

        Raises:
            StateUnavailableError: as `open`, and where the records cannot be read.
        """
        if not self.exists:
            return []
        with self._transaction() as database:
            rows = database.execute("SELECT value FROM records WHERE kind = ? ORDER BY rowid", (kind,))
            return [json.loads(value) for (value,) in rows]

    def write(self, *changes: Change) -> None:
        """Save records by (kind, key, value), or delete them where the value is None: all of it or nothing.

        Raises:
            StateUnavailableError: as `open`, and where they cannot be written (a full disk).
        """
        with self._transaction() as database:
            for kind, key, value in changes:
                database.execute("DELETE FROM records WHERE (kind, key) = (?, ?)", (kind, key))
                if value is not None:
                    database.execute("INSERT INTO records VALUES (?, ?, ?)", (kind, key, json.dumps(value)))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        database = self.open()
        with self._turn, self._told(), database:
            yield database

    def _told(self) -> contextlib.AbstractContextManager[None]:
        return told(f"the state in {self.folder.name}")

    def close(self) -> None:
        """Let another gateway have it. Opened again by its next use."""
        with self._opening:
            self._release()

    def _release(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()
        handle, self._lock = self._lock, None
        if handle is not None:
            os.close(handle)


def sync(folder: Path) -> None:
    """Make the names in a folder survive a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _lock(folder: Path) -> int:
    """Return a handle that owns the folder until it is closed, or the process ends in whatever way."""
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


def _database(folder: Path) -> sqlite3.Connection:
    """Yield the database to one thread at a time, whichever it is."""
    with contextlib.ExitStack() as on_failure:
        database = sqlite3.connect(folder / DATABASE, check_same_thread=False)
        on_failure.callback(database.close)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        (found,) = database.execute("PRAGMA user_version").fetchone()
        if found not in (0, LAYOUT):
            raise StateUnavailableError(
                f"the state in {folder.name} was written by another version of the gateway: use that one, or "
                "move the folder away"
            )
        with database:
            database.execute(f"CREATE TABLE IF NOT EXISTS {_RECORDS}")
            database.execute(f"PRAGMA user_version = {LAYOUT}")
        on_failure.pop_all()
        return database


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Turn what the disk or SQLite raises into an error for the caller.

    Its cause stays in the log's traceback.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StateUnavailableError(f"{what} cannot be written: {reason}") from error
    except sqlite3.Error as error:
        raise StateUnavailableError(f"{what} cannot be read or written: {error}") from error
