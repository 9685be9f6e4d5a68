"""One client process: asks as fast as it gets answers, or at fixed times. Imports little."""

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from loadtests import wire

_GRACE_S = 5.0  # for the last answers
_LOOK_S = 0.02
_LEAST_SLEEP_S = 0.001  # uvloop's timers are no finer: a shorter sleep is none


@dataclass(frozen=True)
class Drive:
    """What one client process does. `rate` requests a second at fixed times; None: each as soon as it can."""

    address: str
    request: bytes
    seconds: float
    connections: int
    rate: float | None = None


@dataclass
class Tally:
    """What came of it. Seconds by status; `unsent` found no free connection, `broken` lost theirs."""

    took_s: dict[int, list[float]] = field(default_factory=dict)
    unsent: int = 0
    broken: int = 0
    unanswered: int = 0
    cpu_s: float = 0.0

    def add(self, reply: wire.Reply) -> None:
        self.took_s.setdefault(reply.status, []).append(reply.took_s)

    def __iadd__(self, other: "Tally") -> "Tally":
        for status, took_s in other.took_s.items():
            self.took_s.setdefault(status, []).extend(took_s)
        for name in ("unsent", "broken", "unanswered", "cpu_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    @property
    def statuses(self) -> Counter[int]:
        return Counter({status: len(took_s) for status, took_s in self.took_s.items()})

    def percentile_ms(self, status: int, percent: float) -> float:
        took_s = self.took_s.get(status)
        return float(np.percentile(took_s, percent)) * 1e3 if took_s else float("nan")


def drive(what: Drive) -> Tally:
    """Runs in a process of its own."""
    with contextlib.suppress(ImportError):
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_drive(what))
    return asyncio.run(_drive(what))


async def _drive(what: Drive) -> Tally:
    tally = Tally()
    used_s = time.process_time()
    connections = [await wire.connect(what.address) for _ in range(what.connections)]
    end_s = time.perf_counter() + what.seconds
    if what.rate is None:
        await asyncio.gather(*(_ask_on(connection, what, tally, end_s) for connection in connections))
    else:
        await _AtRate(connections, what, tally).ask_until(end_s, what.rate)
    for connection in connections:
        connection.close()
    tally.cpu_s = time.process_time() - used_s
    return tally


async def _ask_on(connection: wire.Connection, what: Drive, tally: Tally, end_s: float) -> None:
    while time.perf_counter() < end_s:
        tally.add(await connection.ask(what.request))


class _AtRate:
    """Asks at fixed times, on whichever connection is free, without a task for each request."""

    def __init__(self, connections: Sequence[wire.Connection], what: Drive, tally: Tally) -> None:
        self._free = deque(connections)  # the longest idle asks next: servers close idle ones
        self._what = what
        self._tally = tally
        self._under_way = 0
        self._connecting: set[asyncio.Task[None]] = set()

    async def ask_until(self, end_s: float, rate: float) -> None:
        began_s = time.perf_counter()
        sent = 0
        while (now_s := time.perf_counter()) < end_s:
            while sent < (now_s - began_s) * rate:
                self._ask()
                sent += 1
            await asyncio.sleep(max(began_s + sent / rate - time.perf_counter(), _LEAST_SLEEP_S))
        until_s = time.perf_counter() + _GRACE_S
        while self._under_way and time.perf_counter() < until_s:
            await asyncio.sleep(_LOOK_S)
        self._tally.unanswered = self._under_way

    def _ask(self) -> None:
        while self._free and self._free[0].is_closed:
            self._free.popleft()
            self._connect()
        if self._free:
            self._under_way += 1
            self._free.popleft().send(self._what.request, self._answered)
        else:
            self._tally.unsent += 1

    def _answered(self, connection: wire.Connection, reply: wire.Reply | Exception) -> None:
        self._under_way -= 1
        if isinstance(reply, wire.Reply):
            self._tally.add(reply)
            self._free.append(connection)
        else:
            self._tally.broken += 1
            self._connect()

    def _connect(self) -> None:
        async def connect() -> None:
            with contextlib.suppress(OSError):
                self._free.append(await wire.connect(self._what.address))

        task = asyncio.create_task(connect())
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
