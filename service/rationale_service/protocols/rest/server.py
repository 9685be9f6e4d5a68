"""The HTTP server: uvicorn with limits on headers and connections, and the middleware of every request."""

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from rationale_service.errors import ServiceError
from rationale_service.observability.context import REQUEST_ID, RequestContext
from rationale_service.process.listening import address_of, several
from rationale_service.protocols.interceptor import RequestInterceptor
from rationale_service.protocols.rest.problems import answer
from rationale_service.protocols.rest.routes import RouteScopes
from rationale_service.security.keys import token_of
from rationale_service.security.tls import ServerTls

log = logging.getLogger(__name__)

MAX_HEADER_BYTES = 64 * 1024
_TOO_LARGE = "431 Request Header Fields Too Large"
HEADER_TIMEOUT_S = 10.0
_LEAVE_S = 0.3  # time for sequential callers to send their next request
_LINGER_S = 2.0  # for the rest of an unread body
MAX_PIPELINED = 64  # requests that wait for an earlier answer, some KB each


class BoundedHttp(HttpToolsProtocol):
    """An HTTP/1.1 connection with limits on its caller.

    It closes if headers, trailers or chunk extensions are too large, if headers are too slow, or if the
    caller sends too many requests without waiting for answers.

    With httptools, uvicorn limits none of these: one connection could send headers for ever, or none. uvicorn
    itself closes idle connections after an answer (its keep-alive timeout).
    """

    _unread = 0  # bytes since the last body or end of headers
    _timer: asyncio.TimerHandle | None = None
    _answering: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss to the request being answered; uvicorn would report it to the latest one."""
        self._stop_waiting()
        if self._answering is not None:
            self.cycle = self._answering
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        super().data_received(data)
        if self._unread > MAX_HEADER_BYTES:
            self._give_up(_TOO_LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait_for_headers()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._unread = 0
        if self.transport.is_closing():
            return  # the rest of the same packet
        if self._head_bytes() > MAX_HEADER_BYTES:
            self._give_up(_TOO_LARGE)
            return
        if self._hosts() != 1:
            self._give_up("400 Bad Request")
            return
        super().on_headers_complete()
        self.headers = []  # for trailers, which are no headers of the request
        if len(self.pipeline) > MAX_PIPELINED:
            self.pipeline.clear()
            self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: a request for WebSocket is answered without an upgrade (RFC 9110, 7.8)."""

    def _head_bytes(self) -> int:
        """Count the bytes of the head, without optional blanks. It may have come in one piece."""
        line = len(self.parser.get_method()) + len(self.url) + len("  HTTP/1.1\r\n\r\n")
        return line + sum(len(name) + len(value) for name, value in self.headers) + 4 * len(self.headers)

    def _hosts(self) -> int:
        """Count the Host headers: a proxy may choose another one than this server (RFC 9112, 3.2)."""
        named = sum(name == b"host" for name, _ in self.headers)
        return named or int(self.parser.get_http_version() == "1.0")

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        if not self.transport.is_closing():
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _wait_for_headers(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEADER_TIMEOUT_S, self._give_up, "408 Request Timeout")

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self, status: str) -> None:
        """Answer with `status`, unless an answer has begun, and close."""
        self._stop_waiting()
        if self.transport.is_closing():
            return
        answering: Any = self.cycle
        if answering is None or answering.response_complete:
            self.transport.write(
                f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode()
            )
        self.transport.close()


class _Server(uvicorn.Server):
    """uvicorn without its handling of signals, which would end the process by the signal."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """An app on a socket; with `lifespan` it runs the app's lifespan."""

    def __init__(
        self, app: FastAPI, listener: socket.socket, tls: ServerTls | None, *, lifespan: bool
    ) -> None:
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://{address_of(listener)}"
        self._server = _Server(uvicorn_config(app, tls, lifespan=lifespan))
        self.serving = asyncio.create_task(self._server.serve(sockets=several(listener)))

    async def started(self) -> None:
        while not self._server.started and not self.serving.done():
            await asyncio.sleep(0.01)

    async def leave(self) -> None:
        """Accept no more connections; the next answer on each is its last and sends the caller elsewhere."""
        for listening in self._server.servers:
            listening.close()
        close = (b"connection", b"close")
        self._server.config.encoded_headers.append(close)
        self._server.server_state.default_headers = [*self._server.server_state.default_headers, close]
        await asyncio.sleep(_LEAVE_S)

    async def stop(self, seconds: float) -> None:
        """Close the socket, and connections that are not answered in `seconds`."""
        self._server.config.timeout_graceful_shutdown = max(math.ceil(seconds), 1)
        self._server.should_exit = True
        await self.serving

    def give_up(self, _: object = None) -> None:
        """End a waiting `stop` without ending the app's lifespan."""
        self._server.force_exit = True


def uvicorn_config(app: FastAPI, tls: ServerTls | None = None, *, lifespan: bool = True) -> uvicorn.Config:
    context = None if tls is None else tls.context
    return uvicorn.Config(
        app,
        http=BoundedHttp,
        ws="none",
        lifespan="on" if lifespan else "off",
        log_config=None,  # uvicorn's lines use the gateway's logging
        access_log=False,  # the interceptor writes one
        server_header=False,
        proxy_headers=False,
        ssl_context_factory=None if context is None else lambda *_: context,
    )


# --- requests -------------------------------------------------------------------------------------------


class HttpMiddleware:
    """Middleware that admits requests to `app` and notes their outcome, unless their route needs no key."""

    def __init__(self, app: ASGIApp, interceptor: RequestInterceptor, scopes: RouteScopes) -> None:
        self._app = app
        self._interceptor = interceptor
        self._scopes = scopes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server leaves the body out
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        needed = self._scopes.needed(scope["method"], scope["path"], scope.get("root_path", ""))
        if not needed:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        context = RequestContext.of("http", f"{scope['method']} {scope['path']}", headers)
        receive = body = _RequestBody(receive, last=headers.get("connection", "").lower() == "close")
        body.ended = "expect" in headers  # its sender waits for the answer
        answering = _ResponseSender(context, send, body)
        with self._interceptor.observe(context):
            try:
                token = token_of(headers.get("authorization"), headers.get("x-api-key"))
                await self._interceptor.admit(context, token, needed)
                await self._app(scope, receive, answering.send)
            except ServiceError as error:
                await answer(Request(scope), error)(scope, receive, answering.send)
            except Exception as error:  # last resort inside Starlette's own, which reports and notes errors
                if answering.begun:
                    raise  # only a broken connection shows that the answer is incomplete
                log.exception("%s: an unexpected fault", scope["path"])
                await answer(Request(scope), error)(scope, receive, answering.send)


class _RequestBody:
    """A body on its way in; `ended` tells that it is complete.

    Args:
        last: True if the connection closes after the answer.
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
        """Read the rest of the body if the connection closes next: else its sender sees no answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while self._last and not self.ended:
                    await self()


class _ResponseSender:
    """An answer on its way out: it notes the status and adds the request's id."""

    __slots__ = ("_body", "_context", "_send", "begun")

    def __init__(self, context: RequestContext, send: Send, body: _RequestBody) -> None:
        self.begun = False
        self._context = context
        self._send = send
        self._body = body

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            self._context.status = message["status"]
            named = (REQUEST_ID.encode(), self._context.request_id.encode())
            message = {**message, "headers": [*message["headers"], named]}
            await self._body.linger()
        await self._send(message)


class NamedHosts(TrustedHostMiddleware):
    """Check of Host. It accepts requests without one, which proxies' health checks send, but no browser."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if any(name == b"host" for name, _ in scope.get("headers", ())):
            await super().__call__(scope, receive, send)
        else:
            await self.app(scope, receive, send)
