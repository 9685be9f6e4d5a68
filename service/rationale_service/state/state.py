"""The state of a gateway: a folder, and records in it or in a database that many machines share.

    STATE/
    ├── state.sqlite3  the records, without a database URL
    ├── references/    reference sets, by content digest
    └── staging/       unfinished work, in folders named after their process

Records are JSON objects, by kind and key. Every process that serves them is a replica: it polls for a new
revision and adopts it. The first write creates the folder, which only its owner can read: it holds rows of
real people.
"""

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rationale_service.errors import StateUnavailableError
from rationale_service.state import Change
from rationale_service.state.files import convert_os_errors
from rationale_service.state.replica import Lease, Replica, this_process

if TYPE_CHECKING:
    from rationale_service.state.sql import StateDatabase

DATABASE = "state.sqlite3"
_OWNER_ONLY = 0o700


class State:
    """The state that replicas share. Any thread may call its methods; those that use the disk block."""

    def __init__(
        self,
        folder: Path,
        url: str | None = None,
        *,
        is_shared: bool = False,
        count: Callable[[], None] = lambda: None,
    ) -> None:
        """Set the paths without touching the disk.

        Args:
            url: URL of the database with the records; None for a file in the folder.
            is_shared: True if others surely follow it: this process then follows it before the first write.
            count: function that counts each transaction that fails in the database.
        """
        self.is_shared = is_shared or url is not None
        self.folder = folder
        self.references = folder / "references"
        self.staging = folder / "staging"
        self.replica: Replica = this_process()
        self._url = url
        self._count = count
        self._database: StateDatabase | None = None
        self._opening = threading.Lock()

    @property
    def is_remote(self) -> bool:
        """True if processes of other machines may share it."""
        return self._url is not None and not self._url.startswith("sqlite")

    @property
    def exists(self) -> bool:
        """True if it may have content to read; False before the first write to a file."""
        return self._url is not None or (self.folder / DATABASE).is_file()

    def open(self) -> "StateDatabase":
        """Return the database; create missing folders.

        Raises:
            StateUnavailableError: if it cannot be read or written, or is of a newer version.
            InvalidOptionError: if the URL names no usable database.
        """
        with self._opening:
            if self._database is None or not self.staging.is_dir():
                with convert_os_errors(f"the state in {self.folder.name}"):
                    for folder in (self.folder, self.references, self.staging):
                        folder.mkdir(_OWNER_ONLY, parents=True, exist_ok=True)
                if self._url is not None and self.folder.stat().st_uid != os.getuid():
                    raise StateUnavailableError(
                        f"the folder {self.folder} for copies belongs to another user"
                    )
            if self._database is None:
                from rationale_service.state.sql import StateDatabase  # slow: imports SQLAlchemy

                self._database = StateDatabase(self._url or self.folder / DATABASE, self._count)
            return self._database

    def close(self) -> None:
        """Release this process's leases and close the database; the next use opens it again."""
        database, self._database = self._database, None
        if database is not None:
            with contextlib.suppress(Exception):  # others notice by themselves
                database.leave(self.replica)
            database.close()

    # --- records ------------------------------------------------------------------------------------------

    def revision(self) -> int:
        """Return the number of changes of the records so far. Raises as `open`."""
        return self.open().revision() if self.exists else 0

    def snapshot(self) -> tuple[int, Mapping[str, list[dict[str, Any]]]]:
        """Return the revision and, by kind, every record. Raises as `open`."""
        return self.open().snapshot() if self.exists else (0, {})

    def read(self, kind: str) -> list[dict[str, Any]]:
        """Return every record of a kind; empty before the first write. Raises as `open`."""
        return self.snapshot()[1].get(kind, [])

    def write(self, *changes: Change, since: int | None = None) -> int | None:
        """Save records by (kind, key, value), or delete those whose value is None: all of them or none.

        Args:
            since: revision on which the changes are based; None to write even if others have written since.

        Returns:
            The new revision; None if others have written since, so that nothing was changed.

        Raises:
            StateUnavailableError: if `open` raises it, or the records cannot be written (a full disk).
        """
        return self.open().write(changes, since)

    # --- replicas -----------------------------------------------------------------------------------------

    def follow(self, revision: int) -> None:
        """Record that this process serves a revision. Raises as `open`."""
        if self.exists or self.is_shared:
            self.open().follow(self.replica, revision)

    def behind(self, revision: int) -> Collection[str]:
        """Return the other processes that do not serve a revision yet. Raises as `open`."""
        return self.open().behind(self.replica, revision) if self.exists else ()

    # --- leases -------------------------------------------------------------------------------------------

    def leases(self) -> Mapping[str, Lease]:
        """Return the replicas' leases, by name. Raises as `open`."""
        return self.open().leases(self.replica) if self.exists else {}

    def take(self, name: str) -> str | None:
        """Take a lease. Return None if a replica has it; else the replica that left it behind, or ""."""
        left_by = self.open().take(name, self.replica)
        if left_by:
            self.sweep()
        return left_by

    def renew(self, name: str, note: Mapping[str, Any]) -> bool:
        """Prolong a lease and record its progress; return False if another replica has it by now."""
        return self.open().renew(name, self.replica, note)

    def release(self, name: str) -> None:
        """Release a lease."""
        self.open().release(name, self.replica)

    # --- unfinished work ----------------------------------------------------------------------------------

    def new_staging(self) -> Path:
        """Return a new folder for unfinished work, which the caller deletes. Raises as `open`."""
        self.open()
        with convert_os_errors("the entry"):
            return Path(tempfile.mkdtemp(dir=self.staging, prefix=f"{self.replica.process}-"))

    def sweep(self) -> None:
        """Delete unfinished work of processes that have ended."""
        with convert_os_errors("the entry"):
            for path in self._abandoned_folders():
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)

    def _abandoned_folders(self) -> Iterator[Path]:
        for path in list(self.staging.iterdir()) if self.staging.is_dir() else []:
            process, dash, _ = path.name.rpartition("-")
            if not dash or self.replica.is_dead(process) or self.replica.is_of_another_boot(process):
                yield path
