"""Work on large requests, in threads beside the event loop: reading and writing JSON, above all.

What is small is done at once: a thread costs more than it takes. Of what is very large one is done at a time,
so that the memory of one bounds that of all. Python threads share one lock, which a parser in C holds to its
end: what is given to these threads has to be bounded by its caller.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from service.errors import DeadlineError

MEDIUM = 64 << 10  # bytes: decoding so much JSON takes about 10 ms
LARGE = 1 << 20
_THREADS = 4

T = TypeVar("T")


class OffLoop:
    """Threads of one gateway, made when they are needed."""

    def __init__(self) -> None:
        self._medium = ThreadPoolExecutor(_THREADS, "medium-request")
        self._large = ThreadPoolExecutor(1, "large-request")

    async def run(self, size: int, work: Callable[[], T], deadline_s: float | None = None) -> T:
        """What `work` returns.

        Args:
            size: bytes that it reads or writes, by which it is done here or in a thread.
            deadline_s: on the event loop's clock, when its caller waits no longer. Work that has begun ends
                by itself; what has not never begins.

        Raises:
            DeadlineError, and what `work` raises.
        """
        if size <= MEDIUM:
            return work()
        threads = self._medium if size <= LARGE else self._large
        running = asyncio.get_running_loop().run_in_executor(threads, copy_context().run, work)
        try:
            async with asyncio.timeout_at(deadline_s):
                return await running
        except TimeoutError as error:
            raise DeadlineError(
                f"{size} bytes could not be read or written in time: send fewer rows, or binary tensors"
            ) from error
        finally:
            del work, running  # what is raised would keep them, and they the request

    def stop(self) -> None:
        """Begins nothing more."""
        for threads in (self._medium, self._large):
            threads.shutdown(wait=False, cancel_futures=True)
