"""What every HTTP request passes: pure ASGI, around everything but Starlette's last resort."""

import asyncio
import contextlib
import logging

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.problems import answer
from service.errors import ServiceError
from service.interceptor import RequestInterceptor
from service.observability import context as contexts
from service.observability.context import RequestContext
from service.security.keys import NOBODY_NEEDS, Scopes, needed_by_path, token_of

log = logging.getLogger(__name__)

_METRICS = "/metrics"
_LINGER_S = 2.0  # for the rest of a body that nobody reads


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
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server leaves the body out
        if scope["type"] != "http" or (needed := self._needed(scope["path"])) is NOBODY_NEEDS:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        context = _context_of(scope, headers)
        receive = body = _Body(receive, last=headers.get("connection", "").lower() == "close")
        body.ended = "expect" in headers  # its sender waits for the answer
        answering = _Answering(context, send, body)
        with self._gate.noted(context):
            try:
                token = token_of(headers.get("authorization"), headers.get("x-api-key"))
                await self._gate.admit(context, token, needed)
                await self._app(scope, receive, answering.send)
            except ServiceError as error:
                await answer(Request(scope), error)(scope, receive, answering.send)
            except Exception as error:  # the last resort, inside of Starlette's own: it is named and noted
                if answering.begun:
                    raise  # only breaking off says that the answer is not whole
                log.exception("%s: an unexpected fault", scope["path"])
                await answer(Request(scope), error)(scope, receive, answering.send)

    def _needed(self, path: str) -> Scopes:
        return self._needed_for_metrics if path == _METRICS else needed_by_path(path)


def _context_of(scope: Scope, headers: Headers) -> RequestContext:
    return RequestContext(
        protocol="http",
        operation=f"{scope['method']} {scope['path']}",
        request_id=contexts.request_id(headers.get(contexts.REQUEST_ID)),
        traceparent=contexts.traceparent(headers.get(contexts.TRACEPARENT)),
    )


class _Body:
    """A body on its way in, and whether it has ended.

    Args:
        last: whether the connection is closed after the answer.
    """

    __slots__ = ("_last", "_receive", "ended")

    def __init__(self, receive: Receive, *, last: bool) -> None:
        self.ended = False
        self._receive = receive
        self._last = last

    async def __call__(self) -> Message:
        message = await self._receive()
        self.ended = not message.get("more_body", False)
        return message

    async def linger(self) -> None:
        """Read what nobody read, where the connection is closed next: its sender sees no answer else."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while self._last and not self.ended:
                    await self()


class _Answering:
    """An answer on its way out: its status is noted, and it is given the request's id."""

    __slots__ = ("_body", "_context", "_send", "begun")

    def __init__(self, context: RequestContext, send: Send, body: _Body) -> None:
        self.begun = False
        self._context = context
        self._send = send
        self._body = body

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            self._context.status = message["status"]
            named = (contexts.REQUEST_ID.encode(), self._context.request_id.encode())
            message = {**message, "headers": [*message["headers"], named]}
            await self._body.linger()
        await self._send(message)
