"""Files that machines share, in a folder or in a bucket of any object storage that fsspec knows.

Names derive from the content, so that a file is written once and never changed.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rationale.distribution import install
from rationale.errors import InvalidOptionError
from rationale_service.errors import StateUnavailableError

_ANSWER_S = 15.0
_SLOWEST = 1e6  # bytes a second


class Blobs:
    """The storage at `RATIONALE_ARTIFACTS`. Every method blocks, and may raise StateUnavailableError."""

    def __init__(self, url: str, count: Callable[[], None] = lambda: None) -> None:
        """Name the storage without connecting to it.

        Args:
            count: function that counts each failure.

        Raises:
            InvalidOptionError: if `url` names no storage, or its library is not installed.
        """
        self._count = count
        try:
            from fsspec.core import url_to_fs  # type: ignore[import-untyped]

            self._files, self._root = url_to_fs(url)
            self._is_local = "file" in self._files.protocol
        except (ImportError, ValueError) as error:
            raise InvalidOptionError(
                "setting artifacts (RATIONALE_ARTIFACTS) must be a URL such as s3://BUCKET/FOLDER or "
                f"file:///FOLDER, and needs a package: {install('s3')}, or fsspec's for it: {error}"
            ) from error

    def put(self, name: str, file: Path) -> None:
        """Store a file under a name; readers see all of it or nothing."""
        with self._errors_reported():
            target = self._key(name)
            if self._is_local:
                self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
                self._files.put_file(str(file), f"{target}.part")
                self._files.mv(f"{target}.part", target)
            else:  # an object appears only when complete
                self._files.put_file(str(file), target, **self._limit(file.stat().st_size))

    def get(self, name: str, file: Path) -> bool:
        """Copy the stored file of this name into `file`; return False if there is none."""
        with self._errors_reported():
            try:
                info = self._files.info(self._key(name), **self._limit())
                self._files.get_file(self._key(name), str(file), **self._limit(info["size"]))
            except FileNotFoundError:
                return False
        return True

    def remove(self, name: str) -> None:
        """Delete the stored file of this name, if any."""
        with self._errors_reported(), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._key(name), **self._limit())

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        with self._errors_reported():
            self._files.invalidate_cache()
            try:
                paths: list[Any] = self._files.ls(self._key(folder), detail=False, **self._limit())
            except FileNotFoundError:
                return []
        return [str(path).rpartition("/")[2] for path in paths]

    def _limit(self, size: int = 0) -> dict[str, float]:
        """Return the time limit of a call that moves `size` bytes, if fsspec can limit it."""
        return {"timeout": _ANSWER_S + size / _SLOWEST} if self._files.async_impl else {}

    def _key(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    @contextlib.contextmanager
    def _errors_reported(self) -> Iterator[None]:
        try:
            yield
        except StateUnavailableError:
            raise
        except Exception as error:  # each storage has its own errors
            self._count()
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise StateUnavailableError(f"the artifacts cannot be read or written: {lines[0]}") from error
