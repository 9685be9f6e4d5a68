"""Who may compute now: a budget of threads over all entries of this process, predictions first."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass(eq=False)
class _Turn:
    threads: int
    granted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class CpuSlots:
    """Lets runs begin so that about `cores` threads compute at once.

    A prediction waits for other predictions alone: it never stands behind an explanation, with whose threads
    it then shares the cores as the operating system sees fit. An explanation begins when its threads are free
    of both and no prediction waits; one may always run, so that predictions cannot starve them.
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self._used = {True: 0, False: 0}  # threads, by whether the run is a prediction's
        self._waiting: dict[bool, deque[_Turn]] = {True: deque(), False: deque()}

    @contextlib.asynccontextmanager
    async def turn(self, threads: int, *, prediction: bool) -> AsyncIterator[None]:
        """Wait for `threads` of the budget (never for more than all of it) and hold them."""
        threads = min(threads, self.cores)
        if not self._waiting[prediction] and self._fits(threads, prediction):
            self._used[prediction] += threads
        else:
            await self._wait(threads, prediction)
        try:
            yield
        finally:
            self._used[prediction] -= threads
            self._grant()

    def has_nobody_waiting(self) -> bool:
        """Return whether whoever has a turn may keep it for another run."""
        return not any(self._waiting.values())

    async def _wait(self, threads: int, prediction: bool) -> None:
        turn = _Turn(threads)
        self._waiting[prediction].append(turn)
        try:
            await turn.granted
        except asyncio.CancelledError:
            if turn in self._waiting[prediction]:
                self._waiting[prediction].remove(turn)
            else:  # granted and cancelled in one turn of the event loop
                self._used[prediction] -= threads
            self._grant()
            raise

    def _fits(self, threads: int, prediction: bool) -> bool:
        if prediction:
            return self._used[True] + threads <= self.cores
        if not self._used[False]:
            return True
        return not self._waiting[True] and sum(self._used.values()) + threads <= self.cores

    def _grant(self) -> None:
        for prediction in (True, False):
            waiting = self._waiting[prediction]
            while waiting and self._fits(waiting[0].threads, prediction):
                turn = waiting.popleft()
                self._used[prediction] += turn.threads
                if not turn.granted.done():
                    turn.granted.set_result(None)
