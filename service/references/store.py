"""Reference sets as resources: kept by their content, under any number of names.

They are rows of real people. A set's file, `STATE/references/DIGEST.npz`, is there as long as a name stands
for it; what was baked from it goes with it. What writes blocks.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compiler.references.archives import write_npz
from service.errors import UnknownResourceError
from service.references.formats import Rows, to_file
from service.storage import Storage, sync, told
from service.tensors import datatype_of

_KIND = "reference_set"  # of records


@dataclass(frozen=True)
class ReferenceSet:
    """A name, and the content it stands for.

    Attributes:
        digest: SHA-256 of the content.
        model: the one whose inputs it was checked against.
        inputs: by name {"datatype": …, "shape": [K, …]}.
        features: names of the columns, if it has some.
        size: of its file, bytes.
        created_s: since the epoch.
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

    def __init__(self, state: Storage, clock: Callable[[], float] = time.time) -> None:
        self._state = state
        self._clock = clock
        self._known: dict[str, ReferenceSet] | None = None  # as recorded
        self._leaving: set[str] = set()  # contents that nothing new may be made of

    def all(self) -> list[ReferenceSet]:
        """Return all by name. Reads the records the first time, and blocks then only; as `get`, `named`."""
        return [one for _, one in sorted(self._records().items())]

    def reread(self) -> None:
        """Forget what it knows: somebody else has written."""
        self._known = None

    def get(self, name: str) -> ReferenceSet:
        """Return the set of that name. Raises UnknownResourceError."""
        found = self._records().get(name)
        if found is None:
            raise UnknownResourceError(
                f"no reference set '{name[:80]}' here; GET /v2/reference-sets lists them"
            )
        return found

    def find(self, name: str, model: str) -> str:  # noqa: ARG002 (a compile tells whether it fits)
        """Return the digest of the content that a name stands for. Raises UnknownResourceError."""
        found = self.get(name)
        if found.digest in self._leaving:
            raise UnknownResourceError(f"reference set '{name[:80]}' is being deleted")
        return found.digest

    @contextmanager
    def leaving(self, digest: str) -> Iterator[None]:
        """Withhold a content while what was made of it is deleted: `find` and `path` know it no more."""
        self._leaving.add(digest)
        try:
            yield
        finally:
            self._leaving.discard(digest)

    def path(self, digest: str) -> Path:
        """Return the file of a content: an .npz as `rationale compile --references` takes it.

        Raises:
            UnknownResourceError: it was deleted.
        """
        path = self._file(digest)
        if digest in self._leaving or not path.is_file():
            raise UnknownResourceError(f"there is no reference set of digest {digest[:80]} any more")
        return path

    def put(self, name: str, model: str, rows: Rows) -> ReferenceSet:
        """Let `name` stand for this content; for another one before, whose file goes if nothing names it.

        Raises:
            StateUnavailableError: the disk; nothing has changed then.
        """
        digest = rows.digest
        before = self._records().get(name)
        size = self._write(digest, rows)
        described = {
            key: {"datatype": datatype_of(array), "shape": list(array.shape)}
            for key, array in rows.arrays.items()
        }
        made = ReferenceSet(
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
        self._state.write((_KIND, name, asdict(made)))
        self._records()[name] = made
        if before is not None:
            self._drop_unnamed(before.digest)
        return made

    def remove(self, name: str) -> None:
        """Forget the name, and delete the content where no other one stands for it."""
        found = self.get(name)
        self._state.write((_KIND, name, None))
        self._records().pop(name, None)
        self._drop_unnamed(found.digest)

    def named(self, digest: str) -> list[str]:
        """Return the names that stand for a content."""
        return [one.name for one in self.all() if one.digest == digest]

    def recover(self) -> None:
        """Delete files that no name stands for: what a crash left between a file and its record."""
        if self._state.is_owned and self._state.exists:
            known = {one.digest for one in self.all()}
            with told("the reference set"):
                for path in self._state.references.iterdir():
                    if path.stem not in known:
                        path.unlink(missing_ok=True)

    def _file(self, digest: str) -> Path:
        return self._state.references / f"{digest}.npz"

    def _records(self) -> dict[str, ReferenceSet]:
        if self._known is None:
            self._known = {row["name"]: ReferenceSet(**row) for row in self._state.read(_KIND)}
        return self._known

    def _write(self, digest: str, rows: Rows) -> int:
        """Write the content's file, on the disk as a whole when this returns; returns its bytes."""
        self._state.open()
        target = self._file(digest)
        with told("the reference set"):
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
            return target.stat().st_size

    def _drop_unnamed(self, digest: str) -> None:
        if not self.named(digest):
            with told("the reference set"):
                self._file(digest).unlink(missing_ok=True)
                sync(self._state.references)
