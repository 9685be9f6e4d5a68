"""How often a caller may ask: a fixed window for each key, counted here or in a Redis for all replicas."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from rationale.distribution import install
from rationale.errors import InvalidOptionError
from rationale_service.errors import RateLimitedError
from rationale_service.security.keys import Caller

if TYPE_CHECKING:
    from limits import RateLimitItem
    from limits.aio.strategies import FixedWindowRateLimiter

log = logging.getLogger(__name__)

MEMORY = "memory://"
_REDIS_TIMEOUT_S = 0.25  # requests wait for it


class RateLimits:
    """The windows of all callers. Those without a key share one.

    Args:
        per_s: requests a second of a key that has no rate of its own; None does not limit.
        burst: requests at once of a key that says none; None: a second's worth.
        storage: where they are counted, as a URL.

    Raises:
        InvalidOptionError: the package for that storage is not installed.
    """

    def __init__(self, per_s: float | None, burst: int | None, storage: str = MEMORY) -> None:
        self.per_s = per_s
        self._burst = burst
        self._limiter = None if storage == MEMORY else _limiter(storage)

    async def check(self, caller: Caller) -> None:
        """Count a request. Raises RateLimitedError, which says when to come back."""
        per_s = caller.requests_per_s or self.per_s
        if per_s is None:
            return
        from limits.errors import StorageError

        self._limiter = self._limiter or _limiter(MEMORY)
        item = window_of(per_s, caller.burst or self._burst)
        try:
            if await self._limiter.hit(item, caller.name):
                return
            reset_s = (await self._limiter.get_window_stats(item, caller.name)).reset_time
        except StorageError as error:
            log.warning("rates are not limited now: %s", error)
            return
        whose = f"key '{caller.name}'" if caller.name else "callers without a key"
        wait_s = max(math.ceil(reset_s - time.time()), 1)
        raise RateLimitedError(f"{whose} may send {per_s:g} requests a second", wait_s)


def window_of(per_s: float, burst: int | None) -> RateLimitItem:
    """Return the shortest window of whole seconds for `burst` requests, and `per_s` in the long run."""
    from limits import RateLimitItemPerSecond

    burst = burst or math.ceil(per_s)
    seconds = math.ceil(burst / per_s)
    return RateLimitItemPerSecond(max(burst, math.floor(per_s * seconds)), seconds, "rationale")


def _limiter(storage: str) -> FixedWindowRateLimiter:
    """Import the limiter, where rates are limited: `limits` is 30 ms of a start."""
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
        found = storage_from_string(f"async+{storage}", wrap_exceptions=True, **options)
    except ConfigurationError as error:
        raise InvalidOptionError(
            f"rate limits in a Redis need `{install('redis')}`, and setting rate_limit_storage an "
            f"address such as redis://HOST:6379: {error}"
        ) from error
    return FixedWindowRateLimiter(found)
