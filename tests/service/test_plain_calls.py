"""The way past h2 gives every peer what h2 gives it: the same bytes, in any pieces, by both."""

import asyncio
import gzip
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes
from hpack import Decoder
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.errors import QueueFullError, ServiceError
from service.grpc_connection import GrpcConnection
from service.grpc_wire import trailers_of
from service.http2 import CONNECTION_WINDOW
from service.plain_calls import block_of, plain_head
from tests.service.http2_peer import CHAT, ECHO, REPEAT, Host, frame, framed, peer_of, serving

DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)


class ByH2(GrpcConnection):
    """Without the way past it."""

    def take(self, *_: Any) -> bool:
        return False


@dataclass
class Network:
    """A transport that keeps what is written."""

    said: bytes = b""
    closing: bool = False

    def write(self, data: bytes) -> None:
        self.said += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0


@dataclass
class Told:
    """What a server said: of each stream headers, data, how it ended; and whether the connection did."""

    headers: dict[int, dict[bytes, bytes]] = field(default_factory=dict)
    data: dict[int, bytes] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    reset: dict[int, int] = field(default_factory=dict)
    pings: int = 0
    gone: bool = False

    @classmethod
    def of(cls, said: bytes) -> "Told":
        told, decoder, at = cls(), Decoder(), 0
        while at < len(said):
            size, kind, flags = int.from_bytes(said[at : at + 3], "big"), said[at + 3], said[at + 4]
            stream_id, body = int.from_bytes(said[at + 5 : at + 9], "big"), said[at + 9 : at + 9 + size]
            at += 9 + size
            match kind:
                case 0:
                    told.data[stream_id] = told.data.get(stream_id, b"") + body
                case 1:
                    told.headers.setdefault(stream_id, {}).update(decoder.decode(body, raw=True))
                case 3:
                    told.reset[stream_id] = int.from_bytes(body, "big")
                case 6:
                    told.pings += 1
                case 7:
                    told.gone = True
            if kind in (DATA, HEADERS) and flags & 1:
                told.ended.add(stream_id)
        for stream_id in told.ended:  # what is said to the rest of a request depends on how it comes
            told.reset.pop(stream_id, None)
        return told


async def heard(kind: type[GrpcConnection], pieces: list[bytes]) -> tuple[Told, list[str]]:
    """What a server makes of them: what it says, and the calls that it began."""
    host, network = Host(), Network()
    connection = kind(host)
    connection.connection_made(cast(asyncio.Transport, network))
    for piece in pieces:
        asyncio.get_running_loop().call_soon(connection.data_received, piece)
        for _ in range(4):
            await asyncio.sleep(0)
    connection.connection_lost(None)
    for _ in range(4):
        await asyncio.sleep(0)
    assert not connection.tasks
    host.budget.check(10 * host.limit)
    return Told.of(network.said), host.began


# --- conversations ------------------------------------------------------------------------------------

HEADERS_TOO: list[list[tuple[str, str]]] = [
    [],
    [],
    [("grpc-timeout", "20S")],
    [("grpc-timeout", "soon")],
    [("grpc-encoding", "gzip")],
    [("grpc-encoding", "none")],
    [("content-type", "text/plain")],
    [("content-length", "8")],
    [("x-request-id", "mine"), ("x-b", "é")],
    [("te", "gzip")],
    [("Upper", "case")],
]
BODIES = [framed(b"abc"), framed(b""), framed(b"70000"), framed(b"7"), b"", b"\0\0", framed(b"a") * 2]
BODIES += [framed(gzip.compress(b"9", mtime=0), compressed=True), b"\0\x7f\xff\xff\xff"]
CALLS = st.tuples(
    st.sampled_from([ECHO, ECHO, REPEAT, CHAT, "/t/Absent"]),
    st.sampled_from(HEADERS_TOO),
    st.sampled_from(BODIES),
    st.sampled_from([1 << 14, 3]),
    st.sampled_from(["with", "with", "apart", "trailers", "never", "padded", "head"]),
    st.booleans(),
)
RAW = st.builds(
    frame,
    st.integers(0, 10),
    st.sampled_from([0, 0, 1, 4, 5, 8, 0x20]),
    st.integers(0, 9),
    st.sampled_from([b"", bytes(4), b"\0\0\0\5", b"\x7f\xff\xff\xff", framed(b"a"), b"\x83", bytes(8)]),
)
ACTS = st.one_of(
    CALLS,
    st.tuples(st.just("window"), st.integers(1, 100_000)),
    st.tuples(st.just("windows"), st.integers(1, 100_000)),
    st.tuples(st.just("settings"), st.sampled_from([0, 3, 1000, 100_000])),
    st.tuples(st.just("table"), st.sampled_from([0, 100, 4096])),
    st.tuples(st.just("ping"), st.none()),
    st.tuples(st.just("reset"), st.none()),
    st.tuples(st.just("raw"), RAW),
)


class Caller:
    """Writes a conversation."""

    def __init__(self) -> None:
        self.http2 = H2Connection(H2Configuration(client_side=True, validate_outbound_headers=False))
        self.http2.initiate_connection()
        self.said: list[bytes] = []
        self.last = 0

    def act(self, act: tuple[Any, ...]) -> None:
        match act:
            case ("window", size):
                self.http2.increment_flow_control_window(size)
            case ("windows", size):
                self.said.append(frame(WINDOW, 0, self.last, size.to_bytes(4, "big")))
            case ("settings", size):
                self.http2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: size})
            case ("table", size):
                self.http2.update_settings({SettingCodes.HEADER_TABLE_SIZE: size})
            case ("ping", _):
                self.http2.ping(b"12345678")
            case ("reset", _):
                self.said.append(frame(RST, 0, self.last, bytes(4)))
            case ("raw", said):
                self.said.append(said)
            case _:
                self.call(*act)
        self.said.append(self.http2.data_to_send())

    def call(
        self, path: str, more: list[tuple[str, str]], body: bytes, size: int, end: str, window: bool
    ) -> None:
        self.last = stream_id = self.http2.get_next_available_stream_id()
        own = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "t"}
        headers = {**own, "content-type": "application/grpc", "te": "trailers", **dict(more)}
        self.http2.send_headers(stream_id, list(headers.items()), end_stream=end == "head")
        if end == "head":
            return
        if window:
            self.http2.increment_flow_control_window(5, stream_id)
        for at in range(0, len(body) or 1, size):
            last = at + size >= len(body)
            pad = 3 if end == "padded" else None
            self.http2.send_data(
                stream_id, body[at : at + size], end_stream=last and end in ("with", "padded"), pad_length=pad
            )
        if end == "apart":
            self.http2.end_stream(stream_id)
        if end == "trailers":
            self.http2.send_headers(stream_id, [("t", "t")], end_stream=True)


def in_pieces(said: list[bytes], size: int) -> list[bytes]:
    """As they were said, all at once, or in pieces of `size`."""
    if size == 0:
        return said
    whole = b"".join(said)
    return [whole[at : at + size] for at in range(0, len(whole), size)]


PLAIN = (ECHO, [], framed(b"abc"), 1 << 14, "with", True)
SPOKEN = (CHAT, [], framed(b"abc"), 1 << 14, "with", True)
WIDE = (REPEAT, [], framed(b"70000"), 1 << 14, "with", True)


@settings(max_examples=400, deadline=None)
@given(st.lists(ACTS, min_size=1, max_size=8), st.sampled_from([0, 0, 1, 7, 64, 1 << 20]))
@example([PLAIN, PLAIN, PLAIN], 0)
@example([PLAIN, ("settings", 3), PLAIN, ("windows", 4), ("windows", 100), PLAIN], 0)
@example([PLAIN, SPOKEN, SPOKEN, SPOKEN, PLAIN, SPOKEN], 0)
@example([PLAIN, WIDE, ("window", 100_000), ("windows", 100_000)], 0)
@example([PLAIN, ("table", 0), PLAIN, ("table", 100), PLAIN], 0)
@example([PLAIN, ("raw", frame(HEADERS, 0, 3, b"\x83")), PLAIN], 0)
def test_what_passes_h2_is_answered_as_by_h2(acts: list[tuple[Any, ...]], size: int) -> None:
    caller = Caller()
    for act in acts:
        caller.act(act)
    pieces = in_pieces([piece for piece in caller.said if piece], size)
    ours = asyncio.run(heard(GrpcConnection, pieces))
    theirs = asyncio.run(heard(ByH2, pieces))
    assert ours == theirs


def test_goodbye_between_a_head_and_its_message() -> None:
    caller = Caller()
    caller.act(PLAIN)
    first = b"".join(caller.said)
    caller.said.clear()
    caller.act(PLAIN)
    second = b"".join(caller.said)
    head = 9 + int.from_bytes(second[:3], "big")
    second = second[:head] + frame(GOAWAY, 0, 0, bytes(8)) + second[head:]
    for kind in (GrpcConnection, ByH2):
        told, _ = asyncio.run(heard(kind, [first, second]))
        assert told.data == dict.fromkeys([1, 3], framed(b"abc"))


# --- which way they go --------------------------------------------------------------------------------


async def test_the_common_call_passes_h2() -> None:
    """Or all of the above would be of no use."""
    host = Host()
    caller = Caller()
    for _ in range(5):
        caller.act(PLAIN)
    connection = GrpcConnection(host)
    connection.connection_made(cast(asyncio.Transport, Network()))
    for piece in caller.said:
        asyncio.get_running_loop().call_soon(connection.data_received, piece)
        await asyncio.sleep(0)
    assert len(host.began) == 5
    assert list(connection.http2.streams) == [1]
    assert connection.http2.highest_inbound_stream_id == 9


async def test_more_than_a_window_by_small_calls() -> None:
    """What was used of the connection's window comes back."""
    async with serving(Host()) as port, peer_of(port) as peer:
        for _ in range(2 * CONNECTION_WINDOW // 10_000):
            answer = await peer.ended(peer.call(ECHO, bytes(10_000)))
            assert len(answer.message) == 10_000


async def test_a_plain_call_is_reset() -> None:
    host = Host()
    async with serving(host) as port, peer_of(port) as peer:
        await peer.ended(peer.call(ECHO, b""))
        stream_id = peer.call("/t/Hang", b"")
        await peer.until(lambda: "/t/Hang" in host.began)
        peer.http2.reset_stream(stream_id)
        await peer.until(lambda: host.cancelled)
        assert (await peer.ended(peer.call(ECHO, b"on"))).message == b"on"


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 255, 254 + 127, 5000, 20_000])
def test_literals_of_every_length(size: int) -> None:
    headers = [(b"a" * (size or 1), b"v" * size), (b"b", b"")]
    decoder = Decoder()
    assert [tuple(each) for each in decoder.decode(block_of(headers), raw=True)] == headers
    assert not decoder.header_table.dynamic_entries


@pytest.mark.parametrize("error", [ServiceError("ä%\n" * 2000), QueueFullError("full", 7)])
def test_any_refusal_fits_one_frame(error: ServiceError) -> None:
    assert len(block_of(trailers_of(error))) < 1 << 14


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((b":method", b"POST"), (b":method", b"GET")),
        ((b":authority", b"t"), (b"a", b"t")),
        ((b":path", b"/"), (b":path", b"")),
        ((b"te", b"trailers"), (b"te", b"gzip")),
        ((b"te", b"trailers"), (b"Te", b"trailers")),
        ((b"te", b"trailers"), (b"a", b" b")),
        ((b"te", b"trailers"), (b"a", b"b\x00")),
        ((b"te", b"trailers"), (b"", b"b")),
        ((b"te", b"trailers"), (b"connection", b"close")),
        ((b"te", b"trailers"), (b"content-length", b"5")),
        ((b"te", b"trailers"), (b":path", b"/")),
        ((b"content-type", b"application/grpc"), (b"content-type", b"text/plain")),
    ],
)
def test_all_else_is_left_to_h2(old: tuple[bytes, bytes], new: tuple[bytes, bytes]) -> None:
    headers = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"t")]
    headers += [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
    assert plain_head(headers) is not None
    assert old in headers
    assert plain_head([new if each == old else each for each in headers]) is None
