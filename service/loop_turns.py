"""How far the event loop is behind: where small requests come too fast, it is the loop that they wait for."""

import asyncio


class LoopTurns:
    """Measures the loop's turns by what happens in them: no timer, and a microsecond for each question.

    All that is ready at the beginning of a turn runs in it, one after the other. What runs late in a turn has
    waited since the turn began, and may have arrived while the one before ran.
    """

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._last_s = 0.0

    def behind_s(self) -> float:
        """Seconds that whoever asks may have waited for its turn on the loop."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if self._began_s is None:
            self._began_s = now_s
            loop.call_soon(self._end)
        return self._last_s + now_s - self._began_s

    def _end(self) -> None:
        loop = asyncio.get_running_loop()
        if self._began_s is not None:
            self._last_s = loop.time() - self._began_s
            self._began_s = None
            if self._last_s > 0:
                loop.call_soon(self._forget, self._last_s)

    def _forget(self, last_s: float) -> None:
        """A turn in which nobody asked was short enough."""
        if self._began_s is None and self._last_s == last_s:
            self._last_s = 0.0
