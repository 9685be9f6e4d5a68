"""Peers of the gRPC end that mean harm: frames made by hand, against a gateway in a process of its own.

Whatever they do, honest calls are answered, the process lives, and its memory stays within bounds.
"""

import contextlib
import gzip
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.service import handmade
from tests.service.child import grpc_address, ready_line, serve
from tests.service.messages import GOOD, ROW, request, tensor

SECONDS = 60
MEBIBYTE = 1 << 20
INFER = b"/inference.GRPCInferenceService/ModelInfer"
DATA, HEADERS, RST, SETTINGS, PING = 0, 1, 3, 4, 6
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream_id: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + body


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HELLO = PREFACE + frame(SETTINGS, 0, 0)


def block(path: bytes = INFER, *more: tuple[bytes, bytes]) -> bytes:
    """Headers of a call, none of which a table takes up."""
    headers = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"t"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *more,
    )
    return b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in headers
    )


def call(path: bytes, body: bytes, stream_id: int = 1, encoding: bytes | None = None) -> bytes:
    more = () if encoding is None else ((b"grpc-encoding", encoding),)
    message = bytes([encoding is not None]) + len(body).to_bytes(4, "big") + body
    pieces = [message[start : start + 16384] for start in range(0, len(message), 16384)]
    frames = [frame(HEADERS, END_HEADERS, stream_id, block(path, *more))]
    frames += [frame(DATA, 0, stream_id, piece) for piece in pieces]
    return b"".join([*frames, frame(DATA, END_STREAM, stream_id)])


@dataclass(frozen=True)
class HostileTarget:
    address: str
    process: psutil.Process
    stub: Any

    def check_sound(self) -> None:
        """It answers as it should."""
        answer = self.stub.ModelInfer(request("score", GOOD), timeout=SECONDS)
        y = np.frombuffer(answer.raw_output_contents[0], np.float32)
        np.testing.assert_allclose(y, handmade.predict(ROW), rtol=1e-6)

    @contextlib.contextmanager
    def connected(self) -> Iterator[socket.socket]:
        host, port = self.address.split(":")
        with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
            yield connection

    @contextlib.contextmanager
    def within(self, mebibytes: int) -> Iterator[None]:
        """Memory does not grow by more meanwhile."""
        before, peak, over = self.process.memory_info().rss, 0, threading.Event()

        def watch() -> None:
            nonlocal peak
            while not over.wait(0.005):
                peak = max(peak, self.process.memory_info().rss)

        with ThreadPoolExecutor(1) as thread:
            watching = thread.submit(watch)
            try:
                yield
            finally:
                over.set()
                watching.result()
        assert peak - before < mebibytes * MEBIBYTE, f"{(peak - before) / MEBIBYTE:.0f} MiB"


@pytest.fixture(scope="module")
def target(repository: Path) -> Iterator[HostileTarget]:
    with serve("--port", "0", "--repository", str(repository)) as child:
        address = grpc_address(ready_line(child)[1])
        with grpc.insecure_channel(address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            target = HostileTarget(address, psutil.Process(child.pid), stub)
            target.check_sound()
            yield target


def read_until(connection: socket.socket, until: bytes = b"grpc-status") -> bytes:
    """What comes until those bytes, or the end of the connection."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while until not in received and (piece := connection.recv(65536)):
            received += piece
    return received


# --- frames -------------------------------------------------------------------------------------------

VIOLATIONS = {  # of gRPC's own rules; HTTP/2 is gRPC's library's
    "half a message": lambda: HELLO + call(INFER, bytes(100))[:-40],
    "a path that is no text": lambda: HELLO + call(b"/a\xff\xfe/\xff", b""),
    "an empty path": lambda: HELLO + call(b"", b""),
    "metadata that are no text": lambda: (
        HELLO + frame(HEADERS, END_HEADERS | END_STREAM, 1, block(INFER, (b"x-request-id", b"\xff\xfe")))
    ),
    "no gzip": lambda: HELLO + call(INFER, b"no gzip", encoding=b"gzip"),
    "an unknown encoding": lambda: HELLO + call(INFER, b"", encoding=b"zstd"),
    "a flag that is none": lambda: (
        HELLO + frame(HEADERS, END_HEADERS, 1, block()) + frame(DATA, END_STREAM, 1, b"\7\0\0\0\1a")
    ),
}


@pytest.mark.parametrize("violation", VIOLATIONS)
def test_violations(target: HostileTarget, violation: str) -> None:
    with target.connected() as connection:
        with contextlib.suppress(OSError):
            connection.sendall(VIOLATIONS[violation]())
            connection.shutdown(socket.SHUT_WR)
        read_until(connection)
    target.check_sound()


FLOODS: dict[str, Callable[[int], bytes]] = {
    "pings": lambda _: frame(PING, 0, 0, bytes(8)),
    "calls": lambda i: frame(HEADERS, END_HEADERS, 2 * i + 1, block()),
    "calls that are reset": lambda i: (  # CVE-2023-44487
        frame(HEADERS, END_HEADERS, 2 * i + 1, block()) + frame(RST, 0, 2 * i + 1, b"\0\0\0\x08")
    ),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_floods(target: HostileTarget, flood: str) -> None:
    """Of frames that cost their sender next to nothing: others are answered while they come."""
    frames = b"".join(FLOODS[flood](number) for number in range(20_000))
    with target.within(100), target.connected() as connection:
        connection.sendall(HELLO)
        connection.setblocking(False)
        unsent, answered = memoryview(frames), 0
        end_s = time.monotonic() + SECONDS
        while unsent and time.monotonic() < end_s:
            readable, writable, _ = select.select([connection], [connection], [], 0.05)
            try:
                if readable and not connection.recv(65536):
                    break
                if writable:
                    unsent = unsent[connection.send(unsent[:65536]) :]
            except ConnectionError:
                break
            if answered < 3:
                target.check_sound()
                answered += 1
    target.check_sound()


# --- messages -----------------------------------------------------------------------------------------

LARGE = 60 * MEBIBYTE
BOMBS = {
    "an id": lambda: request("absent", GOOD, id=" " * LARGE),
    "a raw tensor": lambda: pb.ModelInferRequest(model_name="score", raw_input_contents=[bytes(LARGE)]),
    "typed values": lambda: request("score", tensor(fp32_contents=np.zeros(LARGE // 4, np.float32))),
}


SLOW_BOMBS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("an id", "typed values")]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["a raw tensor", *SLOW_BOMBS])
def test_gzip_bombs(target: HostileTarget, kind: str) -> None:
    """60 KB each, and a thousand times as much when they are inflated."""
    bombs(target, BOMBS[kind]().SerializeToString(), 4)


@pytest.mark.slow
def test_gzip_bombs_of_many(target: HostileTarget) -> None:
    """An honest call behind them does not wait until they are read."""
    assert bombs(target, BOMBS["a raw tensor"]().SerializeToString(), 30) < 20


def bombs(target: HostileTarget, message: bytes, count: int) -> int:
    """From as many connections; gives how many were answered before an honest call that came after them."""
    bomb = call(INFER, gzip.compress(message, 9), encoding=b"gzip")
    assert len(bomb) < 1 << 16  # what may be sent before anybody reads it
    with target.within(500), contextlib.ExitStack() as connections:
        senders = [connections.enter_context(target.connected()) for _ in range(count)]
        for sender in senders:
            sender.sendall(HELLO)
        time.sleep(0.2)
        for sender in senders:
            sender.sendall(bomb)
        time.sleep(0.2)
        target.check_sound()
        answered = sum(b"grpc-status" in sender.recv(65536, socket.MSG_PEEK) for sender in senders)
        for sender in senders:
            assert b"grpc-status" in read_until(sender)
    return answered


def test_compressed_without_end(target: HostileTarget) -> None:
    """More than a message may have, in whatever few bytes: it is not inflated to its end."""
    bomb = gzip.compress(bytes(64 * MEBIBYTE), 9) * 2
    with target.within(300), target.connected() as connection:
        connection.sendall(HELLO + call(INFER, bomb[:65_000], encoding=b"gzip"))
        received = read_until(connection)
    assert b"grpc-status" in received
    target.check_sound()


@pytest.mark.full
def test_callers_that_take_no_answer(repository: Path) -> None:
    """Their answers count as waiting bytes: when those are used up, others are told to come back."""
    limits = {"RATIONALE_MAX_QUEUE_BYTES": 50 * MEBIBYTE, "RATIONALE_MAX_GRPC_MESSAGE_BYTES": 32 * MEBIBYTE}
    options = {name: str(limit) for name, limit in limits.items()}
    with serve("--port", "0", "--repository", str(repository), **options) as child:
        address = grpc_address(ready_line(child)[1])
        with grpc.insecure_channel(address, (("grpc.max_receive_message_length", -1),)) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            target = HostileTarget(address, psutil.Process(child.pid), stub)
            target.check_sound()
            x = np.zeros((1, 2 * MEBIBYTE), np.float32)
            ask = request("open", *(tensor(name, shape=x.shape) for name in "xz"))
            ask.raw_input_contents.extend([x.tobytes()] * 2)
            with target.within(400), contextlib.ExitStack() as connections:
                for _ in range(20):
                    connection = connections.enter_context(target.connected())
                    connection.sendall(HELLO + call(INFER, ask.SerializeToString()))
                time.sleep(1)
                target.check_sound()
