"""Calls by HTTP/2 itself: what gRPC's own clients do not send, or do not let one see."""

import asyncio
import gzip
from collections.abc import AsyncIterator

import numpy as np
import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from service import http2
from service.http2 import STREAM_WINDOW
from tests.service.explaining import until
from tests.service.http2_peer import (
    CHAT,
    ECHO,
    HANG,
    LIMIT,
    LOST,
    REPEAT,
    Answer,
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


# --- calls --------------------------------------------------------------------------------------------


async def test_a_message_in_any_pieces(peer: Peer) -> None:
    message = bytes(range(256)) * 40
    for size in (1, 4, 5, 6, 1000, len(message) + 5):
        stream_id = peer.begin(ECHO)
        data = framed(message)
        for at in range(0, len(data), size):
            peer.http2.send_data(stream_id, data[at : at + size], end_stream=at + size >= len(data))
        answer = await peer.ended(stream_id)
        assert (answer.status, answer.message) == ("0", message)


async def test_padded_data_and_early_ends(peer: Peer) -> None:
    stream_id = peer.begin(ECHO)
    peer.http2.send_data(stream_id, framed(b"a"), pad_length=200)
    peer.http2.end_stream(stream_id)
    assert (await peer.ended(stream_id)).message == b"a"
    stream_id = peer.begin(ECHO)
    peer.http2.send_data(stream_id, framed(b"a"))
    peer.http2.send_headers(stream_id, [("t", "t")], end_stream=True)  # trailers
    assert (await peer.ended(stream_id)).message == b"a"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", b"ends before its message does"),
        (b"\0\0", b"ends before its message does"),
        (framed(b"abc")[:-1], b"ends before its message does"),
        (framed(b"a") + framed(b"b"), b"one message"),
        (framed(gzip.compress(b"a", mtime=0), compressed=True), b"grpc-encoding does not say how"),
        (b"\2\0\0\0\0", b"grpc-encoding does not say how"),
    ],
)
async def test_what_is_no_message(peer: Peer, host: Host, data: bytes, said: bytes) -> None:
    stream_id = peer.begin(ECHO)
    peer.http2.send_data(stream_id, data, end_stream=True)
    answer = await peer.ended(stream_id)
    assert (answer.status, said in answer.headers[b"grpc-message"]) == ("3", True)
    assert not host.began


async def test_a_stream_that_ends_within_a_message(peer: Peer) -> None:
    stream_id = peer.begin(CHAT)
    peer.http2.send_data(stream_id, framed(b"a") + b"\0\0", end_stream=True)
    answer = await peer.ended(stream_id)
    assert (answer.status, answer.message) == ("3", b"a")


async def test_compressed_messages(peer: Peer) -> None:
    for sent, status in (
        (gzip.compress(b"a" * 1000), "0"),
        (b"no gzip", "3"),
        (gzip.compress(b"a" * 1000)[:-9], "3"),
        (gzip.compress(b"a" * (LIMIT + 1)), "8"),
    ):
        stream_id = peer.begin(ECHO, ("grpc-encoding", "gzip"))
        peer.http2.send_data(stream_id, framed(sent, compressed=True), end_stream=True)
        assert (await peer.ended(stream_id)).status == status
    answer = await peer.ended(peer.call(ECHO, b"a", ("grpc-encoding", "snappy")))
    assert answer.status == "12"
    assert b"gzip" in answer.headers[b"grpc-accept-encoding"]


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ((":method", "GET"), b"405"),
        (("content-type", "application/json"), b"415"),
        (("content-type", "application/grpc-web"), b"415"),
        (("content-type", "application/grpc+proto; v=1"), b"200"),
    ],
)
async def test_what_is_http_but_no_call(peer: Peer, header: tuple[str, str], status: bytes) -> None:
    stream_id = peer.http2.get_next_available_stream_id()
    headers = {":method": "POST", ":scheme": "http", ":path": ECHO, ":authority": "t"}
    headers |= {"content-type": "application/grpc"} | dict([header])
    peer.answers[stream_id] = Answer()
    peer.http2.send_headers(stream_id, list(headers.items()))
    peer.http2.send_data(stream_id, framed(b"a"), end_stream=True)
    assert (await peer.ended(stream_id)).headers[b":status"] == status


async def test_unknown_methods(peer: Peer) -> None:
    answer = await peer.ended(peer.begin("/t/Absent"))  # before its message comes
    assert (answer.status, answer.headers[b"problem"]) == ("12", b"not-offered")


@pytest.mark.parametrize("text", ["", "1", "s", "1s", "123456789S", "-1S", "1 S"])
async def test_deadlines_that_are_none(peer: Peer, text: str) -> None:
    assert (await peer.ended(peer.call(ECHO, b"", ("grpc-timeout", text)))).status == "3"


@pytest.mark.parametrize("path", [HANG, CHAT])
@pytest.mark.parametrize("text", ["0n", "20m", "20000u"])
async def test_a_deadline_ends_a_call(peer: Peer, host: Host, path: str, text: str) -> None:
    """Whether or not its handler knows of it."""
    stream_id = peer.begin(path, ("grpc-timeout", text))
    peer.http2.send_data(stream_id, framed(b"a"), end_stream=path == HANG)
    assert (await peer.ended(stream_id)).status == "4"
    await until(lambda: host.cancelled == [path])


async def test_a_caller_that_resets_its_call_ends_the_work(peer: Peer, host: Host) -> None:
    for path in (HANG, CHAT):
        stream_id = peer.begin(path)
        peer.http2.send_data(stream_id, framed(b"a"), end_stream=path == HANG)
        await peer.until(lambda path=path: path in host.began)
        peer.http2.reset_stream(stream_id, ErrorCodes.CANCEL)
        peer.flush()
        await until(lambda path=path: path in host.cancelled)
    assert (await peer.ended(peer.call(ECHO, b"on"))).message == b"on"


async def test_a_caller_that_is_gone_ends_the_work(host: Host) -> None:
    async with talking(host) as peer:
        peer.call(HANG, b"")
        peer.flush()
        await until(lambda: host.began)
    await until(lambda: host.cancelled and not host.connections)


async def test_a_call_whose_message_never_comes() -> None:
    async with talking(Host(patience_s=0.05)) as peer:
        stream_id = peer.begin(ECHO)
        peer.http2.send_data(stream_id, b"\0\0")
        answer = await peer.ended(stream_id)
        assert (answer.status, answer.headers[b"problem"]) == ("4", b"slow-body")


@pytest.mark.parametrize("text", ["99999999H", "60S"])
async def test_a_long_deadline_leaves_no_more_time_for_a_message(text: str) -> None:
    async with talking(Host(patience_s=0.05)) as peer:
        stream_id = peer.begin(ECHO, ("grpc-timeout", text))
        peer.http2.send_data(stream_id, b"\0\0")
        assert (await peer.ended(stream_id)).headers[b"problem"] == b"slow-body"


async def test_a_message_of_a_stream_that_does_not_go_on() -> None:
    async with talking(Host(patience_s=0.1)) as peer:
        stream_id = peer.begin(CHAT)
        peer.http2.send_data(stream_id, framed(b"a"))
        await peer.until(lambda: peer.answers[stream_id].data == framed(b"a"))
        await asyncio.sleep(0.2)  # between messages there is no hurry
        peer.http2.send_data(stream_id, framed(b"b") + b"\0\0")
        peer.flush()
        answer = await peer.ended(stream_id)
        assert (answer.data, answer.headers[b"problem"]) == (framed(b"a") + framed(b"b"), b"slow-body")


async def test_patience_ends_with_the_message() -> None:
    async with talking(Host(patience_s=0.05)) as peer:
        for text in ("200m", "60S"):
            stream_id = peer.begin(HANG, ("grpc-timeout", text))
            peer.http2.send_data(stream_id, framed(b""))
            peer.http2.end_stream(stream_id)
        assert (await peer.ended(1)).headers[b"problem"] == b"deadline-exceeded"
        assert not peer.answers[3].ended


@pytest.mark.parametrize("after_ms", [b"0", b"10"])
async def test_work_that_is_given_up_is_answered(peer: Peer, after_ms: bytes) -> None:
    """Cancelled by something of its own, not by its caller."""
    for _ in range(2):
        answer = await peer.ended(peer.call(LOST, after_ms))
        assert (answer.status, answer.headers[b"problem"]) == ("14", b"not-ready")
    assert (await peer.ended(peer.call(ECHO, b"on"))).message == b"on"


async def test_a_peer_that_says_goodbye_gets_its_answers(peer: Peer, host: Host) -> None:
    stream_id = peer.begin(CHAT)
    peer.http2.send_data(stream_id, framed(b"a"))
    await peer.until(lambda: host.began)
    peer.writer.write(frame(GOAWAY, 0, 0, bytes(8)))
    peer.http2.send_data(stream_id, framed(b"b"), end_stream=True)
    answer = await peer.ended(stream_id)
    assert (answer.status, answer.data) == ("0", framed(b"a") + framed(b"b"))
    await peer.until(lambda: False)
    assert peer.closed


async def test_an_orderly_stop(peer: Peer, host: Host) -> None:
    """What runs is answered, what is new is refused, then the connection closes."""
    stream_id = peer.begin(CHAT)
    peer.http2.send_data(stream_id, framed(b"a"))
    await peer.until(lambda: host.began)
    (connection,) = host.connections
    connection.stop()
    await peer.until(lambda: peer.goaway is not None)
    assert peer.goaway == ErrorCodes.NO_ERROR
    peer.writer.write(
        frame(HEADERS, END_HEADERS, 3, b"\x83\x86\x41\x01t\x44\x07/t/Echo\x5f\x10application/grpc")
    )
    peer.writer.write(frame(DATA, END_STREAM, stream_id, framed(b"b")))
    said = await peer.reader.read()
    assert said.index(bytes([HEADERS, 5, 0, 0, 0, 3])) < said.index(framed(b"b"))  # its status alone
    assert host.began == [CHAT]
    assert not host.connections


async def test_a_warned_peer_is_answered_until_the_stop(peer: Peer, host: Host) -> None:
    """Two words of goodbye: the first takes no call back, the second those that have not come."""
    await peer.ended(peer.call(ECHO, b""))
    (connection,) = host.connections
    connection.warn()
    stream_id = peer.call(ECHO, b"on")
    peer.flush()
    said = await peer.reader.readuntil(framed(b"on"))
    assert frame(GOAWAY, 0, 0, ((1 << 31) - 1).to_bytes(4) + bytes(4)) in said
    connection.stop()
    assert frame(GOAWAY, 0, 0, stream_id.to_bytes(4) + bytes(4)) in await peer.reader.read()
    assert not host.connections


async def test_a_call_that_crosses_the_goodbye(peer: Peer, host: Host) -> None:
    """Does not meet a closed socket, which would take the goodbye along."""
    await peer.ended(peer.call(ECHO, b""))
    (connection,) = host.connections
    connection.stop()
    await until(lambda: not connection.transport.get_write_buffer_size())
    peer.call(ECHO, b"")
    peer.flush()
    said = await peer.reader.read()
    assert said[3] == GOAWAY
    assert bytes([HEADERS, 5, 0, 0, 0, 3]) in said  # its status alone


# --- sizes and windows --------------------------------------------------------------------------------


async def test_a_large_message_is_refused_by_its_length(peer: Peer, host: Host) -> None:
    """None of it needs to come."""
    for path in (ECHO, CHAT):
        stream_id = peer.begin(path)
        peer.http2.send_data(stream_id, b"\0" + (LIMIT + 1).to_bytes(4, "big"))
        answer = await peer.ended(stream_id)
        assert (answer.status, answer.headers[b"problem"]) == ("8", b"too-large")
    assert ECHO not in host.began


async def send_all(peer: Peer, stream_id: int, data: bytes) -> None:
    while data:
        await peer.until(lambda: peer.http2.local_flow_control_window(stream_id))
        size = min(peer.http2.local_flow_control_window(stream_id), 1 << 14, len(data))
        peer.http2.send_data(stream_id, data[:size], end_stream=size == len(data))
        data = data[size:]


async def test_messages_larger_than_any_window(peer: Peer) -> None:
    message = np.random.default_rng(1).bytes(LIMIT)
    for path in (ECHO, CHAT):
        stream_id = peer.begin(path)
        await send_all(peer, stream_id, framed(message))
        assert (await peer.ended(stream_id)).message == message


async def test_pieces_of_messages_are_counted_together(peer: Peer, host: Host) -> None:
    """As bodies over HTTP are; one alone is let in."""
    host.budget.take(10 * LIMIT - 1000)
    stream_id = peer.begin(ECHO)
    peer.http2.send_data(stream_id, framed(bytes(5000))[:2000])
    answer = await peer.ended(stream_id)
    assert (answer.status, answer.headers[b"problem"], answer.headers[b"retry-after"]) == (
        "8",
        b"queue-full",
        b"1",
    )
    host.budget.give_back(10 * LIMIT - 1000)
    host.budget.check(10 * LIMIT)  # nothing is left held


async def test_what_nobody_reads_waits_at_its_sender(peer: Peer) -> None:
    """The handler waits for room for its answer; meanwhile one window of requests comes, no more."""
    peer.takes = False
    peer.http2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    await peer.until(lambda: peer.received)
    stream_id = peer.begin(CHAT)
    sent = 0
    while sent < STREAM_WINDOW:
        size = min(1 << 14, STREAM_WINDOW - sent)
        await peer.until(lambda: peer.http2.outbound_flow_control_window >= 1 << 14)
        peer.http2.send_data(stream_id, (framed(bytes(95)) * 200)[:size])
        sent += size
    await peer.ended(peer.call("/t/Absent", b""))  # another stream is not held up
    assert peer.http2.streams[stream_id].outbound_flow_control_window < 100


async def test_an_answer_waits_for_its_reader(peer: Peer) -> None:
    """And is lost at its deadline."""
    peer.takes = False
    stream_id = peer.call(REPEAT, b"1000000", ("grpc-timeout", "500m"))
    answer = await peer.ended(stream_id)
    assert answer.status == "4"
    assert len(answer.data) == (1 << 16) - 1  # HTTP/2's first window


async def test_an_answer_that_never_moves_ends(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "_STALLED_S", 0.05)
    peer.takes = False
    answer = peer.answers[peer.call(REPEAT, b"1000000")]

    def ended() -> bool:
        peer.http2.increment_flow_control_window(1)  # the connection moves, the stream does not
        return answer.ended

    await peer.until(ended)
    assert (answer.status, b"does not take" in answer.headers[b"grpc-message"]) == ("4", True)


async def test_windows_that_change_under_way(peer: Peer) -> None:
    peer.http2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10})
    stream_id = peer.call(REPEAT, b"100000")
    await peer.until(lambda: len(peer.answers[stream_id].data) >= 10)
    peer.http2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    await peer.until(lambda: peer.http2.local_settings.initial_window_size == 0)
    peer.http2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
    assert (await peer.ended(stream_id)).message == b"x" * 100_000


async def test_settings_are_acknowledged_before_they_are_used(peer: Peer) -> None:
    """h2 as a client takes a frame of the new size for a fault until then."""
    await peer.ended(peer.call(ECHO, b""))
    peer.http2.update_settings(
        {SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20, SettingCodes.MAX_FRAME_SIZE: 1 << 18}
    )
    peer.http2.increment_flow_control_window(1 << 20)
    assert len((await peer.ended(peer.call(REPEAT, b"100000"))).message) == 100_000


@pytest.mark.parametrize("path", [ECHO, CHAT])
async def test_a_block_that_is_larger_when_it_is_read(peer: Peer, path: str) -> None:
    """Huffman's code makes a frame of what would not fit one."""
    await peer.ended(peer.call(ECHO, b""))
    stream_id = peer.begin(path, ("x", "a" * 20_000))
    peer.http2.send_data(stream_id, framed(b"abc"), end_stream=True)
    assert (await peer.ended(stream_id)).message == b"abc"


async def test_a_socket_that_nobody_reads(host: Host) -> None:
    """With windows as wide as they get; what is written ahead stays small, and the deadline frees it."""
    async with serving(host) as port, peer_of(port) as peer:
        peer.http2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: (1 << 31) - 1})
        peer.http2.increment_flow_control_window((1 << 31) - (1 << 16))
        peer.call(REPEAT, b"50000000", ("grpc-timeout", "1S"))
        peer.flush()
        await until(lambda: host.began)
        (connection,) = host.connections
        await until(lambda: not connection.may_write)
        assert connection.transport.get_write_buffer_size() < 1 << 20
        await until(lambda: not connection.tasks)
