"""Store of compiled entries: made in the state's folder, served from the repository.

An entry is made in a staging folder, flushed, and moved by one rename: readers see all of it or nothing.
If machines share the state, their storage holds the entry as one file, and each machine has a copy in its
repository. Every method blocks.
"""

import hashlib
import shutil
import sys
import tarfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rationale_service.errors import StateUnavailableError
from rationale_service.models.explainers.records import Artifact, lease_of
from rationale_service.models.explainers.worker import sync_folder
from rationale_service.repository.entry import Entry, read_entry
from rationale_service.state.blobs import Blobs
from rationale_service.state.files import convert_os_errors, sync
from rationale_service.state.state import State

_ON_THE_WAY = ".publishing-"  # prefix of hidden folders in the repository
_BLOBS = "artifacts"  # the folder of the storage
_YOUNG_S = 60.0  # a copy may be newer than the records that were read


@dataclass(frozen=True)
class ArtifactStore:
    """The folder of entries, the state in whose folder they are made, and the machines' shared storage.

    Attributes:
        repository: folder of the entries: the model repository, or one of copies alone.
    """

    repository: Path
    state: State
    blobs: Blobs | None = None

    def served(self, entry: str) -> bool:
        """Tell whether an entry is in the repository."""
        return (self.repository / entry).is_dir()

    def staging(self) -> Path:
        """Return a new folder for making an entry; `discard` it in the end."""
        return self.state.new_staging()

    def discard(self, folder: Path) -> None:
        """Delete a staging folder; the next start sweeps any remains."""
        shutil.rmtree(folder, ignore_errors=True)

    def keep(self, folder: Path, digest: str) -> str:
        """Store an entry for other machines, if there are any; return the digest of its file.

        Raises:
            StateUnavailableError: if it cannot be written.
        """
        if self.blobs is None:
            return ""
        file = folder.parent / f"{folder.name}.tar"
        with convert_os_errors("the entry"), tarfile.open(file, "w") as archive:
            archive.add(folder, folder.name)
        digest_of_file = _sha256(file)
        self.blobs.put(_blob(digest), file)
        file.unlink()
        return digest_of_file

    def publish(self, folder: Path) -> None:
        """Move an entry into the repository, through a copy if that is on another disk.

        Raises:
            StateUnavailableError: if it cannot be written; nothing has changed then.
        """
        aside = self.repository / f"{_ON_THE_WAY}{folder.name}"
        with convert_os_errors("the entry"):
            self.repository.mkdir(parents=True, exist_ok=True)
            _delete(aside)
            try:
                shutil.move(folder, aside)
                sync_folder(aside)
                aside.rename(self.repository / folder.name)
            finally:
                self.discard(aside)
            sync(self.repository)

    def fetch(self, artifact: Artifact) -> bool:
        """Fetch another machine's entry into the repository; return False if there is none.

        Raises:
            StateUnavailableError: if it cannot be read or written, or differs from the recorded one.
        """
        if self.blobs is None or self.served(artifact.entry):
            return self.served(artifact.entry)
        folder = self.staging()
        try:
            file = folder / "entry.tar"
            if not self.blobs.get(_blob(artifact.digest), file):
                return False
            if _sha256(file) != artifact.sha256:
                raise StateUnavailableError(
                    f"the artifact of {artifact.entry} differs from the recorded file: delete the "
                    "explainer and PUT it again"
                )
            with convert_os_errors("the entry"):
                _unpack(file, folder)
            self.publish(folder / artifact.entry)
        finally:
            self.discard(folder)
        return True

    def read(self, artifact: Artifact) -> Entry:
        """Return the entry; fetch it if it is missing. Raises as `fetch`, and RepositoryError."""
        self.fetch(artifact)
        return read_entry(self.repository / artifact.entry)

    def remove(self, artifact: Artifact) -> None:
        """Delete an entry and its references for all machines."""
        if self.blobs is not None:
            self.blobs.remove(_blob(artifact.digest))
        self.remove_here(artifact.entry)

    def forget(self, artifact: Artifact) -> None:
        """Delete this machine's copy of an entry that another machine has removed."""
        if self.blobs is not None:
            self.remove_here(artifact.entry)

    def remove_here(self, entry: str) -> None:
        """Delete an entry of the repository; rename it first, so that no reader sees a part of it."""
        folder, aside = self.repository / entry, self.repository / f"{_ON_THE_WAY}gone-{entry}"
        with convert_os_errors("the entry"):
            _delete(aside)
            try:
                folder.rename(aside)
            except FileNotFoundError:
                return
            _delete(aside)

    def sweep(self, artifacts: Collection[Artifact]) -> None:
        """Delete entries that an earlier gateway left half made or half deleted."""
        self.state.sweep()
        leases = self.state.leases()
        busy = {
            f"{_ON_THE_WAY}{artifact.entry}" for artifact in artifacts if lease_of(artifact.digest) in leases
        }
        with convert_os_errors("the entry"):
            for path in self.repository.glob(f"{_ON_THE_WAY}*"):
                if path.name not in busy:
                    _delete(path)
        if self.blobs is not None:
            self._sweep_copies({artifact.entry for artifact in artifacts})
            if not self.state.behind(sys.maxsize):  # no other process makes one
                names = {_blob(artifact.digest) for artifact in artifacts}
                for name in self.blobs.names(_BLOBS):
                    if f"{_BLOBS}/{name}" not in names:
                        self.blobs.remove(f"{_BLOBS}/{name}")

    def _sweep_copies(self, names: Collection[str]) -> None:
        """Delete copies of entries that others removed while this machine did not follow."""
        if self.repository != copies_in(self.state) or not self.repository.is_dir():
            return
        with convert_os_errors("the entry"):
            for path in self.repository.iterdir():
                if path.name not in names and path.stat().st_mtime < time.time() - _YOUNG_S:
                    _delete(path)


def copies_in(state: State) -> Path:
    """Return the folder of a machine's copies of shared entries."""
    return state.folder / "entries"


def _blob(digest: str) -> str:
    return f"{_BLOBS}/{digest}.tar"


def _sha256(file: Path) -> str:
    with file.open("rb") as read:
        return hashlib.file_digest(read, "sha256").hexdigest()


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _unpack(file: Path, folder: Path) -> None:
    """Unpack an entry whose digest is the recorded one.

    The digest is the only safeguard in Python before 3.11.4 (Debian 12), which has no filter.
    """
    safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(file) as archive:
        archive.extractall(folder, **safely)  # noqa: S202
