"""Files written atomically, and one writer at a time."""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rationale.errors import InvalidOptionError

if sys.platform != "win32":
    import fcntl


def check_folder(folder: Path) -> None:
    """Raise InvalidOptionError early if files could not be written: the work for them takes minutes."""
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InvalidOptionError(f"--out {folder}: {existing} is not a folder with write permission.")


@contextmanager
def hold_lock(target: Path | BinaryIO, busy: str | None = None) -> Iterator[bool]:
    """Let one process at a time into a folder or an open file, and yield whether others are kept out.

    The lock ends with the process, however that ends. A file system without locks (Windows, NFS for
    folders, some clusters' storage) lets everyone in and yields False. A refusal would stop single writers,
    who are the most common. So every caller renames its files into place: of two writers at once, the last
    one's files stay, or one of them fails.

    Args:
        busy: the message that refuses the user while another process is in; without it, wait for that one.

    Raises:
        InvalidOptionError: if another process is in.
        OSError: if the folder cannot be opened.
    """
    if sys.platform == "win32":
        yield False
    elif isinstance(target, Path):
        handle = os.open(target, os.O_RDONLY)
        try:
            yield _lock(handle, busy)
        finally:
            os.close(handle)
    else:
        yield _lock(target.fileno(), busy)


def _lock(handle: int, busy: str | None) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if busy is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InvalidOptionError(str(busy)) from error
    except OSError:
        return False
    return True


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a file to write, which takes the place of `path` at the end.

    Raises:
        InvalidOptionError: if it cannot be written.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        with tempfile.TemporaryDirectory(prefix=".rationale-", dir=path.parent) as aside:
            file = Path(aside) / path.name
            yield file
            file.replace(path)
    except OSError as error:
        raise InvalidOptionError(f"{path}: cannot be written: {error.strerror or error}.") from error


def write(folder: Path, contents: Mapping[str, bytes], flag: str = "--out") -> None:
    """Write each file atomically; errors name the flag.

    Raises:
        InvalidOptionError: if the folder cannot be created or written.
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
