"""Files for a user, in a folder that the user named: each is written whole or not at all."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from compiler.errors import InvalidOptionError


def check_folder(folder: Path) -> None:
    """Raise InvalidOptionError where files could not be written, before minutes are spent on them."""
    there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise InvalidOptionError(f"--out {folder}: {there} is not a folder that can be written to.")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a file to write, which takes the place of `path` at the end.

    Raises:
        InvalidOptionError: it cannot be written.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        with tempfile.TemporaryDirectory(prefix=".rationale-", dir=path.parent) as aside:
            part = Path(aside) / path.name
            yield part
            part.replace(path)
    except OSError as error:
        raise InvalidOptionError(f"{path}: cannot be written: {error.strerror or error}.") from error


def write(folder: Path, contents: Mapping[str, bytes], flag: str = "--out") -> None:
    """Write each file whole or not at all; errors name the flag.

    Raises:
        InvalidOptionError: the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".rationale-", dir=folder) as aside:
            for name, content in contents.items():
                (Path(aside) / name).write_bytes(content)
            for name in contents:
                (Path(aside) / name).replace(folder / name)
    except OSError as error:
        raise InvalidOptionError(f"{flag} {folder}: cannot be written: {error.strerror or error}.") from error
