"""The end of a process, even if a disk, a database or a storage hangs."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping

log = logging.getLogger(__name__)

_LEAST_S = 0.5  # least time of each step, even after the limit


async def take_steps(steps: Mapping[str, Callable[[], Awaitable[object]]], limit_s: float) -> None:
    """Run the named steps of a stop in order; log and abandon each one that takes too long."""
    end_s = time.monotonic() + limit_s
    for name, step in steps.items():
        task = asyncio.ensure_future(step())
        await asyncio.wait([task], timeout=max(end_s - time.monotonic(), _LEAST_S))
        if not task.done():
            log.error("the stop does not wait any longer for %s", name)
        elif not task.cancelled() and (error := task.exception()) is not None:
            log.error("the stop of %s failed", name, exc_info=error)


class LastResort:
    """Timer that ends a process which has not ended by itself: Python waits for every thread."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def set(self, seconds: float, status: int) -> None:
        """End the process in `seconds` with an exit status; this replaces an earlier time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(seconds, self._end, [status])
        self._timer.daemon = True
        self._timer.start()

    def _end(self, status: int) -> None:
        log.error("the process ends now: threads still wait for something that does not answer")
        os._exit(status)
