"""Watch of things that change on the disk: keys, certificates, the model repository."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from rationale.errors import RationaleError

log = logging.getLogger(__name__)

INTERVAL_S = 2.0


@dataclass(frozen=True)
class WatchedSource:
    """A thing to read again when it has changed.

    Attributes:
        look: function whose value changes with the thing. May block, and raise OSError.
        read: function that reads it again. It reports a failure itself and then keeps the old content.
        interval_s: time between two looks; None to read it again only on request.
    """

    look: Callable[[], object]
    read: Callable[[], Awaitable[None]]
    interval_s: float | None = INTERVAL_S


def watched_files(files: tuple[Path, ...], read: Callable[[], None]) -> WatchedSource:
    """Watch files by their times, which also show that a mounted secret's link has changed."""
    names = ", ".join(map(str, files))

    async def read_again() -> None:
        try:
            read()
        except RationaleError as error:
            log.error("changed files are not used: %s", error)
        else:
            log.warning("read again: %s", names)

    return WatchedSource(lambda: [_stamp(file) for file in files], read_again)


async def watch(watched: WatchedSource) -> None:
    """Read a thing again after it has changed and then stayed the same for an interval."""
    if watched.interval_s is None:
        return
    read = last = await _look(watched)
    while True:
        await asyncio.sleep(watched.interval_s)
        now = await _look(watched)
        if now is None:
            continue
        if now == last != read:
            read = now
            await watched.read()
        last = now


async def _look(watched: WatchedSource) -> object:
    """Return the value of `look`; None if it raises OSError."""
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
