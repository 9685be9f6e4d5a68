"""A circuit breaker for calls to another machine: after a failure a pause, then one call as a test."""

import time
from collections.abc import Callable


class Circuit:
    """A circuit breaker: after a failure, callers do not each wait for a machine that does not answer."""

    def __init__(self, pause_s: float, count: Callable[[], None]) -> None:
        """Let all calls through.

        Args:
            pause_s: pause after a failure.
            count: function that counts each failure.
        """
        self._pause_s = pause_s
        self._count = count
        self._again_s: float | None = None  # time of the next test call

    def lets_through(self) -> bool:
        """Tell whether to make a call; its caller then calls `report_failure` or `report_answer`."""
        now_s = time.monotonic()
        if self._again_s is not None:
            if now_s < self._again_s:
                return False
            self._again_s = now_s + self._pause_s
        return True

    def report_failure(self) -> None:
        self._count()
        self._again_s = time.monotonic() + self._pause_s

    def report_answer(self) -> None:
        self._again_s = None
