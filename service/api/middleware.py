"""The gate of the HTTP end: pure ASGI, around everything but Starlette's last resort."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.http_headers import header_of
from service.api.http_limits import Refusal
from service.api.problems import RenderedError, answer, told
from service.errors import ServiceError
from service.interceptor import RequestInterceptor
from service.observability import context as exchanges
from service.observability.context import RequestContext
from service.repository.entry import Entry
from service.security.keys import NOBODY_NEEDS, Scopes, needed_by_path, token_of

log = logging.getLogger(__name__)

Refuser = Callable[[Scope], Refusal]

_ASKER = "rationale.asker"
_METRICS = "/metrics"
_PROTOCOL = "http"
_REQUEST_ID, _TRACEPARENT = exchanges.REQUEST_ID.encode(), exchanges.TRACEPARENT.encode()


class _Asker(NamedTuple):
    """What a request's headers say of who asks; `request_id` where they give one that can be used."""

    token: str | None
    needed: Scopes
    request_id: str | None


class HttpMiddleware:
    """Lets requests through to `app` and notes what became of them; health and metrics are not noted.

    Args:
        needed_for_metrics: the scopes of which one opens `GET /metrics`.
    """

    def __init__(self, app: ASGIApp, gate: RequestInterceptor, needed_for_metrics: Scopes) -> None:
        self._app = app
        self._gate = gate
        self._needed_for_metrics = needed_for_metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (needed := self._needed(scope["path"])) is NOBODY_NEEDS:
            await self._app(scope, receive, send)
            return
        exchange = _exchange_of(scope)
        answering = _Answering(exchange, send)
        with self._gate.noted(exchange):
            try:
                await self._gate.admit(exchange, _token(scope), needed)
                await self._app(scope, receive, answering.send)
            except ServiceError as error:
                await answer(Request(scope), error)(scope, receive, answering.send)
            except Exception as error:  # the last resort, inside of Starlette's own: it is named and noted
                if answering.begun:
                    raise  # only breaking off says that the answer is not whole
                log.exception("%s: an unexpected fault", scope["path"])
                await answer(Request(scope), error)(scope, receive, answering.send)

    def refuser(self, entry: Entry, reason: RenderedError) -> Refuser:
        """What answers requests that are not let in, with all that is done for any: counts, log lines, spans.

        The answer is `reason`, unless the caller may not ask at all, or not as often.

        Args:
            entry: what they ask for.
        """
        if self._gate.notes_each:
            return partial(self._refuse_noted, entry, reason)
        return partial(self._refuse, entry, reason)

    def _refuse(self, entry: Entry, reason: RenderedError, scope: Scope) -> Refusal:
        try:
            asker = scope.get(_ASKER) or self._asker(scope)
            self._gate.admitted(asker.token, asker.needed)
        except ServiceError as error:
            reason = told(error, scope["path"])
            self._count(entry, reason)
            return _refusal(reason, exchanges.request_id(header_of(scope, _REQUEST_ID)))
        self._count(entry, reason)
        return _refusal(reason, asker.request_id or exchanges.request_id(None))

    def _count(self, entry: Entry, reason: RenderedError) -> None:
        self._gate.metrics.answered(entry, _PROTOCOL, reason.status)
        self._gate.metrics.rejected(entry, reason.slug)

    def _refuse_noted(self, entry: Entry, reason: RenderedError, scope: Scope) -> Refusal:
        exchange = _exchange_of(scope)
        exchange.about(entry)
        try:
            self._gate.admitted(_token(scope), self._needed(scope["path"]))
        except ServiceError as error:
            reason = told(error, scope["path"])
        exchange.problem, exchange.status = reason.slug, reason.status
        self._gate.note(exchange)
        return _refusal(reason, exchange.request_id)

    def _asker(self, scope: Scope) -> "_Asker":
        """Kept in the scope, which is one for all who ask in the same words. Raises UnauthenticatedError."""
        given = header_of(scope, _REQUEST_ID)
        asker = _Asker(_token(scope), self._needed(scope["path"]), given and exchanges.own_id(given))
        scope[_ASKER] = asker
        return asker

    def _needed(self, path: str) -> Scopes:
        return self._needed_for_metrics if path == _METRICS else needed_by_path(path)


def _token(scope: Scope) -> str | None:
    """Raises UnauthenticatedError, as `token_of` does."""
    return token_of(header_of(scope, b"authorization"), header_of(scope, b"x-api-key"))


def _refusal(reason: RenderedError, request_id: str) -> Refusal:
    headers = b"%bx-request-id: %b\r\n" % (reason.headers, request_id.encode())
    return Refusal(reason.status, headers, reason.body)


def _exchange_of(scope: Scope) -> RequestContext:
    return RequestContext(
        protocol=_PROTOCOL,
        operation=f"{scope['method']} {scope['path']}",
        request_id=exchanges.request_id(header_of(scope, _REQUEST_ID)),
        traceparent=exchanges.traceparent(header_of(scope, _TRACEPARENT)),
    )


class _Answering:
    """An answer on its way out: its status is noted, and it is given the request's id."""

    __slots__ = ("_exchange", "_send", "begun")

    def __init__(self, exchange: RequestContext, send: Send) -> None:
        self.begun = False
        self._exchange = exchange
        self._send = send

    def send(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self.begun = True
            self._exchange.status = message["status"]
            named = (_REQUEST_ID, self._exchange.request_id.encode())
            message = {**message, "headers": [*message["headers"], named]}
        return self._send(message)
