"""Rows explained per second: the gateway beside a bare ONNX Runtime loop over the same entry, in turn.

    python -m loadtests.throughput [--width 1024] [--references 250] [--rows 1 16] [--rounds 7]

Server, client and loop share the same cores, the loop while the other two wait. The client is a process of
its own that decodes nothing. Loop and gateway each run in their best setting, found by a trial: one
computation on each core, or one on all. A ratio is taken in each round; printed are medians and quartiles.
"""

import argparse
import contextlib
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnxruntime as ort

from compiler.bench.timing import quartiles
from compiler.machine import LARGE_BLOCKS
from loadtests import models
from loadtests.closed_load import Arrays, Load, Protocol, count, decoded, request_for
from loadtests.processes import Server, gateway, restrict
from loadtests.systems import OURS, Variant, configure, variants

PROTOCOLS: tuple[Protocol, ...] = ("json", "binary", "grpc")
LEAST_COMPUTE_MS = 5.0  # of a row: what the claim is about
TOLERANCE = 1e-4  # of the largest value: batches and thread counts change the order of sums
_TRIAL_S = 0.5
Tried = TypeVar("Tried")


@dataclass(frozen=True)
class Loop:
    """`variant.workers` threads that run the entry without pause, on `variant.threads` cores each."""

    session: ort.InferenceSession
    variant: Variant

    def rate(self, inputs: Arrays, seconds: float) -> float:
        """Runs per second."""
        done = [0] * self.variant.workers
        end_s = time.perf_counter() + seconds

        def go_on(worker: int) -> None:
            while time.perf_counter() < end_s:
                self.session.run(None, inputs)
                done[worker] += 1

        workers = [threading.Thread(target=go_on, args=(worker,)) for worker in range(len(done))]
        began_s = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return sum(done) / (time.perf_counter() - began_s)


@dataclass(frozen=True)
class Turn:
    """A kind of request in one round, beside the loop's turn over as many rows; rates are rows per second."""

    protocol: str
    rows: int
    rate: float
    loop_rate: float
    client_share: float  # of one core

    @property
    def ratio(self) -> float:
        return self.rate / self.loop_rate


@dataclass(frozen=True)
class Bench:
    """What takes turns; `inputs` by the number of rows of a request."""

    loop: Loop
    server: Server
    client: Executor
    inputs: dict[int, Arrays]
    connections: int

    def asked(self, protocol: Protocol, rows: int, seconds: float) -> tuple[float, float]:
        """Rows per second, and the client's share of a core.

        Raises:
            RuntimeError: an answer is none, or another than the loop's.
        """
        address = (self.server.grpc if protocol == "grpc" else self.server.http) or ""
        request = request_for(protocol, address, models.NETWORK, self.inputs[rows])
        load = Load(protocol, address, request, self.connections)
        found = self.client.submit(count, load, seconds).result()
        self._compare(rows, decoded(protocol, found.answer))
        return rows * found.rate, found.cpu_s / found.seconds

    def _compare(self, rows: int, answer: Arrays) -> None:
        names = [output.name for output in self.loop.session.get_outputs()]
        for name, due in zip(names, self.loop.session.run(None, self.inputs[rows]), strict=True):
            if name.endswith("_gap"):
                continue  # a difference of nearly equal numbers
            if np.abs(answer[name] - due).max() > TOLERANCE * max(np.abs(due).max(), 1.0):
                raise RuntimeError(f"{name} is another than that of ONNX Runtime alone")


def measure(bench: Bench, rounds: int, seconds: float) -> Iterator[Turn]:
    """Every kind of request in every round; in every other one the loop comes last."""
    for number in range(rounds):
        for rows, inputs in bench.inputs.items():
            first = bench.loop.rate(inputs, seconds) if number % 2 == 0 else None
            asked = {protocol: bench.asked(protocol, rows, seconds) for protocol in PROTOCOLS}
            loop_rate = rows * (first or bench.loop.rate(inputs, seconds))
            for protocol, (rate, share) in asked.items():
                yield Turn(protocol, rows, rate, loop_rate, share)


def best_loop(path: Path, inputs: Arrays, cores: int) -> Loop:
    """The bare loop over an entry in its best setting."""
    loops = [Loop(session(path, variant.threads), variant) for variant in shapes(cores)]
    return _best(loops, lambda loop: loop.rate(inputs, _TRIAL_S))


def _best(these: Sequence[Tried], trial: Callable[[Tried], float]) -> Tried:
    """The one that answers most; where there is one alone, nothing is tried."""
    return max(these, key=trial) if len(these) > 1 else these[0]


def session(path: Path, threads: int) -> ort.InferenceSession:
    """Its threads sleep where they have nothing to do: they must not hinder the others."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry(*LARGE_BLOCKS)
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def shapes(cores: int) -> list[Variant]:
    """One computation on each core, and one on all of them."""
    return variants(OURS, cores)[: 2 if cores > 1 else 1]


@contextlib.contextmanager
def prepared(
    *, width: int, references: int, rows: Sequence[int], cores: int, connections: int
) -> Iterator[Bench]:
    """The entry compiled, and loop, gateway and client in their best settings."""
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        repository = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        load = models.write_network(repository, width=width, references=references, name=models.NETWORK)
        path = repository / models.explain_entry(load) / "1" / "model.onnx"
        random = np.random.default_rng(models.SEED)
        inputs = {n: {"x": random.normal(size=(n, models.FEATURES)).astype(np.float32)} for n in sorted(rows)}
        client = stack.enter_context(ProcessPoolExecutor(1, context))
        loop = best_loop(path, inputs[max(rows)], cores)

        def trial(variant: Variant) -> float:
            with _served(repository, variant) as server:
                bench = Bench(loop, server, client, inputs, connections)
                return bench.asked("binary", min(rows), _TRIAL_S)[0]

        best = _best(shapes(cores), trial)
        server = stack.enter_context(_served(repository, best))
        print(f"in turn: the loop as {loop.variant.shape}, the gateway as {best.shape}")
        yield Bench(loop, server, client, inputs, connections)


@contextlib.contextmanager
def _served(repository: Path, variant: Variant) -> Iterator[Server]:
    configure(repository, variant)
    with gateway(repository) as server:
        yield server


def compute_ms(bench: Bench) -> float:
    """One row on one core, the median of a few."""
    took_s = []
    rows = min(bench.inputs)
    for _ in range(9):
        began_s = time.perf_counter()
        bench.loop.session.run(None, bench.inputs[rows])
        took_s.append(time.perf_counter() - began_s)
    return float(np.median(took_s)) * 1e3 * bench.loop.variant.threads / rows


def report(turns: Sequence[Turn]) -> None:
    """Prints medians and quartiles of each kind of request."""
    for protocol, rows in dict.fromkeys((turn.protocol, turn.rows) for turn in turns):
        mine = [turn for turn in turns if (turn.protocol, turn.rows) == (protocol, rows)]
        low, median, high = quartiles([turn.ratio for turn in mine])
        rate, loop_rate, share = (
            float(np.median([getattr(turn, name) for turn in mine]))
            for name in ("rate", "loop_rate", "client_share")
        )
        print(
            f"{protocol:6} {rows:3} rows: {median:.2f} of the bare loop ({low:.2f}–{high:.2f}); "
            f"{rate:.0f} of {loop_rate:.0f} rows/s, the client took {share:.0%} of a core"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=1024, help="of the network's two hidden layers")
    parser.add_argument("--references", type=int, default=250)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16], help="of a request")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--cores", type=int, default=2, help="for server, client and loop together")
    given = parser.parse_args()
    restrict(given.cores)
    with prepared(
        width=given.width,
        references=given.references,
        rows=given.rows,
        cores=given.cores,
        connections=given.connections,
    ) as bench:
        compute = compute_ms(bench)
        short = "" if compute >= LEAST_COMPUTE_MS else f": less than {LEAST_COMPUTE_MS:g}, raise --width"
        print(f"one row takes {compute:.1f} ms of one core{short}")
        turns = []
        for turn in measure(bench, given.rounds, given.seconds):
            turns.append(turn)
            print(f"  {turn.protocol:6} {turn.rows:3} rows: {turn.ratio:.2f}", flush=True)
        report(turns)


if __name__ == "__main__":
    main()
