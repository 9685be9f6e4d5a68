"""How often a caller may ask: a token bucket for each key."""

import math
import time
from collections.abc import Callable

from service.errors import RateLimitedError
from service.security.keys import Caller


class TokenBucket:
    """Lets `burst` requests through at once and `per_s` a second in the long run."""

    def __init__(self, per_s: float, burst: int, now_s: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._tokens = float(burst)
        self._at_s = now_s

    def take(self, now_s: float) -> float:
        """0 if a request may pass, else the seconds until one may."""
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._tokens < 1:
            return (1 - self._tokens) / self._per_s
        self._tokens -= 1
        return 0.0


class RateLimits:
    """The buckets of all callers. Those without a key share one.

    Args:
        per_s: requests a second of a key that has no rate of its own; None does not limit.
        burst: requests at once of a key that says none; None: a second's worth.
    """

    def __init__(
        self, per_s: float | None, burst: int | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._buckets: dict[Caller, TokenBucket] = {}

    def check(self, caller: Caller) -> None:
        """Raises RateLimitedError, which says when to come back."""
        per_s = caller.requests_per_s or self._per_s
        if per_s is None:
            return
        now_s = self._clock()
        bucket = self._buckets.get(caller)
        if bucket is None:
            burst = caller.burst or self._burst or max(math.ceil(per_s), 1)
            bucket = self._buckets[caller] = TokenBucket(per_s, burst, now_s)
        wait_s = bucket.take(now_s)
        if wait_s:
            whose = f"key '{caller.name}'" if caller.name else "callers without a key"
            raise RateLimitedError(f"{whose} may send {per_s:g} requests a second", max(math.ceil(wait_s), 1))
