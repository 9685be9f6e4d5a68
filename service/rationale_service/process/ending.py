"""The end of a process, which does not wait for what hangs: a disk, a database, a storage that is frozen."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping

log = logging.getLogger(__name__)

_LEAST_S = 0.5  # of each step, where one before has used up the time


async def take_steps(steps: Mapping[str, Callable[[], Awaitable[object]]], limit_s: float) -> None:
    """Take each step of a stop, by name, in order; one that takes too long is left behind, and logged."""
    end_s = time.monotonic() + limit_s
    for name, step in steps.items():
        task = asyncio.ensure_future(step())
        await asyncio.wait([task], timeout=max(end_s - time.monotonic(), _LEAST_S))
        if not task.done():
            log.error("the stop does not wait any longer for %s", name)
        elif not task.cancelled() and (error := task.exception()) is not None:
            log.error("the stop of %s failed", name, exc_info=error)


class LastResort:
    """Ends the process if it has not ended by itself: Python waits for every thread, however long."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def set(self, seconds: float, status: int) -> None:
        """End the process in so many seconds with a status, and not when that was said before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(seconds, self._end, [status])
        self._timer.daemon = True
        self._timer.start()

    def _end(self, status: int) -> None:
        log.error("the process ends now: threads still wait for something that does not answer")
        os._exit(status)
