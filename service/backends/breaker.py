"""Keeps requests from a server that does not answer; lets one through now and then, to see if it does."""

import time
from collections.abc import Callable

_FAILURES = 5  # in a row, until nobody is sent there any more
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 4.0


class CircuitBreaker:
    """Closed: every request goes. Open: none does, until a pause is over. Half open: one goes, the probe.

    What the probe finds decides: closed again, or open for twice as long.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._pause_s = _FIRST_PAUSE_S
        self._until_s = 0.0  # when the next probe may go
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Whether a request that came now would be turned away. Changes nothing."""
        return self._failures >= _FAILURES and (self._probing or self._clock() < self._until_s)

    @property
    def retry_after_s(self) -> float:
        return max(self._until_s - self._clock(), 0.0)

    def try_pass(self) -> bool:
        """Whether this request may go; every one that goes reports `succeeded`, `failed` or `left`."""
        if self.is_open:
            return False
        if self._failures >= _FAILURES:
            self._probing = True
        return True

    def succeeded(self) -> None:
        """The server answered, if only with a refusal."""
        self._failures = 0
        self._pause_s = _FIRST_PAUSE_S
        self._probing = False

    def failed(self) -> None:
        """The server could not be reached, or did not answer."""
        self._failures += 1
        if self._failures < _FAILURES:
            return
        if self._probing or self._failures == _FAILURES:  # what was under way already says nothing new
            self._until_s = self._clock() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self._probing = False

    def left(self) -> None:
        """The caller left before anything was known."""
        self._probing = False
