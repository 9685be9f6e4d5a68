"""uvicorn's HTTP/1.1, with a bound on the size and time of what comes before a body and after it.

uvicorn bounds neither with httptools: one connection could send headers for ever, or none. And it writes the
head of an answer apart from its body, which costs both ends a system call and the network a packet. What a
crowd is refused is answered before it parses anything.
"""

import asyncio
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.api.plain_post import plain_post

MAX_HEADER_BYTES = 64 * 1024
HEADER_TIMEOUT_S = 10.0
_TOO_LARGE = "431 Request Header Fields Too Large"
_CROWD = 4  # requests under way: with fewer there is no queue to be refused for
_CONTINUE = b"HTTP/1.1 100 "
_TOO_SLOW = "408 Request Timeout"


class Refusal(NamedTuple):
    """An answer that needs neither the request's body nor the app; `headers` are lines, each with its end."""

    status: int
    headers: bytes
    body: bytes


# An app may have one as its `refusal`: told a scope (as http_headers.scope_of makes it) and how many requests
# are under way, it gives None where it wants to be called.
Refuse = Callable[[Any, int], Refusal | None]


class BoundedHttp(HttpToolsProtocol):
    """Closes a connection whose headers, trailers or chunk extensions are too large, or headers too slow.

    Idle connections that have had an answer are uvicorn's own to close (its keep-alive timeout).
    """

    _unread = 0  # bytes since the last that were part of a body, or ended a header
    _timer: asyncio.TimerHandle | None = None
    _in_message = False
    _to_skip = 0  # bytes of the body of a request that was refused
    _refused_s = -math.inf  # when, on the event loop's clock

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._refusal_of: Refuse | None = getattr(self.app, "refusal", None)
        self._whole = _WholeAnswers(transport)
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._to_skip:
            data = self._past_refused(data)
        if len(self.tasks) >= _CROWD:
            data = self._refuse(data)
        if not data:
            return
        self._unread += len(data)
        super().data_received(data)
        if self._unread > MAX_HEADER_BYTES:
            self._give_up(_TOO_LARGE)

    def on_message_begin(self) -> None:
        self._in_message = True
        super().on_message_begin()
        self._wait_for_headers()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._unread = 0
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.transport = cast(asyncio.Transport, self._whole)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self._whole.end()
        super().on_response_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        self._in_message = False
        super().on_message_complete()

    def timeout_keep_alive_handler(self) -> None:
        left_s = self._refused_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left_s, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def _refuse(self, data: bytes) -> bytes:
        """Answers what the app refuses, without a look at bodies; gives the rest of `data`."""
        while data and self._refusal_of is not None and self._is_between():
            post = plain_post(data)
            refusal = None if post is None else self._refusal_of(post.scope, len(self.tasks))
            if post is None or refusal is None:
                break
            self.transport.write(self._written(refusal, b"connection: close\r\n" if post.closes else b""))
            self.server_state.total_requests += 1
            if post.closes:
                self.transport.close()
            self._to_skip = post.size
            data = self._past_refused(data)
        return data

    def _past_refused(self, data: bytes) -> bytes:
        """What of `data` comes behind a refused request. The connection stays open as long as any."""
        left = self._to_skip - len(data)
        self._to_skip = max(left, 0)
        if self._timer is not None:
            self._stop_waiting()
        self._refused_s = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_handler()
        return data[left:] if left < 0 else b""

    def _is_between(self) -> bool:
        """Whether the next byte begins a request that nothing stands before."""
        return not (
            self._in_message
            or (self.cycle is not None and not self.cycle.response_complete)
            or self.pipeline
            or self.flow.write_paused
            or self.transport.is_closing()
        )

    def _written(self, refusal: Refusal, last: bytes) -> bytes:
        own = _lines(tuple(self.server_state.default_headers))
        return b"".join((STATUS_LINE[refusal.status], own, refusal.headers, last, b"\r\n", refusal.body))

    def _wait_for_headers(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEADER_TIMEOUT_S, self._give_up, _TOO_SLOW)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self, status: str) -> None:
        """Says so, unless an answer is on its way already, and closes."""
        self._stop_waiting()
        if self.transport.is_closing():
            return
        answering: Any = self.cycle
        if answering is None or answering.response_complete:
            self.transport.write(
                f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode()
            )
        self.transport.close()


@functools.lru_cache(4)
def _lines(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """The date, which a second's answers share."""
    return b"".join(b"%b: %b\r\n" % header for header in headers)


class _WholeAnswers:
    """What an answer is written to: holds its head back until its body, or the first piece of that, comes.

    Has what uvicorn uses of a transport to answer.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None
        self._began = False

    def write(self, data: bytes) -> None:
        if self._head is not None:
            self._transport.writelines([self._head, data])
            self._head = None
        elif self._began or data.startswith(_CONTINUE):
            self._transport.write(data)
        else:
            self._began = True
            self._head = data

    def end(self) -> None:
        """The answer is over: what follows is another one's. One to HEAD has no body."""
        self._began = False
        if self._head is not None:
            self._transport.write(self._head)
            self._head = None

    def close(self) -> None:
        self.end()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()
