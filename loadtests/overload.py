"""More requests than can be answered: are those that are accepted in time, and the others refused at once?

    python -m loadtests.overload [--model network|credit] [--width 1024] [--profile short|full]

Several client processes find out what the gateway can sustain: each connection asks as soon as it has its
answer, on the best of a few numbers of connections. Then they send three times as many requests, at fixed
times, each with a deadline. Both come several times in turn, the sustained load first and last: machines are
not equally fast all the time, and each overload is held against the two loads around it. Printed are what a
request computes, the times of answers and refusals, the throughput beside its peak, the same by the server's
CPU time, and its memory. Clients and server share the machine's cores.
"""

import argparse
import contextlib
import multiprocessing
import os
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnxruntime as ort

from loadtests import models, wire
from loadtests.client import Drive, Tally, drive
from loadtests.processes import Server, gateway
from loadtests.systems import OURS, Variant, configure


@dataclass(frozen=True)
class Profile:
    """Seconds of each sustained load and of each overload, and how often these come."""

    sustained_s: float
    overload_s: float
    rounds: int


PROFILES = {"short": Profile(2.5, 5.0, 2), "full": Profile(10.0, 60.0, 2)}
FACTOR = 3.0
SUSTAINED = (8, 32)  # connections of each process
_SAMPLE_S = 0.1
_RUNS = 30


@dataclass(frozen=True)
class Phase:
    """A sustained load or an overload: answers per second, and per second of the server's CPU."""

    rate: float
    per_cpu_s: float


@dataclass(frozen=True)
class Outcome:
    """Overloads, and the sustained loads around them, one more. `tally` is of the overloads."""

    peaks: list[Phase]
    overloads: list[Phase]
    deadline_s: float
    tally: Tally
    memory_before: int
    memory_most: int

    @property
    def peak(self) -> float:
        """Answers per second."""
        return self._around(lambda phase: phase.rate)

    @property
    def throughput(self) -> float:
        """Answers per second under overload."""
        return _mean([phase.rate for phase in self.overloads])

    @property
    def kept(self) -> float:
        """The share of the peak that is answered under overload."""
        return self.throughput / self.peak

    @property
    def kept_each(self) -> list[float]:
        """The same of each overload beside the two loads around it."""
        return [
            2 * overload.rate / (before.rate + after.rate)
            for overload, (before, after) in zip(self.overloads, pairwise(self.peaks), strict=True)
        ]

    @property
    def kept_per_cpu_s(self) -> float:
        """As `kept`, of what a second of the server's CPU answers."""
        return _mean([phase.per_cpu_s for phase in self.overloads]) / self._around(
            lambda phase: phase.per_cpu_s
        )

    def _around(self, figure: Callable[[Phase], float]) -> float:
        """Of the loads around the overloads: those between two of them stand beside both."""
        return _mean([figure(phase) for pair in pairwise(self.peaks) for phase in pair])


def _mean(figures: Sequence[float]) -> float:
    return sum(figures) / len(figures)


def load_with(pool: ProcessPoolExecutor, processes: int, what: Drive) -> Tally:
    """The same drive in several processes at once; `what` is the share of each."""
    total = Tally()
    for tally in pool.map(drive, [what] * processes):
        total += tally
    return total


@contextlib.contextmanager
def memory_watched(server: Server) -> Iterator[list[int]]:
    """Fills the list with the server's resident bytes while the block runs."""
    seen = [server.memory_bytes()]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_SAMPLE_S):
            seen.append(server.memory_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def phase(pool: ProcessPoolExecutor, processes: int, server: Server, what: Drive) -> tuple[Phase, Tally]:
    """One load of all processes; `what` is the share of each."""
    used_s = server.cpu_s()
    tally = load_with(pool, processes, what)
    answered = tally.statuses[200]
    return Phase(answered / what.seconds, answered / (server.cpu_s() - used_s)), tally


def measure(
    server: Server,
    load: models.Load,
    *,
    profile: Profile,
    deadline_s: float,
    processes: int,
    connections: int,
) -> Outcome:
    """Sustained loads and overloads in turn. `connections` are each process's under overload."""
    path = f"/v2/models/{load.model}/explain"
    plain = wire.json_request(server.http, path, load.inputs)
    hurried = wire.json_request(
        server.http, path, load.inputs, {"x-request-timeout-ms": str(round(deadline_s * 1e3))}
    )
    total, overloads = Tally(), []
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        run = partial(phase, pool, processes, server)
        run(Drive(server.http, plain, 1, 4))  # the processes start; estimates are made
        loads = [Drive(server.http, plain, profile.sustained_s, each) for each in SUSTAINED]
        best = max(loads, key=lambda each: run(each)[0].rate)
        peaks = [run(best)[0]]
        with memory_watched(server) as memory:
            for _ in range(profile.rounds):
                rate = FACTOR * peaks[-1].rate / processes
                overload, tally = run(Drive(server.http, hurried, profile.overload_s, connections, rate))
                overloads.append(overload)
                total += tally
                peaks.append(run(best)[0])
    return Outcome(peaks, overloads, deadline_s, total, memory[0], max(memory))


@contextlib.contextmanager
def served(model: str, width: int) -> Iterator[tuple[Server, models.Load]]:
    """The gateway with the model under load, and what a request of it computes, printed."""
    with tempfile.TemporaryDirectory() as folder:
        if model == "credit":
            load, repository = models.credit(), Path("model_repository")
        else:
            repository = Path(folder)
            load = models.write_network(repository, width=width, references=250)
            # One computation on each core: what most requests a second can be had from.
            configure(repository, Variant(OURS, threads=1, workers=os.cpu_count() or 1))
        print(f"{row_ms(repository, load):.1f} ms of one core for each request")
        with gateway(repository, "--grpc-port", "off") as server:
            yield server, load


def row_ms(repository: Path, load: models.Load) -> float:
    """The explanation of one row in a bare ONNX Runtime on one core: the median of a few."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    path = repository / models.explain_entry(load) / "1" / "model.onnx"
    session = ort.InferenceSession(path, options)
    took_s = []
    for _ in range(_RUNS):
        began_s = time.perf_counter()
        session.run(None, load.inputs)
        took_s.append(time.perf_counter() - began_s)
    return float(np.median(took_s)) * 1e3


def allow_connections() -> None:
    """Each is a file; the usual limit of 1024 is for programs with fewer. Children inherit it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def report(outcome: Outcome) -> None:
    """Prints what became of the requests, and of the memory."""
    tally = outcome.tally
    peaks = ", ".join(f"{peak.rate:.0f}" for peak in outcome.peaks)
    print(
        f"sustained {outcome.peak:.0f} answers/s ({peaks}); {FACTOR:g} times as many requests between them:"
    )
    print(
        f"  answered  {outcome.throughput:.0f}/s, {outcome.kept:.0%} of the peak "
        f"({', '.join(f'{each:.0%}' for each in outcome.kept_each)}); "
        f"p50 {tally.percentile_ms(200, 50):.1f} ms, p99 {tally.percentile_ms(200, 99):.1f} ms "
        f"of {outcome.deadline_s * 1e3:.0f} ms"
    )
    print(
        f"  refused   {tally.statuses[429]} with 429: p50 {tally.percentile_ms(429, 50):.1f} ms, "
        f"p99 {tally.percentile_ms(429, 99):.1f} ms"
    )
    print(f"  by CPU    {outcome.kept_per_cpu_s:.0%} of what a second of the server's answers at the peak")
    others = {status: count for status, count in tally.statuses.items() if status not in (200, 429)}
    print(
        f"  others    {others or 'none'}; unsent {tally.unsent}, broken {tally.broken}, "
        f"unanswered {tally.unanswered}; the clients used {tally.cpu_s:.1f} s of CPU"
    )
    print(f"  memory    {outcome.memory_before >> 20} MiB before, {outcome.memory_most >> 20} MiB at most")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", choices=("network", "credit"), default="network")
    parser.add_argument("--width", type=int, default=1024, help="of the network's layers")
    parser.add_argument("--profile", choices=PROFILES, default="short")
    parser.add_argument("--deadline-ms", type=float, default=250)
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, 4))
    parser.add_argument("--connections", type=int, default=512, help="of each process, under overload")
    given = parser.parse_args()
    allow_connections()
    with served(given.model, given.width) as (server, load):
        report(
            measure(
                server,
                load,
                profile=PROFILES[given.profile],
                deadline_s=given.deadline_ms / 1e3,
                processes=given.processes,
                connections=given.connections,
            )
        )


if __name__ == "__main__":
    main()
