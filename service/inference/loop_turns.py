"""How far the event loop is behind: where small requests come too fast, it is the loop that they wait for."""

import asyncio

_REMEMBERED_S = 1.0  # of the loop's own time
_LONGEST_TURN_S = 0.1  # more of one turn is something else's: it says little about the answers after it
_FEWEST = 8  # answers that tell what one takes


class LoopTurns:
    """Measures the loop's turns by what happens in them: no timer, and a microsecond for each question.

    All that is ready at the beginning of a turn runs in it, one after the other. What runs late in a turn has
    waited since the turn began, and may have arrived while the one before ran.
    """

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._last_s = 0.0
        self._ended = 0  # answers in this turn
        self._answers = 0.0  # of late, and the seconds of the loop in which they were given
        self._seconds = 0.0

    def ended(self) -> None:
        """Counts an answer."""
        self._ended += 1

    def answer_s(self) -> float:
        """What the loop has lately taken for each answer, refusals in between included; 0.0 if unknown."""
        return self._seconds / self._answers if self._answers >= _FEWEST else 0.0

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
            self._learn(min(self._last_s, _LONGEST_TURN_S))
            if self._last_s > 0:
                loop.call_soon(self._forget, self._last_s)

    def _learn(self, turn_s: float) -> None:
        kept = 1 - turn_s / _REMEMBERED_S
        self._seconds = kept * self._seconds + turn_s
        self._answers = kept * self._answers + self._ended
        self._ended = 0

    def _forget(self, last_s: float) -> None:
        """A turn in which nobody asked was short enough."""
        if self._began_s is None and self._last_s == last_s:
            self._last_s = 0.0
