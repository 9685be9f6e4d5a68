"""A peer of the gRPC end that says whatever it wants, and a server without a data plane."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection

from service.byte_budget import ByteBudget
from service.errors import NotOfferedError, ServiceError
from service.grpc_connection import GrpcConnection
from service.grpc_rpc import Handler, Rpc
from service.grpc_wire import Head, Messages

SECONDS = 20
LIMIT = 1_000_000
ECHO, REPEAT, HANG, CHAT, LOST = "/t/Echo", "/t/Repeat", "/t/Hang", "/t/Chat", "/t/Lost"


class Host:
    """`Echo` gives a message back, `Repeat` so many bytes, `Hang` nothing; `Lost` waits
    for what is given up, so many ms later; `Chat` is a stream of echos."""

    def __init__(self, patience_s: float = SECONDS) -> None:
        self.connections: set[GrpcConnection] = set()
        self.limit = LIMIT
        self.began: list[str] = []
        self.cancelled: list[str] = []
        self.budget = ByteBudget(10 * LIMIT)
        self._patience_s = patience_s
        self._handlers = {
            ECHO: Handler(self._echo),
            REPEAT: Handler(self._repeat),
            HANG: Handler(self._hang),
            LOST: Handler(self._lost),
            CHAT: Handler(self._chat, is_stream=True),
        }

    def enter(self, rpc: Rpc) -> Handler:
        if rpc.path not in self._handlers:
            raise NotOfferedError(rpc.path)
        return self._handlers[rpc.path]

    def is_stream(self, path: str) -> bool:
        return path == CHAT

    def messages(self, head: Head) -> Messages:
        return Messages(LIMIT, head.inflates, self.budget)

    def refused(self, rpc: Rpc, error: ServiceError) -> None: ...

    def patience_s(self) -> float:
        return self._patience_s

    async def _echo(self, rpc: Rpc, message: bytes) -> bytes:
        self.began.append(rpc.path)
        return message

    async def _repeat(self, rpc: Rpc, message: bytes) -> bytes:
        self.began.append(rpc.path)
        return b"x" * int(message)

    async def _hang(self, rpc: Rpc, _: bytes) -> bytes:
        self.began.append(rpc.path)
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled.append(rpc.path)
            raise

    async def _lost(self, _: Rpc, message: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if int(message):
            loop.call_later(int(message) / 1000, future.cancel)
        else:
            future.cancel()
        return await future

    async def _chat(self, rpc: Rpc) -> None:
        self.began.append(rpc.path)
        try:
            async for message in rpc.read():
                await rpc.write(message)
        except asyncio.CancelledError:
            self.cancelled.append(rpc.path)
            raise


@dataclass
class Answer:
    """What has come of one stream."""

    headers: dict[bytes, bytes] = field(default_factory=dict)
    data: bytes = b""
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> str | None:
        return self.headers.get(b"grpc-status", b"").decode() or None

    @property
    def message(self) -> bytes:
        return self.data[5:]


class Peer:
    """h2 as a client, whose bytes may be changed on their way, with others in between."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.http2 = H2Connection(H2Configuration(client_side=True, validate_outbound_headers=False))
        self.writer = writer
        self.answers: dict[int, Answer] = {}
        self.goaway: int | None = None
        self.closed = False
        self.received = 0
        self.takes = True  # whether windows are given back
        self.reader = reader

    def begin(self, path: str, *more: tuple[str, str], end: bool = False) -> int:
        """The head of a call."""
        stream_id = self.http2.get_next_available_stream_id()
        self.http2.send_headers(
            stream_id,
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", path),
                (":authority", "t"),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
                *more,
            ],
            end_stream=end,
        )
        self.answers[stream_id] = Answer()
        return stream_id

    def call(self, path: str, message: bytes, *more: tuple[str, str]) -> int:
        stream_id = self.begin(path, *more)
        self.http2.send_data(stream_id, framed(message), end_stream=True)
        return stream_id

    def flush(self) -> None:
        self.writer.write(self.http2.data_to_send())

    async def until(self, done: Callable[[], Any]) -> None:
        """Sends, and reads until `done` is true or nothing comes any more."""
        async with asyncio.timeout(SECONDS):
            while True:
                with contextlib.suppress(ConnectionError):
                    self.flush()
                    await self.writer.drain()
                if done() or self.closed:
                    return
                await self._read()

    async def ended(self, stream_id: int) -> Answer:
        answer = self.answers[stream_id]
        await self.until(lambda: answer.ended or answer.reset is not None)
        return answer

    async def said_no(self) -> int | None:
        """The code of the GOAWAY that the connection ends with."""
        await self.until(lambda: False)
        return self.goaway

    async def _read(self) -> None:
        try:
            data = await asyncio.wait_for(self.reader.read(1 << 16), 0.02)
        except TimeoutError:
            return
        except ConnectionError:
            data = b""
        self.received += len(data)
        self.closed = not data
        for event in self.http2.receive_data(data):
            self._note(event)

    def _note(self, event: events.Event) -> None:
        match event:
            case events.ResponseReceived() | events.TrailersReceived():
                self.answers[event.stream_id].headers |= dict(event.headers)
            case events.DataReceived():
                self.answers[event.stream_id].data += event.data
                if self.takes:
                    self.http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case events.StreamEnded():
                self.answers[event.stream_id].ended = True
            case events.StreamReset():
                self.answers[event.stream_id].reset = int(event.error_code)
            case events.ConnectionTerminated():
                self.goaway = int(event.error_code)


def framed(message: bytes, compressed: bool = False) -> bytes:
    return bytes([compressed]) + len(message).to_bytes(4, "big") + message


def frame(kind: int, flags: int, stream_id: int, body: bytes = b"", length: int | None = None) -> bytes:
    """A frame with any bytes; `length` may lie."""
    size = len(body) if length is None else length
    return size.to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + body


@contextlib.asynccontextmanager
async def serving(host: Host, kind: type[GrpcConnection] = GrpcConnection) -> AsyncIterator[int]:
    """The port of a server of `host`."""
    server = await asyncio.get_running_loop().create_server(lambda: kind(host), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for connection in list(host.connections):
            connection.abort()
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def peer_of(port: int, hello: bool = True) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    peer = Peer(reader, writer)
    try:
        if hello:
            peer.http2.initiate_connection()
            peer.flush()
        yield peer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def talking(host: Host) -> AsyncIterator[Peer]:
    """A peer of `host` that has greeted it."""
    async with serving(host) as port, peer_of(port) as peer:
        yield peer
