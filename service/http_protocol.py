"""uvicorn's HTTP/1.1, with a bound on the size and time of what comes before a body and after it.

uvicorn bounds neither with httptools: one connection could send headers for ever, or none. And it writes the
head of an answer apart from its body, which costs both ends a system call and the network a packet.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEADER_BYTES = 64 * 1024
HEADER_TIMEOUT_S = 10.0
_TOO_LARGE = "431 Request Header Fields Too Large"
_CROWD = 4  # requests under way: with fewer there is no queue to be refused for
_CONTINUE = b"HTTP/1.1 100 "
_TOO_SLOW = "408 Request Timeout"


# An app may have one: the answer to a request that it need not be called for, as ASGI messages.
Refusal = Callable[[Any], Sequence[Any] | None]


class BoundedHttp(HttpToolsProtocol):
    """Closes a connection whose headers, trailers or chunk extensions are too large, or headers too slow.

    Idle connections that have had an answer are uvicorn's own to close (its keep-alive timeout).
    """

    _unread = 0  # bytes since the last that were part of a body, or ended a header
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._refusal: Refusal | None = getattr(self.app, "refusal", None)
        self._whole = _WholeAnswers(transport)
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
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
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.transport = cast(asyncio.Transport, self._whole)
        # Not while pipelined requests wait: each answer starts the next, deeper and deeper.
        at_once = len(self.tasks) >= _CROWD and not self.pipeline and not self.flow.write_paused
        refused = self._refusal(cycle.scope) if at_once and self._refusal is not None else None
        if refused is None:
            super()._start_asgi_task(cycle, app)
        else:
            for message in refused:
                _sent_at_once(cycle.send(message))

    def on_response_complete(self) -> None:
        self._whole.end()
        super().on_response_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        super().on_message_complete()

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


def _sent_at_once(sending: Coroutine[Any, Any, None]) -> None:
    """Runs a `send` that has nothing to wait for: the connection takes more."""
    try:
        sending.send(None)
    except StopIteration:
        return
    raise RuntimeError("an answer that should leave at once had to wait")


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
