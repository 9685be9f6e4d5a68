"""What every request passes, by HTTP and gRPC alike: who asks, may they, how often; what is noted of it."""

import contextlib
import http
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from service.errors import ServiceError
from service.observability import context as exchanges
from service.observability.context import CLIENT_LEFT, RequestContext
from service.observability.logs import log_access
from service.observability.metrics import Metrics
from service.observability.tracing import Tracing
from service.security.keys import Keyring, Scopes
from service.security.rate_limit import RateLimits


@dataclass(eq=False)
class RequestInterceptor:
    keyring: Keyring
    limits: RateLimits
    metrics: Metrics
    tracing: Tracing | None = None

    def take_keys(self, keyring: Keyring) -> None:
        """Asks for these from now on; requests on their way go on."""
        self.keyring = keyring

    async def admit(self, exchange: RequestContext, token: str | None, needed: Scopes) -> None:
        """Notes who asks, before anything of the body is read.

        Raises:
            UnauthenticatedError, ForbiddenError, RateLimitedError.
        """
        if needed:
            exchange.caller = self.keyring.identify(token)
            await self.limits.check(exchange.caller)
            exchange.caller.require(needed)

    @contextlib.contextmanager
    def noted(self, exchange: RequestContext) -> Iterator[None]:
        """Within it, `exchange` is the current one; at its end it is counted, traced and logged."""
        bound = exchanges.bind(exchange)
        self.metrics.in_flight.inc()
        if self.tracing is not None:
            self.tracing.begin(exchange)
        try:
            yield
        finally:
            self.metrics.in_flight.dec()
            self._end(exchange)
            exchanges.unbind(bound)

    @contextlib.asynccontextmanager
    async def again(self, stream: RequestContext | None) -> AsyncIterator[None]:
        """`noted` for one of the requests of a stream that was admitted before.

        Raises:
            RateLimitedError: every request of a stream counts.
        """
        if stream is None:
            yield
            return
        exchange = RequestContext(
            stream.protocol, stream.operation, stream.request_id, stream.traceparent, stream.caller
        )
        with self.noted(exchange):
            try:
                await self.limits.check(exchange.caller)
                yield
            except ServiceError as error:
                exchange.problem, exchange.status = error.slug, error.status
                raise
            except Exception:
                exchange.problem, exchange.status = ServiceError.slug, ServiceError.status
                raise
            exchange.status = http.HTTPStatus.OK

    def _end(self, exchange: RequestContext) -> None:
        seconds = time.monotonic() - exchange.began_s
        self._count(exchange, seconds)
        if self.tracing is not None:
            self.tracing.end(exchange)
        log_access(exchange, seconds)

    def _count(self, exchange: RequestContext, seconds: float) -> None:
        self.metrics.answered(exchange.entry, exchange.protocol, exchange.status)
        if exchange.problem is not None:
            self.metrics.rejected(exchange.entry, exchange.problem)
        elif exchange.entry is not None and exchange.status != CLIENT_LEFT:
            self.metrics.succeeded(exchange.entry, seconds, exchange.phases(seconds))
