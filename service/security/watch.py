"""Files that are read again when they change: certificates and keys."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from compiler.errors import RationaleError

log = logging.getLogger(__name__)

INTERVAL_S = 5.0


async def watch(
    actions: Mapping[tuple[Path, ...], Callable[[], None]], interval_s: float = INTERVAL_S
) -> None:
    """Runs an action when one of its files changes; what it raises goes to the log, and the old state stays.

    Looks at the files' times, so that it also sees a mounted secret whose link was turned over.
    """
    seen = {files: _stamp(files) for files in actions}
    while True:
        await asyncio.sleep(interval_s)
        for files, action in actions.items():
            found = _stamp(files)
            if found != seen[files]:
                seen[files] = found
                _run(action, files)


def _run(action: Callable[[], None], files: tuple[Path, ...]) -> None:
    names = ", ".join(map(str, files))
    try:
        action()
    except RationaleError as error:
        log.error("changed files are not taken up: %s", error)
    else:
        log.warning("taken up again: %s", names)


def _stamp(files: tuple[Path, ...]) -> list[tuple[int, int, int] | None]:
    return [_stamp_of(file) for file in files]


def _stamp_of(file: Path) -> tuple[int, int, int] | None:
    try:
        state = file.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino
