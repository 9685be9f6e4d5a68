"""HTTP/1.1 to a server behind the gateway, over connections that are kept.

A general client spends 0.7 ms of each request on what is not needed here (redirects, cookies, traces,
encodings): more than the server. httptools, which uvicorn uses, parses the answers.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httptools


@dataclass
class Reply:
    """Names of headers are in lower case."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""


class _Connection(asyncio.Protocol):
    """One connection, and one request on it at a time. Its `on_…` methods are httptools'."""

    def __init__(self) -> None:
        self.is_open = False
        self._transport: asyncio.WriteTransport | None = None
        self._waiting: asyncio.Future[Reply] | None = None
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._reply = Reply()
        self._body: list[bytes] = []

    async def ask(self, request: bytes) -> Reply:
        """Raises OSError where the connection breaks or the answer is no HTTP."""
        if self._transport is None or not self.is_open:
            raise ConnectionResetError("the connection is closed")
        self._begin()
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: Any) -> None:
        self._transport, self.is_open = transport, True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._break(exc if isinstance(exc, OSError) else ConnectionResetError("the server closed it"))

    def data_received(self, data: bytes) -> None:
        if self._is_answered():
            self.close()  # nobody has asked
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._break(ConnectionAbortedError("the connection's other end does not speak HTTP"))
            self.close()

    def on_message_begin(self) -> None:
        if self._is_answered():  # another one behind it: what comes next would be taken for the next answer
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_answered():
            self._reply.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        if not self._is_answered():
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._waiting is None or self._waiting.done():
            return
        reply = self._reply
        reply.status = self._parser.get_status_code()
        reply.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        if not self._parser.should_keep_alive():
            self.close()
        self._waiting.set_result(reply)

    def _is_answered(self) -> bool:
        return self._waiting is None or self._waiting.done()

    def _break(self, error: OSError) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)


class HttpClient:
    """As many connections to one server as there are requests at one time; the idle ones wait for more.

    Args:
        address: host:port.
        tls: how the server is known; None asks without TLS.
    """

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        self._address = address
        self._tls = tls
        self._idle: list[_Connection] = []
        self._is_closed = False

    async def ask(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Reply:
        """Headers and path are taken as they are. Who is cancelled takes the connection along.

        Raises:
            OSError: the server cannot be reached, or the connection broke before the answer was whole.
        """
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._address}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        connection = await self._connection()
        try:
            reply = await connection.ask("\r\n".join([*lines, "", ""]).encode() + body)
        except BaseException:
            connection.close()
            raise
        if self._is_closed:
            connection.close()
        elif connection.is_open:
            self._idle.append(connection)
        return reply

    def close(self) -> None:
        """Those that are asked are closed after their answers."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        host, _, port = self._address.rpartition(":")
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, host.strip("[]"), int(port), ssl=self._tls)
        return connection
