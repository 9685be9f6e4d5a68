"""Where compiled entries lie: served from the repository, or kept in the state's folder for who asks again.

An entry is made aside, put on the disk, and moved by one rename: whoever looks sees all of it or nothing.
Every method blocks.
"""

import errno
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from service.errors import StateUnavailableError
from service.explainers.records import Artifact
from service.explainers.worker import synced
from service.storage import Storage, sync

_ON_THE_WAY = ".publishing-"  # hidden folders of the repository, which nobody reads


@dataclass(frozen=True)
class ArtifactStore:
    """The repository and the folders of the state that hold entries.

    Attributes:
        kept_bytes: of entries that are kept without being served.
    """

    repository: Path
    state: Storage
    kept_bytes: int

    def served(self, entry: str) -> Path | None:
        """Its folder in the repository, if it is there."""
        return _folder(self.repository / entry)

    def kept(self, entry: str) -> Path | None:
        """Its folder in the state, if it is there."""
        return _folder(self.state.artefacts / entry)

    def staging(self) -> Path:
        """A new folder in which an entry can be made; `discard` it in the end."""
        self.state.open()
        with _told():
            return Path(tempfile.mkdtemp(dir=self.state.staging))

    def discard(self, folder: Path) -> None:
        """What cannot be deleted now is swept at the next start."""
        shutil.rmtree(folder, ignore_errors=True)

    def publish(self, made: Path, entry: str) -> Path:
        """Moves an entry into the repository, from where it was made or kept.

        Raises:
            StateUnavailableError: it cannot be written; nothing has changed then.
        """
        with _told():
            return _move(made, self.repository / entry)

    def withdraw(self, entry: str) -> None:
        """Keeps an entry that is served no more. No error where it is not in the repository."""
        with _told():
            found = self.served(entry)
            if found is not None:
                _delete(self.state.artefacts / entry)
                _move(found, self.state.artefacts / entry)

    def remove(self, entry: str) -> None:
        """Deletes an entry wherever it lies, with the references in it."""
        with _told():
            for folder in (self.repository / entry, self.state.artefacts / entry):
                _delete(folder)

    def surplus(self, known: Iterable[Artifact]) -> list[Artifact]:
        """Which of those that are kept must go, so that the rest fit: least recently used first."""
        kept = sorted((one for one in known if self.kept(one.entry)), key=lambda one: one.used_s)
        total = sum(one.size for one in kept)
        gone = []
        for one in kept:
            if total <= self.kept_bytes:
                break
            gone.append(one)
            total -= one.size
        return gone

    def recover(self, known: Iterable[Artifact], served: Iterable[str]) -> list[Artifact]:
        """Puts the folders in the order that the records say, after whatever happened; those that are there.

        What was half made is swept. Entries of the repository that no record knows are not ours.

        Args:
            known: every artefact that is recorded.
            served: digests of those that explainers use.
        """
        wanted = set(served)
        with _told():
            for left in (*self.state.staging.iterdir(), *self.repository.glob(f"{_ON_THE_WAY}*")):
                _delete(left)
            present = []
            for one in known:
                if one.digest in wanted and not self.served(one.entry) and self.kept(one.entry):
                    self.publish(self.state.artefacts / one.entry, one.entry)
                if one.digest not in wanted:
                    self.withdraw(one.entry)
                if self.served(one.entry) or self.kept(one.entry):
                    present.append(one)
            names = {one.entry for one in present}
            for folder in self.state.artefacts.iterdir():
                if folder.name not in names:
                    _delete(folder)
        return present


def _folder(path: Path) -> Path | None:
    return path if path.is_dir() else None


def _move(source: Path, target: Path) -> Path:
    """One rename, on the disk when this returns; by a copy where the folders are on different disks."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(source, target)
        _delete(source)
    sync(target.parent)
    return target


def _copy(source: Path, target: Path) -> None:
    aside = target.with_name(f"{_ON_THE_WAY}{target.name}")
    _delete(aside)
    try:
        shutil.copytree(source, aside)
        synced(aside)
        aside.rename(target)
    except BaseException:
        with suppress(OSError):
            _delete(aside)
        raise


def _delete(path: Path) -> None:
    """A folder is renamed first, so that nobody meets a part of it."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    aside = path.with_name(f"{_ON_THE_WAY}gone-{path.name}")
    if path.name.startswith(_ON_THE_WAY):
        aside = path
    else:
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
    shutil.rmtree(aside)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateUnavailableError(
            f"the entry cannot be written: {error.strerror or type(error).__name__}"
        ) from error
