"""Files that survive a crash of the machine, and errors for failed writes."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from rationale_service.errors import StateUnavailableError


def sync(folder: Path) -> None:
    """Flush a folder, so that the names in it survive a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def convert_os_errors(name: str) -> Iterator[None]:
    """Convert an OSError → an error for the caller. Its cause stays in the log's traceback."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StateUnavailableError(f"{name} cannot be written: {reason}") from error
