"""Checks and records of every request, over HTTP and gRPC: caller, scopes, rate, metrics, traces, logs."""

import contextlib
import http
import logging
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from rationale_service.errors import ServiceError
from rationale_service.observability import context as contexts
from rationale_service.observability.context import CLIENT_LEFT, RequestContext
from rationale_service.observability.metrics import Metrics, labels_of
from rationale_service.observability.tracing import Tracing, create_tracing
from rationale_service.security.keys import Caller, Keyring, Scopes, read_keys
from rationale_service.security.rate_limit import RateLimits
from rationale_service.security.tokens import TokenIssuer, is_key
from rationale_service.settings import Settings

access_log = logging.getLogger("rationale.access")
_SHOWN = 200  # characters of a path


@dataclass(eq=False)
class RequestInterceptor:
    keyring: Keyring
    limits: RateLimits
    metrics: Metrics
    tracing: Tracing | None = None
    issuer: TokenIssuer | None = None

    def take_keys(self, keyring: Keyring) -> None:
        """Require these keys from now on; running requests go on."""
        self.keyring = keyring

    async def admit(self, context: RequestContext, token: str | None, needed: Scopes) -> None:
        """Identify and check the caller before the body is read.

        Raises:
            UnauthenticatedError: if the token is missing or unknown.
            ForbiddenError: if the caller lacks the scopes.
            RateLimitedError: if the caller sends requests too often.
            NotReadyError: if the identity provider's keys cannot be fetched.
        """
        if needed:
            if self.issuer is None or token is None or is_key(token):
                context.caller = self.keyring.identify(token)
            else:
                context.caller = await self.issuer.identify(token)
            await self._check_rate(context.caller)
            context.caller.require(needed)

    @contextlib.contextmanager
    def observe(self, context: RequestContext) -> Iterator[None]:
        """Make `context` the current one; at the end count, trace and log it."""
        bound = contexts.bind(context)
        self.metrics.in_flight.inc()
        if self.tracing is not None:
            self.tracing.begin(context)
        try:
            yield
        finally:
            self.metrics.in_flight.dec()
            self._end(context)
            contexts.unbind(bound)

    @contextlib.asynccontextmanager
    async def noted_again(self, stream: RequestContext | None) -> AsyncIterator[None]:
        """Open `noted` for one request of an admitted stream.

        Raises:
            RateLimitedError: if the rate is exceeded; every request of a stream counts.
        """
        if stream is None:
            yield
            return
        context = RequestContext(
            stream.protocol, stream.operation, stream.request_id, stream.traceparent, stream.caller
        )
        with self.observe(context):
            try:
                await self._check_rate(context.caller)
                yield
            except ServiceError as error:
                context.problem, context.status = error.slug, error.status
                raise
            except Exception:
                context.problem, context.status = ServiceError.slug, ServiceError.status
                raise
            context.status = http.HTTPStatus.OK

    async def _check_rate(self, caller: Caller) -> None:
        """Raise RateLimitedError if the caller sends requests too often."""
        if caller.requests_per_s is not None or self.limits.per_s is not None:
            await self.limits.check(caller)

    def _end(self, context: RequestContext) -> None:
        seconds = time.monotonic() - context.began_s
        self._count(context, seconds)
        if self.tracing is not None:
            self.tracing.end(context)
        log_access(context, seconds)

    def _count(self, context: RequestContext, seconds: float) -> None:
        labels = labels_of(context.entry, decides=context.decides)
        self.metrics.count_answer(labels, context.protocol, context.status)
        if context.arm is not None:
            self.metrics.count_canary(labels[0], context.arm, context.status, seconds)
        if context.problem is not None:
            self.metrics.count_rejection(labels, context.problem)
        elif context.entry is not None and context.status != CLIENT_LEFT:
            self.metrics.time_answer(labels, seconds, context.phases(seconds))


def create_interceptor(settings: Settings, metrics: Metrics) -> RequestInterceptor:
    """Create the interceptor of the settings.

    Raises:
        InvalidOptionError: if the keys cannot be read, or tracing or the storage of rates is not installed.
    """
    failed, storage = metrics.dependency, settings.rate_limit_storage
    limits = RateLimits(settings.rate_limit_per_s, settings.rate_limit_burst, storage, failed("rates"))
    endpoint = settings.trace_endpoint
    tracing = create_tracing(endpoint, settings.trace_ratio, failed("traces")) if endpoint else None
    issuer = None if settings.jwt_issuer is None else TokenIssuer(settings, failed("tokens"))
    return RequestInterceptor(read_keys(settings), limits, metrics, tracing, issuer)


def log_access(request: RequestContext, seconds: float) -> None:
    """Log one line for an answered request; by default nothing else is logged of it."""
    if not access_log.isEnabledFor(logging.INFO):
        return
    model, verb = labels_of(request.entry, decides=request.decides)
    fields: dict[str, Any] = {
        "request_id": request.request_id,
        **request.trace,
        "protocol": request.protocol,
        "operation": _printable(request.operation),
        "model": model,
        "verb": verb,
        "entry": request.entry.name if request.entry else "",
        "arm": request.arm,
        "rows": request.rows,
        "status": request.status,
        "problem": request.problem,
        "caller": request.caller.name,
        "duration_ms": round(seconds * 1e3, 3),
        "queue_ms": round(request.queue_s * 1e3, 3),
        "compute_ms": round(request.compute_s * 1e3, 3),
    }
    access_log.info(
        "request", extra={name: value for name, value in fields.items() if value not in ("", None)}
    )


def _printable(text: str) -> str:
    shown = text[:_SHOWN]
    return shown if shown.isprintable() else ascii(shown)
