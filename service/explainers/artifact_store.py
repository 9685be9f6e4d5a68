"""Where compiled entries lie: made in the state's folder, served from the repository.

An entry is made aside, put on the disk, and moved by one rename: whoever looks sees all of it or nothing.
Every method blocks.
"""

import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from service.explainers.worker import synced
from service.storage import Storage, sync, told

_ON_THE_WAY = ".publishing-"  # hidden folders of the repository, which nobody reads


@dataclass(frozen=True)
class ArtifactStore:
    """The repository, and the folder of the state in which its entries are made."""

    repository: Path
    state: Storage

    def served(self, entry: str) -> bool:
        """Tell whether it is in the repository."""
        return (self.repository / entry).is_dir()

    def staging(self) -> Path:
        """Return a new folder in which an entry can be made; `discard` it in the end."""
        self.state.open()
        with told("the entry"):
            return Path(tempfile.mkdtemp(dir=self.state.staging))

    def discard(self, folder: Path) -> None:
        """Delete a staging folder; what cannot be deleted now is swept at the next start."""
        shutil.rmtree(folder, ignore_errors=True)

    def publish(self, made: Path) -> None:
        """Move an entry into the repository, by a copy where that is on another disk.

        Raises:
            StateUnavailableError: it cannot be written; nothing has changed then.
        """
        aside = self.repository / f"{_ON_THE_WAY}{made.name}"
        with told("the entry"):
            _delete(aside)
            try:
                shutil.move(made, aside)
                synced(aside)
                aside.rename(self.repository / made.name)
            finally:
                self.discard(aside)
            sync(self.repository)

    def remove(self, entry: str) -> None:
        """Delete an entry, with the references in it. It is renamed first: nobody reads a part of it."""
        folder, aside = self.repository / entry, self.repository / f"{_ON_THE_WAY}gone-{entry}"
        with told("the entry"):
            _delete(aside)
            if folder.is_dir():
                folder.rename(aside)
                _delete(aside)

    def sweep(self) -> None:
        """Delete what was half made or half deleted when an earlier gateway ended."""
        with told("the entry"):
            left: Iterable[Path] = (
                *self.state.staging.iterdir(),
                *self.repository.glob(f"{_ON_THE_WAY}*"),
            )
            for path in left:
                _delete(path)


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
