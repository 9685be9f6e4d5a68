"""More load than locust can make of small requests: its HTTP client alone, in a process of its own.

A process asks as soon as it is answered, or at fixed times.
"""

import time
from dataclasses import dataclass, field

import gevent
import gevent.pool
import numpy as np
from geventhttpclient import HTTPClient

_GRACE_S = 5.0  # for the last answers
_SAMPLED = 16  # keep one in 16 answers, for a comparison after the load
OK = 200


@dataclass(frozen=True)
class Drive:
    """The load of one process: `rate` requests a second at fixed times; None: each as soon as it can."""

    address: str
    path: str
    body: bytes
    headers: dict[str, str]
    seconds: float
    connections: int
    rate: float | None = None


@dataclass
class DriveTally:
    """The answers: seconds by status, some of them whole; `unsent` requests found no free connection."""

    took_s: dict[int, list[float]] = field(default_factory=dict)
    sampled: list[bytes] = field(default_factory=list)
    unsent: int = 0
    broken: int = 0
    cpu_s: float = 0.0

    def __iadd__(self, other: "DriveTally") -> "DriveTally":
        for status, took_s in other.took_s.items():
            self.took_s.setdefault(status, []).extend(took_s)
        for name in ("sampled", "unsent", "broken", "cpu_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    def count(self, status: int) -> int:
        return len(self.took_s.get(status, ()))

    def percentile_ms(self, status: int, percent: float) -> float:
        took_s = self.took_s.get(status)
        return float(np.percentile(took_s, percent)) * 1e3 if took_s else float("nan")


def drive(load: Drive) -> DriveTally:
    """Put the load on the server."""
    tally, used_s = DriveTally(), time.process_time()
    host, _, port = load.address.rpartition(":")
    patience_s = load.seconds + _GRACE_S
    client = HTTPClient(
        host,
        int(port),
        concurrency=load.connections,
        connection_timeout=patience_s,
        network_timeout=patience_s,
    )

    def ask() -> None:
        began_s = time.perf_counter()
        try:
            answer = client.post(load.path, body=load.body, headers=load.headers)
            status, body = answer.status_code, bytes(answer.read())
        except OSError:
            tally.broken += 1
            return
        took_s = tally.took_s.setdefault(status, [])
        took_s.append(time.perf_counter() - began_s)
        if status == OK and len(took_s) % _SAMPLED == 1:
            tally.sampled.append(body)

    pool, began_s = gevent.pool.Pool(load.connections), time.perf_counter()

    def ask_again() -> None:
        while time.perf_counter() - began_s < load.seconds:
            ask()

    if load.rate is None:
        for _ in range(load.connections):
            pool.spawn(ask_again)
    else:
        for number in range(int(load.rate * load.seconds)):
            due_s = began_s + number / load.rate - time.perf_counter()
            gevent.sleep(max(due_s, 0))
            if pool.full():
                tally.unsent += 1
            else:
                pool.spawn(ask)
    pool.join()
    client.close()
    tally.cpu_s = time.process_time() - used_s
    return tally
