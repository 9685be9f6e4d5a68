"""Store of reference sets: each content once, under any number of names.

They are rows of real people. A set's file, `STATE/references/DIGEST.npz`, exists as long as a name refers to
it; explainers precomputed from it are deleted with it. Methods that write block.
"""

import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rationale.tables.archives import write_npz
from rationale_service.errors import StateUnavailableError, UnknownResourceError
from rationale_service.models.references.formats import ReferenceRows, to_file
from rationale_service.state.blobs import Blobs
from rationale_service.state.files import convert_os_errors, sync
from rationale_service.state.state import State
from rationale_service.tensors import datatype_of

KIND = "reference_set"  # kind of records
_YOUNG_S = 60.0  # another process may write a file before its record


@dataclass(frozen=True)
class StoredReferenceSet:
    """A name, and the content to which it refers.

    Attributes:
        digest: SHA-256 of the content.
        model: name of the model whose inputs it fits.
        inputs: inputs by name, each {"datatype": …, "shape": [K, …]}.
        features: names of the columns, if it has any.
        size: size of its file in bytes.
        created_s: time of creation, seconds since the epoch.
    """

    name: str
    digest: str
    model: str
    rows: int
    weighted: bool
    inputs: dict[str, Any]
    features: list[str] | None
    size: int
    created_s: float


class ReferenceSets:
    """The sets of one gateway."""

    def __init__(
        self, state: State, blobs: Blobs | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._state = state
        self._blobs = blobs
        self._clock = clock
        self._known: dict[str, StoredReferenceSet] | None = None  # recorded sets by name
        self._leaving: set[str] = set()  # contents being deleted
        self._coming: set[str] = set()  # contents without a record yet

    def all(self) -> list[StoredReferenceSet]:
        """Return all sets by name. Like `get` and `named`, it blocks only on the first call."""
        return [item for _, item in sorted(self._records().items())]

    def follow(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adopt the present records, also of other processes; delete local copies of removed sets. Blocks."""
        self._known = {row["name"]: StoredReferenceSet(**row) for row in rows}
        if self._blobs is not None and self._state.references.is_dir():
            self._delete_files(time.time())

    def get(self, name: str) -> StoredReferenceSet:
        """Return the set of that name. Raises UnknownResourceError."""
        reference_set = self._records().get(name)
        if reference_set is None:
            raise UnknownResourceError(
                f"no reference set '{name[:80]}' here; GET /v2/reference-sets lists them"
            )
        return reference_set

    def find(self, name: str, model: str) -> str:  # noqa: ARG002 (a compile tells whether it fits)
        """Return the digest of a name's content. Raises UnknownResourceError."""
        reference_set = self.get(name)
        if reference_set.digest in self._leaving:
            raise UnknownResourceError(f"reference set '{name[:80]}' is being deleted")
        return reference_set.digest

    @contextmanager
    def leaving(self, digest: str) -> Iterator[None]:
        """Withhold a content from `find` and `path` while its explainers are being deleted."""
        self._leaving.add(digest)
        try:
            yield
        finally:
            self._leaving.discard(digest)

    def path(self, digest: str) -> Path:
        """Return the file of a content: an .npz for `rationale compile --references`.

        Raises:
            UnknownResourceError: if it was deleted.
        """
        path = self._file(digest)
        if digest in self._leaving or not (path.is_file() or self._fetch(digest)):
            raise UnknownResourceError(f"there is no reference set of digest {digest[:80]} any more")
        return path

    def put(self, name: str, model: str, rows: ReferenceRows) -> StoredReferenceSet:
        """Let `name` refer to this content; delete its former content's file if that has no other name.

        Raises:
            StateUnavailableError: if the disk fails; nothing has changed then.
        """
        digest = rows.digest
        self._coming.add(digest)
        try:
            return self._put(name, model, rows)
        finally:
            self._coming.discard(digest)

    def _put(self, name: str, model: str, rows: ReferenceRows) -> StoredReferenceSet:
        digest = rows.digest
        self._known = None  # another process may have written
        before = self._records().get(name)
        size = self._write(digest, rows)
        described = {
            key: {"datatype": datatype_of(array), "shape": list(array.shape)}
            for key, array in rows.arrays.items()
        }
        reference_set = StoredReferenceSet(
            name=name,
            digest=digest,
            model=model,
            rows=rows.count,
            weighted=rows.weights is not None,
            inputs=described,
            features=None if rows.features is None else list(rows.features),
            size=size,
            created_s=before.created_s if before and before.digest == digest else self._clock(),
        )
        self._state.write((KIND, name, asdict(reference_set)))
        self._records()[name] = reference_set
        if before is not None:
            self._drop_unnamed(before.digest)
        return reference_set

    def remove(self, name: str) -> None:
        """Forget the name, and delete the content if it has no other name."""
        self._known = None  # another process may have written
        reference_set = self.get(name)
        self._state.write((KIND, name, None))
        self._records().pop(name, None)
        self._drop_unnamed(reference_set.digest)

    def named(self, digest: str) -> list[str]:
        """Return the names of a content."""
        return [item.name for item in self.all() if item.digest == digest]

    def recover(self) -> None:
        """Delete files without a name, which a crash left between writing a file and its record."""
        if self._state.exists and self._state.references.is_dir():
            try:
                self._delete_unnamed()
            except StateUnavailableError:
                if not self._state.is_remote:  # the gateway follows the database once it answers
                    raise

    def _delete_unnamed(self) -> None:
        """Delete files without a name, but spare young and shared ones while other replicas run."""
        has_others = self._state.behind(sys.maxsize)
        self._delete_files(time.time() - _YOUNG_S if has_others else math.inf)
        if self._blobs is not None and not has_others:
            digests = {item.digest for item in self.all()}
            for name in self._blobs.names("references"):
                if name.removesuffix(".npz") not in digests:
                    self._blobs.remove(f"references/{name}")

    def _delete_files(self, before_s: float) -> None:
        """Delete this machine's files of contents without a name, if they are old enough."""
        digests = {item.digest for item in self.all()} | self._coming
        with convert_os_errors("the reference set"):
            for path in self._state.references.iterdir():
                if path.stem not in digests and path.stat().st_mtime < before_s:
                    path.unlink(missing_ok=True)

    def _fetch(self, digest: str) -> bool:
        """Copy a content that another machine has stored; return False if there is none."""
        if self._blobs is None:
            return False
        folder = self._state.new_staging()
        try:
            file = folder / "rows.npz"
            if not self._blobs.get(_blob(digest), file):
                return False
            os.replace(file, self._file(digest))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return True

    def _file(self, digest: str) -> Path:
        return self._state.references / f"{digest}.npz"

    def _records(self) -> dict[str, StoredReferenceSet]:
        if self._known is None:
            self._known = {row["name"]: StoredReferenceSet(**row) for row in self._state.read(KIND)}
        return self._known

    def _write(self, digest: str, rows: ReferenceRows) -> int:
        """Write and flush the content's file, all of it or nothing; return its size in bytes."""
        self._state.open()
        target = self._file(digest)
        with convert_os_errors("the reference set"):
            if not target.is_file():
                handle, name = tempfile.mkstemp(dir=self._state.staging)
                try:
                    with os.fdopen(handle, "wb") as file:
                        write_npz(file, to_file(rows))
                        file.flush()
                        os.fsync(file.fileno())
                    os.replace(name, target)
                finally:
                    Path(name).unlink(missing_ok=True)
                sync(target.parent)
            size = target.stat().st_size
        if self._blobs is not None:
            self._blobs.put(_blob(digest), target)
        return size

    def _drop_unnamed(self, digest: str) -> None:
        if not self.named(digest):
            if self._blobs is not None:
                self._blobs.remove(_blob(digest))
            with convert_os_errors("the reference set"):
                self._file(digest).unlink(missing_ok=True)
                sync(self._state.references)


def _blob(digest: str) -> str:
    return f"references/{digest}.npz"
