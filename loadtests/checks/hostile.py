"""Peers that mean harm, at both ends: are honest calls answered, and does the memory stay within bounds?

    python -m loadtests.checks.hostile [--connections 30] [--only "gzip bombs, grpc" …]

Each attack comes from many connections at once: gzip bombs (64 KB that inflate to 66 MB), floods of what
costs its sender next to nothing, heads and large bodies that never end, callers that take no answer.
Meanwhile honest calls come one after the other at both ends. Ends with 1 where one failed or took longer
than 1 s, or the memory grew by more than the gateway's budget for bodies and answers that wait, and 500 MB.

Then come single bodies that cost more than they weigh, at each route that reads some, to a gateway of 1 GB
(where this machine lets its memory be limited). Ends with 1 where one is answered wrongly, liveness took
longer than 1 s beside it, an honest call failed, or the memory grew by more than 300 MB.
"""

import argparse
import contextlib
import gzip
import select
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from loadtests.checks import bodies
from loadtests.load import raw
from loadtests.load.questions import EXPLAIN, PREDICT
from loadtests.systems import models
from loadtests.systems.process import Server, gateway, memory_watched
from service.settings import Settings

WITHIN_S = 1.0
BEYOND_BUDGET = 500_000_000
ATTACK_S = 5.0
_BOMB = 66_000_000
_FLOOD = 20_000
_TIMEOUT_S = 60.0
_PIECE = 1 << 16

# --- HTTP/2, as far as attacks go ---------------------------------------------------------------------

DATA, HEADERS, RST, SETTINGS, PING = 0, 1, 3, 4, 6
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream_id: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + body


HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0)
CALL = {
    b":method": b"POST",
    b":scheme": b"http",
    b":path": b"/inference.GRPCInferenceService/ModelInfer",
    b":authority": b"t",
    b"te": b"trailers",
    b"content-type": b"application/grpc",
    b"grpc-encoding": b"gzip",
}
HEAD = b"".join(b"\0" + bytes([len(k)]) + k + bytes([len(v)]) + v for k, v in CALL.items())


def call(message: bytes, compressed: bool) -> bytes:
    """A connection with one ModelInfer."""
    body = bytes([compressed]) + len(message).to_bytes(4, "big") + message
    pieces = (frame(DATA, 0, 1, body[at : at + 16384]) for at in range(0, len(body), 16384))
    begun = HELLO + frame(HEADERS, END_HEADERS, 1, HEAD)
    return b"".join([begun, *pieces, frame(DATA, END_STREAM, 1)])


def opened_and_reset(number: int) -> bytes:
    """CVE-2023-44487."""
    stream_id = 2 * number + 1
    return frame(HEADERS, END_HEADERS, stream_id, HEAD) + frame(RST, 0, stream_id, b"\0\0\0\x08")


# --- attacks ------------------------------------------------------------------------------------------

PREDICTED = models.question(models.NETWORK, PREDICT)
# As large as a call may be before anybody reads it; its answer is larger.
EXPLAINED = models.question(models.NETWORK, EXPLAIN, rows=600)


def http_bomb() -> bytes:
    body, headers = gzip.compress(b" " * _BOMB, 9), {"Content-Type": "application/json"}
    return raw.request("t", PREDICTED.path, body, headers | {"Content-Encoding": "gzip"})


def endless_body() -> bytes:
    return raw.request("t", PREDICTED.path, bytes(_BOMB), {"Content-Type": "application/json"})[:-1]


def grpc_bomb() -> bytes:
    message = service_pb2.ModelInferRequest(model_name=models.NETWORK, raw_input_contents=[bytes(_BOMB)])
    return call(gzip.compress(message.SerializeToString(), 9), compressed=True)


def asked_over_http() -> bytes:
    return raw.request("t", EXPLAINED.path, *EXPLAINED.as_json) * 20


def asked_over_grpc() -> bytes:
    return call(EXPLAINED.as_message.SerializeToString(), compressed=False)


@dataclass(frozen=True)
class Attack:
    """What each of the connections sends, and whether it takes what is answered."""

    end: str
    bytes_of: Callable[[], bytes]
    takes: bool = True


ATTACKS = {
    "gzip bombs, http": Attack("http", http_bomb),
    "gzip bombs, grpc": Attack("grpc", grpc_bomb),
    "refused requests": Attack("http", lambda: b"GET /nothing HTTP/1.1\r\nHost: t\r\n\r\n" * _FLOOD),
    "heads without end": Attack("http", lambda: b"POST / HTTP/1.1\r\n" + b"a: b\r\n" * 100),
    "bodies without end": Attack("http", endless_body),
    "pings": Attack("grpc", lambda: HELLO + frame(PING, 0, 0, bytes(8)) * _FLOOD),
    "calls that are reset": Attack("grpc", lambda: HELLO + b"".join(map(opened_and_reset, range(_FLOOD)))),
    "takes no answer, http": Attack("http", asked_over_http, takes=False),
    "takes no answer, grpc": Attack("grpc", asked_over_grpc, takes=False),
}


@contextlib.contextmanager
def attacked(address: str, attack: Attack, connections: int) -> Iterator[None]:
    """While the block runs; what the server closes stays closed."""
    host, _, port = address.rpartition(":")
    said, over = attack.bytes_of(), threading.Event()
    left = {socket.create_connection((host, int(port))): memoryview(said) for _ in range(connections)}

    def send() -> None:
        going = set(left)
        while not over.wait(0.001):
            readable, writable, _ = select.select(
                going if attack.takes else (), [each for each in going if left[each]], (), 0.05
            )
            for each in {*readable, *writable}:
                try:
                    if each in readable and not each.recv(_PIECE):
                        going.discard(each)
                    elif each in writable:
                        left[each] = left[each][each.send(left[each][:_PIECE]) :]
                except BlockingIOError:
                    pass
                except OSError:
                    going.discard(each)

    for each in left:
        each.setblocking(False)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()
        for each in left:
            each.close()


# --- honest calls -------------------------------------------------------------------------------------


def by_http(address: str) -> None:
    """On a connection of its own. Raises RuntimeError: it is refused."""
    with contextlib.closing(HTTPConnection(address, timeout=_TIMEOUT_S)) as connection:
        connection.request("POST", PREDICTED.path, *PREDICTED.as_json)
        reply = connection.getresponse()
        said = reply.read()
        if reply.status != raw.OK:
            raise RuntimeError(f"an honest call was answered with {reply.status}: {said[:200]!r}")


def by_grpc(address: str) -> None:
    """On a connection of its own. Raises grpc.RpcError: it is refused."""
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        stub.ModelInfer(PREDICTED.as_message, timeout=_TIMEOUT_S)


@dataclass(frozen=True)
class Outcome:
    """Seconds of the honest calls, by end; why some failed; by how much the memory grew at most."""

    took_s: dict[str, list[float]]
    failed: list[str]
    grown: int

    def report(self, attack: str, most: int) -> bool:
        """Prints it, and says whether it is too much; the memory may grow by `most` bytes."""
        http_s, grpc_s = (max(took_s) for took_s in self.took_s.values())
        print(
            f"{attack:21} {len(self.took_s['http'])} honest calls at each end, the longest {http_s:.2f} s "
            f"by HTTP, {grpc_s:.2f} s by gRPC; memory +{self.grown / 1e6:.0f} MB of {most / 1e6:.0f}",
            *self.failed[:3],
            sep="\n  ",
            flush=True,
        )
        return bool(self.failed) or max(http_s, grpc_s) > WITHIN_S or self.grown > most


def measure(server: Server, attack: Attack, connections: int) -> Outcome:
    """Honest calls, one after the other, while the attack goes on."""
    addresses = {"http": server.http, "grpc": server.grpc or ""}
    took_s: dict[str, list[float]] = {end: [] for end in addresses}
    failed = []
    with memory_watched(server) as memory, attacked(addresses[attack.end], attack, connections):
        time.sleep(0.2)
        end_s = time.monotonic() + ATTACK_S
        while time.monotonic() < end_s:
            for end, ask in (("http", by_http), ("grpc", by_grpc)):
                began_s = time.perf_counter()
                try:
                    ask(addresses[end])
                except (RuntimeError, OSError, grpc.RpcError) as error:
                    failed.append(f"{end}: {error}")
                took_s[end].append(time.perf_counter() - began_s)
    return Outcome(took_s, failed, max(memory) - memory[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--connections", type=int, default=30)
    known = [*ATTACKS, *bodies.names()]
    parser.add_argument("--only", nargs="*", choices=known, metavar="ATTACK", help=", ".join(known))
    given = parser.parse_args()
    most, failed = Settings().max_queue_bytes + BEYOND_BUDGET, False
    with tempfile.TemporaryDirectory() as folder:
        models.write_network(Path(folder), width=16, references=20)
        for name in [name for name in ATTACKS if name in (given.only or ATTACKS)]:
            with gateway(Path(folder)) as server:
                found = measure(server, ATTACKS[name], given.connections)
            failed |= found.report(name, most)
    failed |= bodies.check([name for name in bodies.names() if name in (given.only or known)])
    print("failed" if failed else "passed")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
