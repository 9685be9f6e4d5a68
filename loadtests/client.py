"""One client process: asks as fast as it gets answers, or at fixed times. Imports little."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from loadtests import wire

_GRACE_S = 5.0  # for the last answers


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
    connections = [await wire.connect(what.address) for _ in range(what.connections)]
    end_s = time.perf_counter() + what.seconds
    if what.rate is None:
        await asyncio.gather(*(_ask_on(connection, what, tally, end_s) for connection in connections))
    else:
        await _ask_at_rate(connections, what, tally, end_s)
    for connection in connections:
        connection.close()
    tally.cpu_s = time.process_time()
    return tally


async def _ask_on(connection: wire.Connection, what: Drive, tally: Tally, end_s: float) -> None:
    while time.perf_counter() < end_s:
        tally.add(await connection.ask(what.request))


async def _ask_at_rate(
    connections: Sequence[wire.Connection], what: Drive, tally: Tally, end_s: float
) -> None:
    free = list(connections)
    running: set[asyncio.Task[None]] = set()

    async def ask() -> None:
        connection = free.pop()
        try:
            if connection.is_closed:  # the server closes those that have been idle for long
                connection = await wire.connect(what.address)
            tally.add(await connection.ask(what.request))
            free.append(connection)
        except OSError:
            tally.broken += 1
            with contextlib.suppress(OSError):
                free.append(await wire.connect(what.address))

    began_s = time.perf_counter()
    sent = 0
    while (now_s := time.perf_counter()) < end_s:
        due = int((now_s - began_s) * (what.rate or 0))
        for _ in range(due - sent):
            if free:
                task = asyncio.create_task(ask())
                running.add(task)
                task.add_done_callback(running.discard)
                await asyncio.sleep(0)  # it takes its connection
            else:
                tally.unsent += 1
        sent = max(sent, due)
        await asyncio.sleep(0.001)
    if running:
        _, late = await asyncio.wait(running, timeout=_GRACE_S)
        tally.unanswered = len(late)
        for task in late:
            task.cancel()
