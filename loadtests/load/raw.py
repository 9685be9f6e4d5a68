"""HTTP/1.1 in as few microseconds as Python allows, where locust is too slow to ask: small models.

`drive` runs in a process of its own: it asks as soon as it is answered, or at fixed times.
"""

import asyncio
import re
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvloop

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_GRACE_S = 5.0  # for the last answers
_LEAST_SLEEP_S = 0.001  # uvloop's timers are no finer: a shorter sleep is none
_KEPT = 16  # of so many answers one is, to be compared after the load
OK = 200


def request(address: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """The bytes of a request, made once and sent many times."""
    lines = [f"POST {path} HTTP/1.1", f"Host: {address}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *(f"{k}: {v}" for k, v in headers.items()), "", ""]).encode() + body


class Connection(asyncio.Protocol):
    """One keep-alive connection; one request at a time. Answers must have a Content-Length."""

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport
        self._reply: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self._said += data
        head, end, body = self._said.partition(b"\r\n\r\n")
        length = _LENGTH.search(head) if end else None
        if length and len(body) >= int(length[1]) and not self._reply.done():
            self._reply.set_result((int(head[9:12]), body))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._reply.done():
            self._reply.set_exception(exc or ConnectionResetError("the server closed the connection"))

    @property
    def closed(self) -> bool:
        return self._transport.is_closing()

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body. Raises OSError where the connection breaks."""
        if self.closed:
            raise ConnectionResetError("the connection is closed")
        self._said, self._reply = b"", asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._reply

    def close(self) -> None:
        self._reply.cancel()
        self._transport.close()


async def connect(address: str) -> Connection:
    """`address` is host:port."""
    host, _, port = address.rpartition(":")
    _, connection = await asyncio.get_running_loop().create_connection(Connection, host, int(port))
    return connection


@dataclass(frozen=True)
class Drive:
    """What one process does: `rate` requests a second at fixed times; None: each as soon as it can."""

    address: str
    request: bytes
    seconds: float
    connections: int
    rate: float | None = None


@dataclass
class Tally:
    """What came of it. Seconds by status; some answers whole; `unsent` found no free connection."""

    took_s: dict[int, list[float]] = field(default_factory=dict)
    kept: list[bytes] = field(default_factory=list)
    unsent: int = 0
    broken: int = 0
    cpu_s: float = 0.0

    def __iadd__(self, other: "Tally") -> "Tally":
        for status, took_s in other.took_s.items():
            self.took_s.setdefault(status, []).extend(took_s)
        for name in ("kept", "unsent", "broken", "cpu_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    def count(self, status: int) -> int:
        return len(self.took_s.get(status, ()))

    def percentile_ms(self, status: int, percent: float) -> float:
        took_s = self.took_s.get(status)
        return float(np.percentile(took_s, percent)) * 1e3 if took_s else float("nan")

    async def ask(self, connection: Connection, request: bytes) -> bool:
        """One request, counted; False where the connection is of no more use."""
        began_s = time.perf_counter()
        try:
            status, body = await connection.ask(request)
        except OSError:
            self.broken += 1
            return False
        took_s = self.took_s.setdefault(status, [])
        took_s.append(time.perf_counter() - began_s)
        if status == OK and len(took_s) % _KEPT == 1:
            self.kept.append(body)
        return True


def drive(what: Drive) -> Tally:
    """Runs in a process of its own."""
    return uvloop.run(_drive(what))


async def _drive(what: Drive) -> Tally:
    tally, used_s = Tally(), time.process_time()
    free = deque([await connect(what.address) for _ in range(what.connections)])
    end_s = time.perf_counter() + what.seconds
    if what.rate is None:
        await asyncio.gather(*(_ask_on(each, what.request, tally, end_s) for each in free))
    else:
        await _ask_at(what.rate, free, what, tally)
    for connection in free:
        connection.close()
    tally.cpu_s = time.process_time() - used_s
    return tally


async def _ask_on(connection: Connection, request: bytes, tally: Tally, end_s: float) -> None:
    while time.perf_counter() < end_s and await tally.ask(connection, request):
        pass


async def _ask_at(rate: float, free: deque[Connection], what: Drive, tally: Tally) -> None:
    """The connection that has been idle longest asks next: servers close idle ones."""

    async def ask(connection: Connection) -> None:
        if connection.closed:
            connection = await connect(what.address)
        if not await tally.ask(connection, what.request):
            connection = await connect(what.address)
        free.append(connection)

    began_s, sent = time.perf_counter(), 0
    async with asyncio.timeout(what.seconds + _GRACE_S), asyncio.TaskGroup() as requests:
        while (passed_s := time.perf_counter() - began_s) < what.seconds:
            due = int(passed_s * rate) - sent
            sendable = min(due, len(free))
            for _ in range(sendable):
                requests.create_task(ask(free.popleft()))
            tally.unsent += due - sendable
            sent += due
            await asyncio.sleep(max((sent + 1) / rate - passed_s, _LEAST_SLEEP_S))
