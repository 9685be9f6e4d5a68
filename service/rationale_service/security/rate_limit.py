"""Rate limits of callers: a fixed window for each key, counted here or in a Redis for all replicas."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rationale.distribution import install
from rationale.errors import InvalidOptionError
from rationale_service.errors import RateLimitedError
from rationale_service.security.circuit import Circuit
from rationale_service.security.keys import Caller

if TYPE_CHECKING:
    from limits import RateLimitItem
    from limits.aio.strategies import FixedWindowRateLimiter

log = logging.getLogger(__name__)

MEMORY = "memory://"
_REDIS_TIMEOUT_S = 0.25  # requests wait for it
_REDIS_PAUSE_S = 5.0  # pause before one request tests it again


class RateLimits:
    """The windows of all callers. Callers without a key share one.

    If Redis does not answer, this process counts by itself and tries again after a pause.

    Args:
        per_s: requests a second for a key without its own rate; None for no limit.
        burst: requests at once for a key without its own burst; None for a second's worth.
        storage: URL of the counters' storage.
        count: function that counts each failure of the storage.

    Raises:
        InvalidOptionError: if the package for that storage is not installed.
    """

    def __init__(
        self,
        per_s: float | None,
        burst: int | None,
        storage: str = MEMORY,
        count: Callable[[], None] = lambda: None,
    ) -> None:
        self.per_s = per_s
        self._burst = burst
        self._shared = None if storage == MEMORY else _limiter(storage)
        self._circuit = Circuit(_REDIS_PAUSE_S, count)
        self._own: FixedWindowRateLimiter | None = None

    async def check(self, caller: Caller) -> None:
        """Count a request. Raises RateLimitedError, which says when to come back."""
        per_s = caller.requests_per_s or self.per_s
        if per_s is None:
            return
        reset_s = await self._count(window_of(per_s, caller.burst or self._burst), caller.name)
        if reset_s is None:
            return
        sender = f"key '{caller.name}'" if caller.name else "callers without a key"
        wait_s = max(math.ceil(reset_s - time.time()), 1)
        raise RateLimitedError(f"{sender} may send {per_s:g} requests a second", wait_s)

    async def _count(self, item: RateLimitItem, name: str) -> float | None:
        """Count a request in a window. Return the window's end if it is full, else None."""
        from limits.errors import StorageError

        if self._shared is not None and self._circuit.lets_through():
            try:
                end_s = await _hit(self._shared, item, name)
            except StorageError as error:
                self._circuit.report_failure()
                log.warning("rates are counted by this process alone for %g s: %s", _REDIS_PAUSE_S, error)
            else:
                self._circuit.report_answer()
                return end_s
        self._own = self._own or _limiter(MEMORY)
        return await _hit(self._own, item, name)


async def _hit(limiter: FixedWindowRateLimiter, item: RateLimitItem, name: str) -> float | None:
    return None if await limiter.hit(item, name) else (await limiter.get_window_stats(item, name)).reset_time


def window_of(per_s: float, burst: int | None) -> RateLimitItem:
    """Return the shortest window of whole seconds for `burst` requests, and `per_s` in the long run."""
    from limits import RateLimitItemPerSecond

    burst = burst or math.ceil(per_s)
    seconds = math.ceil(burst / per_s)
    return RateLimitItemPerSecond(max(burst, math.floor(per_s * seconds)), seconds, "rationale")


def _limiter(storage: str) -> FixedWindowRateLimiter:
    """Create the limiter; imported here because `limits` takes 30 ms of a start."""
    from limits.aio.strategies import FixedWindowRateLimiter
    from limits.errors import ConfigurationError
    from limits.storage import storage_from_string

    options: dict[str, str | float] = {}
    if storage != MEMORY:
        options = {
            "implementation": "redispy",
            "socket_timeout": _REDIS_TIMEOUT_S,
            "socket_connect_timeout": _REDIS_TIMEOUT_S,
        }
    try:
        counters = storage_from_string(f"async+{storage}", wrap_exceptions=True, **options)
    except ConfigurationError as error:
        raise InvalidOptionError(
            f"rate limits in a Redis need `{install('redis')}`, and setting rate_limit_storage an "
            f"address such as redis://HOST:6379: {error}"
        ) from error
    return FixedWindowRateLimiter(counters)
