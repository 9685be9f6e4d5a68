"""What is read again when it changes on the disk: keys, certificates, the model repository."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from rationale.errors import RationaleError

log = logging.getLogger(__name__)

INTERVAL_S = 2.0


@dataclass(frozen=True)
class Watched:
    """What is read again when it has changed.

    Attributes:
        look: gives another value when there is something to read again. May block, and raise OSError.
        read: reads it again. Where that fails it reports so itself, and what was read before stays.
        interval_s: between two looks; None: it is read again when somebody requests it, and not otherwise.
    """

    look: Callable[[], object]
    read: Callable[[], Awaitable[None]]
    interval_s: float | None = INTERVAL_S


def watched_files(files: tuple[Path, ...], read: Callable[[], None]) -> Watched:
    """By the files' times, which also show that a mounted secret's link was turned over."""
    names = ", ".join(map(str, files))

    async def read_again() -> None:
        try:
            read()
        except RationaleError as error:
            log.error("changed files are not taken up: %s", error)
        else:
            log.warning("taken up again: %s", names)

    return Watched(lambda: [_stamp(file) for file in files], read_again)


async def watch(watched: Watched) -> None:
    """Read again what has changed and then stayed for an interval: it may be on its way to the disk."""
    if watched.interval_s is None:
        return
    read = last = await _found(watched)
    while True:
        await asyncio.sleep(watched.interval_s)
        found = await _found(watched)
        if found is None:
            continue
        if found == last != read:
            read = found
            await watched.read()
        last = found


async def _found(watched: Watched) -> object:
    """Return what there is to see; None where that cannot be looked at."""
    try:
        return await asyncio.to_thread(watched.look)
    except OSError as error:
        log.error("cannot be looked at: %s", error)
        return None


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        state = file.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino
