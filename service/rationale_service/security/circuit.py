"""Whether another machine that failed is asked again: not for a while, then by one call, which finds out."""

import time
from collections.abc import Callable


class Circuit:
    """A circuit breaker: callers do not each wait for what does not answer."""

    def __init__(self, pause_s: float, count: Callable[[], None]) -> None:
        """Let all calls through.

        Args:
            pause_s: after a failure.
            count: called for each failure.
        """
        self._pause_s = pause_s
        self._count = count
        self._again_s: float | None = None  # when one call finds out

    def lets_through(self) -> bool:
        """Return whether to ask; whoever does reports `failed` or `answered`."""
        now_s = time.monotonic()
        if self._again_s is not None:
            if now_s < self._again_s:
                return False
            self._again_s = now_s + self._pause_s
        return True

    def failed(self) -> None:
        self._count()
        self._again_s = time.monotonic() + self._pause_s

    def answered(self) -> None:
        self._again_s = None
