"""Peers of the gRPC end that mean harm.

Whatever they do, the answer is a status or the end of the connection: no fault of ours, no growth, no hang.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

import hypothesis.strategies as st
import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hypothesis import given, settings

from service import http2, http2_allowance
from service.http2 import MAX_STREAMS
from tests.service.explaining import until
from tests.service.http2_peer import (
    CHAT,
    ECHO,
    HANG,
    REPEAT,
    SECONDS,
    Host,
    Peer,
    frame,
    framed,
    peer_of,
    serving,
    talking,
)

DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 1, 4
CALM = (ErrorCodes.ENHANCE_YOUR_CALM, None)  # what is still unread at the end may take the word along
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
async def peer(host: Host, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Peer]:
    async with talking(host) as peer:
        yield peer
    assert not caplog.records  # hostile or not: no fault of ours


def headers_of(peer: Peer, path: str = ECHO) -> bytes:
    peer.begin(path)
    return peer.http2.data_to_send()


VIOLATIONS: list[tuple[str, Callable[[Peer], bytes], ErrorCodes]] = [
    ("too large a frame", lambda _: frame(DATA, 0, 1, length=(1 << 14) + 1), ErrorCodes.FRAME_SIZE_ERROR),
    ("too large a frame of no kind", lambda _: frame(99, 0, 1, length=1 << 23), ErrorCodes.FRAME_SIZE_ERROR),
    ("data on no stream", lambda _: frame(DATA, 0, 0, b"a"), ErrorCodes.PROTOCOL_ERROR),
    ("data on an idle stream", lambda _: frame(DATA, 0, 7, b"a"), ErrorCodes.PROTOCOL_ERROR),
    ("an even stream", lambda _: frame(HEADERS, END_HEADERS, 2, b"\x83"), ErrorCodes.PROTOCOL_ERROR),
    ("no pseudo headers", lambda _: frame(HEADERS, END_HEADERS, 1, b"\x90"), ErrorCodes.PROTOCOL_ERROR),
    ("a broken block", lambda _: frame(HEADERS, END_HEADERS, 1, b"\xff\xff"), ErrorCodes.PROTOCOL_ERROR),
    ("a lone continuation", lambda _: frame(CONTINUATION, 0, 1, b"a"), ErrorCodes.PROTOCOL_ERROR),
    ("a push", lambda _: frame(PUSH, END_HEADERS, 1, bytes(4)), ErrorCodes.PROTOCOL_ERROR),
    ("a short ping", lambda _: frame(PING, 0, 0, b"abc"), ErrorCodes.FRAME_SIZE_ERROR),
    ("a ping on a stream", lambda _: frame(PING, 0, 1, bytes(8)), ErrorCodes.PROTOCOL_ERROR),
    ("half a setting", lambda _: frame(SETTINGS, 0, 0, b"abc"), ErrorCodes.FRAME_SIZE_ERROR),
    (
        "a window of nothing",
        lambda _: frame(WINDOW, 0, 0, bytes(4)),
        ErrorCodes.PROTOCOL_ERROR,
    ),
    (
        "a window that overflows",
        lambda _: frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff"),
        ErrorCodes.FLOW_CONTROL_ERROR,
    ),
    (
        "headers in between",
        lambda _: frame(HEADERS, 0, 1, b"\x83") + frame(PING, 0, 0, bytes(8)),
        ErrorCodes.PROTOCOL_ERROR,
    ),
    (
        "a block without end",
        lambda _: frame(HEADERS, 0, 1, b"\x83") + frame(CONTINUATION, 0, 1, bytes(1 << 14)) * 5,
        ErrorCodes.ENHANCE_YOUR_CALM,
    ),
    (
        "empty continuations",
        lambda _: frame(HEADERS, 0, 1, b"\x83") + frame(CONTINUATION, 0, 1) * 3000,
        ErrorCodes.PROTOCOL_ERROR,
    ),
    (
        "a header bomb",  # one long header in the table, named again and again
        lambda _: frame(HEADERS, END_HEADERS, 1, b"\x40\x01a\x7f\x81\x1e" + b"x" * 4000 + b"\xbe" * 10_000),
        ErrorCodes.ENHANCE_YOUR_CALM,
    ),
]


@pytest.mark.parametrize(
    ("bytes_of", "code"), [case[1:] for case in VIOLATIONS], ids=[case[0] for case in VIOLATIONS]
)
async def test_violations(
    peer: Peer, host: Host, bytes_of: Callable[[Peer], bytes], code: ErrorCodes
) -> None:
    await peer.until(lambda: peer.received)
    peer.writer.write(bytes_of(peer))
    assert await peer.said_no() == code
    assert peer.closed
    await until(lambda: not host.connections)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nhost: t\r\n\r\n",
        bytes(1000),
        b"PRI * HTTP/2.0\r\n\r\nXX",
        b"\x16\x03\x01\x02\x00\x01",
    ],
)
async def test_what_is_no_http2(host: Host, said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(host) as port, peer_of(port, hello=False) as peer:
        peer.writer.write(said)
        await peer.until(lambda: False)
        assert peer.closed
    assert not caplog.records


@pytest.mark.parametrize("said", [b"", PREFACE[:10], PREFACE])
async def test_half_open_connections(host: Host, said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "_HELLO_S", 0.05)
    async with serving(host) as port, peer_of(port, hello=False) as peer:
        peer.writer.write(said)
        async with asyncio.timeout(SECONDS):
            await peer.reader.read()
    await until(lambda: not host.connections)


async def test_a_block_of_headers_that_stops(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    await peer.ended(peer.call(ECHO, b""))
    monkeypatch.setattr(http2, "_HELLO_S", 0.05)
    peer.writer.write(frame(HEADERS, 0, 3, b"\x83"))
    await peer.until(lambda: False)
    assert peer.closed


@pytest.mark.parametrize(
    "piece",
    [
        frame(PING, 0, 0, bytes(8)),
        frame(SETTINGS, 0, 0, b"\0\4\0\0\xff\xff"),
        frame(PRIORITY, 0, 1, bytes(4) + b"\1"),
        frame(99, 0, 0, b"a"),
    ],
    ids=["ping", "settings", "priority", "unknown"],
)
async def test_floods(peer: Peer, piece: bytes) -> None:
    """Of frames that cost their sender next to nothing."""
    peer.writer.write(piece * 3000)
    assert await peer.said_no() in CALM


async def test_a_ping_is_answered(peer: Peer) -> None:
    for _ in range(400):  # one or two for each call, as some clients send them
        peer.http2.ping(b"12345678")
        peer.http2.ping(b"12345678")
        await peer.ended(peer.call(ECHO, b""))
    assert peer.goaway is None


async def test_a_ping_for_each_piece_of_an_answer(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As grpc-go measures the way while a stream is answered."""
    monkeypatch.setattr(http2_allowance, "_PER_S", 0.0)
    stream_id = peer.begin(CHAT)
    answer = peer.answers[stream_id]
    for said in range(1, 1500):
        peer.http2.send_data(stream_id, framed(b"a"))
        peer.http2.ping(b"12345678")
        await peer.until(lambda said=said: len(answer.data) == 6 * said)
        assert not peer.closed


async def test_calls_given_up_at_their_deadlines(
    peer: Peer, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """En masse, as by a proxy whose callers wait for less than an overloaded server takes."""
    monkeypatch.setattr(http2_allowance, "_PER_S", 0.0)
    for _ in range(12):
        came = len(host.began) + 100
        calls = [peer.call(HANG, b"") for _ in range(100)]
        await peer.until(lambda came=came: len(host.began) == came)
        await asyncio.sleep(2 * http2._RAPID_S)
        for stream_id in calls:
            peer.http2.reset_stream(stream_id, ErrorCodes.CANCEL)
        await peer.until(lambda came=came: len(host.cancelled) == came)
        assert not peer.closed


async def test_resets_that_come_after_the_answer(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_allowance, "_PER_S", 0.0)
    for _ in range(1200):
        stream_id = peer.call(ECHO, b"")
        await peer.ended(stream_id)
        peer.writer.write(frame(RST, 0, stream_id, bytes(4)))
    assert (await peer.ended(peer.call(ECHO, b"on"))).message == b"on"


async def test_rapid_resets(peer: Peer, host: Host) -> None:
    """CVE-2023-44487: calls that are begun and dropped faster than they could be run."""
    for _ in range(3000):
        stream_id = peer.call(HANG, b"")
        peer.http2.reset_stream(stream_id)
    assert await peer.said_no() in CALM
    assert len(host.began) < 2000
    await until(lambda: len(host.cancelled) == len(host.began))


async def test_as_many_calls_as_are_allowed(peer: Peer, host: Host) -> None:
    await peer.until(lambda: peer.received)
    for _ in range(MAX_STREAMS):
        peer.call(HANG, b"")
    await peer.until(lambda: len(host.began) == MAX_STREAMS or peer.closed)
    peer.http2.remote_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 1000
    peer.http2.remote_settings.acknowledge()
    answer = await peer.ended(peer.call(HANG, b""))
    assert answer.reset == ErrorCodes.REFUSED_STREAM
    assert len(host.began) == MAX_STREAMS


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_mangled_frames(data: st.DataObject) -> None:
    """A sound conversation with bytes changed: every connection ends or goes on, and no fault is logged."""
    asyncio.run(mangled(data))


async def mangled(data: st.DataObject) -> None:
    host = Host()
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    async with serving(host) as port:
        async with peer_of(port) as peer:
            peer.call(ECHO, b"abc")
            stream_id = peer.begin(CHAT)
            peer.http2.send_data(stream_id, framed(b"x") * 3)
            peer.call(REPEAT, b"20")
            said = bytearray(peer.http2.data_to_send())
            for _ in range(data.draw(st.integers(1, 6))):
                said[data.draw(st.integers(0, len(said) - 1))] = data.draw(st.integers(0, 255))
            peer.writer.write(bytes(said))
            peer.writer.write_eof()
            async with asyncio.timeout(10):
                while await peer.reader.read(1 << 16):
                    pass
        await until(lambda: not host.connections)
        async with peer_of(port) as other:
            assert (await other.ended(other.call(ECHO, b"on"))).message == b"on"
    assert not faults
