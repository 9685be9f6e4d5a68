"""Unary gRPC in as few microseconds as Python allows, as `wire` does HTTP/1.1.

`grpc.aio`'s client takes several times as long for a call as the server that is measured, and empties the
caches that both share. Here a call is four frames made beforehand, as that client sends them, and its end is
looked for without a parser of HTTP/2.
"""

import asyncio
from typing import Any

from hpack import Encoder

_DATA, _HEADERS, _RST, _SETTINGS, _GOAWAY, _WINDOW = 0, 1, 3, 4, 7, 8
_END_STREAM, _END_HEADERS = 1, 4
_HEAD = 9
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Connection(asyncio.Protocol):
    """One call of `path` at a time, each with the same `message`."""

    def __init__(self, path: str, message: bytes) -> None:
        encoder = Encoder()
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        self._first, self._again = encoder.encode(headers.items()), encoder.encode(headers.items())
        self._body = b"\0" + len(message).to_bytes(4) + message
        self._stream_id = -1
        self._buffer = b""
        self._has_message = False
        self._answered: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        wide = b"\0\4\0\x40\0\0"
        transport.write(_HELLO + _frame(_SETTINGS, 0, 0, wide) + _frame(_SETTINGS, 1, 0, b""))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        at = 0
        while len(self._buffer) >= at + _HEAD:
            end = at + _HEAD + int.from_bytes(self._buffer[at : at + 3])
            if len(self._buffer) < end:
                break
            kind, flags = self._buffer[at + 3], self._buffer[at + 4]
            if kind in (_RST, _GOAWAY):
                self._tell(ConnectionResetError("the server dropped the call"))
            elif kind == _DATA:
                self._has_message = True
            elif kind == _HEADERS and flags & _END_STREAM:
                self._tell(None if self._has_message else RuntimeError("the call was refused"))
            at = end
        self._buffer = self._buffer[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        self._tell(exc or ConnectionResetError("the server closed the connection"))

    async def ask(self) -> None:
        """One call. Raises RuntimeError where it ends without a message."""
        self._has_message = False
        self._answered = asyncio.get_running_loop().create_future()
        self._stream_id += 2
        stream_id = self._stream_id
        block = self._first if stream_id == 1 else self._again
        frames = (
            _frame(_HEADERS, _END_HEADERS, stream_id, block),
            _frame(_WINDOW, 0, stream_id, b"\0\0\0\5"),
            _frame(_DATA, _END_STREAM, stream_id, self._body),
            _frame(_WINDOW, 0, 0, b"\0\0\1\0"),
        )
        self._transport.write(b"".join(frames))
        await self._answered

    def close(self) -> None:
        self._transport.close()

    def _tell(self, error: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            if error is None:
                self._answered.set_result(None)
            else:
                self._answered.set_exception(error)


async def connect(address: str, path: str, message: bytes) -> Connection:
    host, _, port = address.rpartition(":")
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: Connection(path, message), host, int(port)
    )
    return connection


def _frame(kind: int, flags: int, stream_id: int, body: bytes) -> bytes:
    return len(body).to_bytes(3) + bytes((kind, flags)) + stream_id.to_bytes(4) + body
