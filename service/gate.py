"""What every request passes, by HTTP and gRPC alike: who asks, may they, how often; what is noted of it."""

import contextlib
import http
import time
from collections.abc import Iterator
from dataclasses import dataclass

from service import exchange as exchanges
from service.errors import ServiceError
from service.exchange import CLIENT_LEFT, Exchange
from service.limits import RateLimits
from service.logs import log_access, logs_access
from service.metrics import Metrics
from service.security import Keyring, Scopes
from service.tracing import Tracing


@dataclass(eq=False)
class Gate:
    keyring: Keyring
    limits: RateLimits
    metrics: Metrics
    tracing: Tracing | None = None

    def take_keys(self, keyring: Keyring) -> None:
        """Asks for these from now on; requests on their way go on."""
        self.keyring = keyring

    def admit(self, exchange: Exchange, token: str | None, needed: Scopes) -> None:
        """Notes who asks, before anything of the body is read.

        Raises:
            UnauthenticatedError, ForbiddenError, RateLimitedError.
        """
        if needed:
            exchange.caller = self.keyring.identify(token)
            self.limits.check(exchange.caller)
            exchange.caller.require(needed)

    def admitted(self, token: str | None, needed: Scopes) -> None:
        """`admit` of a request that nothing is noted of. Raises what that does."""
        if needed:
            caller = self.keyring.identify(token)
            self.limits.check(caller)
            caller.require(needed)

    @property
    def notes_each(self) -> bool:
        """Whether more is made of a request than a count."""
        return self.tracing is not None or logs_access()

    def noted(self, exchange: Exchange) -> "_Noted":
        """Within it, `exchange` is the current one; at its end it is counted, traced and logged."""
        return _Noted(self, exchange)

    def note(self, exchange: Exchange) -> None:
        """Counts, traces and logs one that was answered without a wait."""
        if self.tracing is not None:
            self.tracing.begin(exchange)
        self._end(exchange)

    @contextlib.contextmanager
    def again(self, stream: Exchange | None) -> Iterator[None]:
        """`noted` for one of the requests of a stream that was admitted before.

        Raises:
            RateLimitedError: every request of a stream counts.
        """
        if stream is None:
            yield
            return
        exchange = Exchange(
            stream.protocol, stream.operation, stream.request_id, stream.traceparent, stream.caller
        )
        with self.noted(exchange):
            try:
                self.limits.check(exchange.caller)
                yield
            except ServiceError as error:
                exchange.problem, exchange.status = error.slug, error.status
                raise
            except Exception:
                exchange.problem, exchange.status = ServiceError.slug, ServiceError.status
                raise
            exchange.status = http.HTTPStatus.OK

    def begin(self, exchange: Exchange) -> None:
        self.metrics.in_flight.inc()
        if self.tracing is not None:
            self.tracing.begin(exchange)

    def end(self, exchange: Exchange) -> None:
        self.metrics.in_flight.dec()
        self._end(exchange)

    def _end(self, exchange: Exchange) -> None:
        seconds = time.monotonic() - exchange.began_s
        self._count(exchange, seconds)
        if self.tracing is not None:
            self.tracing.end(exchange)
        log_access(exchange, seconds)

    def _count(self, exchange: Exchange, seconds: float) -> None:
        self.metrics.answered(exchange.entry, exchange.protocol, exchange.status)
        if exchange.problem is not None:
            self.metrics.rejected(exchange.entry, exchange.problem)
        elif exchange.entry is not None and exchange.status != CLIENT_LEFT:
            self.metrics.of(exchange.entry).request_s(seconds)


class _Noted:
    """Not a generator: those cost a small request more than their work."""

    __slots__ = ("_bound", "_exchange", "_gate")

    def __init__(self, gate: Gate, exchange: Exchange) -> None:
        self._gate = gate
        self._exchange = exchange

    def __enter__(self) -> None:
        self._bound = exchanges.bind(self._exchange)
        self._gate.begin(self._exchange)

    def __exit__(self, *_: object) -> None:
        self._gate.end(self._exchange)
        exchanges.unbind(self._bound)
