"""A budget of compute threads over all entries of this process, predictions first."""

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
    """Budget that lets about `cores` threads compute at once.

    A prediction waits for other predictions alone, never for an explanation; the operating system shares the
    cores between both. An explanation begins if neither kind uses the threads that it needs and no prediction
    waits; one explanation may always run, so that predictions cannot starve them.
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self._used = {True: 0, False: 0}  # used threads; True: by predictions
        self._waiting: dict[bool, deque[_Turn]] = {True: deque(), False: deque()}

    @contextlib.asynccontextmanager
    async def turn(self, threads: int, *, prediction: bool) -> AsyncIterator[None]:
        """Wait for `threads` of the budget (at most all of it) and hold them."""
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
        """Tell whether no run waits, so that a run may keep its turn for the next one."""
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
