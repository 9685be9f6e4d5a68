"""Overload: accepted requests must be answered in time, and the others refused at once.

    python -m loadtests.checks.overload [--model network|credit] [--factor 3] [--profile short|full]

Several client processes measure the load that the gateway sustains: each connection asks as soon as it has
its answer (closed load), on the best of a few numbers of connections. Then they send several times as many
requests, at fixed times regardless of answers (open load), each with a deadline. Sustained load and overload
alternate, and each overload is compared with the loads around it: no machine is equally fast all the time.
One answer in sixteen is compared with ONNX Runtime's. Clients and server share the machine's cores. Ends with
1 if an answer was wrong or lost; for explanations of 5 ms and more also if less than 85% of the sustained
rate was kept, refusals took 50 ms or more at p99, or memory grew by 200 MiB.
"""

import argparse
import json
import multiprocessing
import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnxruntime as ort

from benchmarks.timing import System, alternate, memory_watched, round_quartiles
from loadtests.load.drive import OK, Drive, DriveTally, drive
from loadtests.load.questions import EXPLAIN, Arrays, Question
from loadtests.systems import models
from loadtests.systems.process import Server, gateway
from loadtests.systems.variants import OURS, SystemSettings, configure


@dataclass(frozen=True)
class OverloadProfile:
    """Seconds of each sustained load and of each overload, and the number of alternations."""

    sustained_s: float
    overload_s: float
    rounds: int


PROFILES = {"short": OverloadProfile(2.5, 5.0, 2), "full": OverloadProfile(10.0, 60.0, 2)}
SUSTAINED = (8, 32)  # connections of each process
LEAST_COMPUTE_MS = 5.0  # per row: limits apply from here on
LEAST_KEPT, MOST_REFUSAL_MS, MOST_GROWTH = 0.85, 50.0, 200 << 20
TOLERANCE = 1e-3  # of the largest value: batches change the order of sums
_ROUNDS = 5


@dataclass(frozen=True)
class BareRuntime:
    """ONNX Runtime by itself, on the same row."""

    session: ort.InferenceSession
    inputs: Arrays

    def row_ms(self) -> float:
        """Return the milliseconds of one row on one core, the median of a few."""
        run = System("row", lambda: self.session.run(None, self.inputs))
        return 1e3 * round_quartiles(alternate([run], _ROUNDS)["row"])[1]

    def is_right(self, body: bytes) -> bool:
        """Tell whether an answer in OIP JSON is right for the same row."""
        outputs = {
            each["name"]: np.reshape(each["data"], each["shape"]) for each in json.loads(body)["outputs"]
        }
        names = [output.name for output in self.session.get_outputs()]
        return all(
            name.endswith("_gap")  # a difference of nearly equal numbers
            or bool(np.abs(outputs[name] - expected).max() <= TOLERANCE * max(np.abs(expected).max(), 1))
            for name, expected in zip(names, self.session.run(None, self.inputs), strict=True)
        )


@dataclass(frozen=True)
class OverloadResult:
    """Answers per second of the sustained loads, and of the overloads between these."""

    peaks: list[float]
    overloads: list[float]
    tally: DriveTally  # the overloads' tally
    wrong: int
    memory_before: int
    memory_most: int

    @property
    def peak(self) -> float:
        """Mean of the loads around the overloads: those between two overloads count for both."""
        return float(np.mean(list(pairwise(self.peaks))))

    @property
    def kept_each(self) -> list[float]:
        """The share of the loads around it that each overload answers."""
        return [
            2 * rate / sum(around) for rate, around in zip(self.overloads, pairwise(self.peaks), strict=True)
        ]

    @property
    def kept_share(self) -> float:
        return float(np.mean(self.overloads)) / self.peak

    def faults(self, compute_ms: float) -> list[str]:
        """Return violations of the limits."""
        tally = self.tally
        other_statuses = {
            status: len(took) for status, took in tally.took_s.items() if status not in (200, 429, 504)
        }
        violations = {
            f"{self.wrong} of {len(tally.sampled)} answers that were compared are wrong": self.wrong,
            f"{tally.broken} connections broke": tally.broken,
            f"other answers: {other_statuses}": other_statuses,
        }
        if compute_ms >= LEAST_COMPUTE_MS:
            violations[f"less than {LEAST_KEPT:.0%} was kept"] = self.kept_share < LEAST_KEPT
            violations["refusals are late"] = tally.percentile_ms(429, 99) >= MOST_REFUSAL_MS
            violations["memory grew"] = self.memory_most - self.memory_before >= MOST_GROWTH
        return [fault for fault, is_so in violations.items() if is_so]


def measure(
    server: Server,
    alone: BareRuntime,
    question: Question,
    *,
    profile: OverloadProfile,
    factor: float,
    deadline_s: float,
    processes: int,
    connections: int,
) -> OverloadResult:
    """Alternate sustained load and overload; `connections` are each process's under overload."""
    body, headers = question.as_json
    hurried = headers | {"x-request-timeout-ms": str(round(deadline_s * 1e3))}
    load = partial(Drive, server.http, question.path, body)
    total, overloads = DriveTally(), []
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        run = partial(_run, pool, processes)
        run(load(headers, 1, 4))  # the processes start; estimates are made
        loads = [load(headers, profile.sustained_s, each) for each in SUSTAINED]
        best = max(loads, key=lambda each: run(each)[0])
        peaks = [run(best)[0]]
        with memory_watched(server.pid) as memory:
            for _ in range(profile.rounds):
                rate = factor * peaks[-1] / processes
                answered, tally = run(load(hurried, profile.overload_s, connections, rate))
                overloads.append(answered)
                total += tally
                peaks.append(run(best)[0])
    wrong = sum(not alone.is_right(body) for body in total.sampled)
    return OverloadResult(peaks, overloads, total, wrong, memory[0], max(memory))


def _run(pool: ProcessPoolExecutor, processes: int, load: Drive) -> tuple[float, DriveTally]:
    """Run a drive in several processes at once; return the answers per second and the tally."""
    total = DriveTally()
    for tally in pool.map(drive, [load] * processes):
        total += tally
    return total.count(OK) / load.seconds, total


@contextmanager
def served(model: str, width: int) -> Iterator[tuple[Server, Question, BareRuntime]]:
    """Yield the gateway with the model under load."""
    with tempfile.TemporaryDirectory() as folder:
        repository, question = Path("model_repository"), models.question(model, EXPLAIN)
        if model != models.CREDIT:
            repository = Path(folder)
            models.write_network(repository, width=width, references=250)
            # One computation on each core: this gives the most requests a second.
            configure(repository, SystemSettings(OURS, threads=1, workers=os.cpu_count() or 1))
        with gateway(repository, "--grpc-port", "off") as server:
            yield server, question, BareRuntime(models.session(repository, question.entry), question.inputs)


def report(outcome: OverloadResult, deadline_s: float, factor: float) -> None:
    """Print the outcome of the requests, and the memory."""
    tally = outcome.tally
    peaks = ", ".join(f"{rate:.0f}" for rate in outcome.peaks)
    shares = ", ".join(f"{each:.0%}" for each in outcome.kept_each)
    print(
        f"sustained {outcome.peak:.0f} answers/s ({peaks}, closed load); "
        f"{factor:g} times as many requests (open load):"
    )
    print(
        f"  answered  {np.mean(outcome.overloads):.0f}/s, {outcome.kept_share:.0%} of the sustained rate "
        f"({shares}); p50 {tally.percentile_ms(200, 50):.1f} ms, p99 {tally.percentile_ms(200, 99):.1f} ms "
        f"of {deadline_s * 1e3:.0f} ms"
    )
    print(
        f"  refused   {tally.count(429)} with 429: p50 {tally.percentile_ms(429, 50):.1f} ms, "
        f"p99 {tally.percentile_ms(429, 99):.1f} ms; {tally.count(504)} were late (504)"
    )
    print(
        f"  compared  {len(tally.sampled)} answers, {outcome.wrong} wrong; unsent {tally.unsent}, "
        f"broken {tally.broken}; the clients used {tally.cpu_s:.1f} s of CPU"
    )
    print(f"  memory    {outcome.memory_before >> 20} MiB before, {outcome.memory_most >> 20} MiB at most")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", choices=(models.NETWORK, models.CREDIT), default=models.NETWORK)
    parser.add_argument("--width", type=int, default=1024, help="width of the network's layers")
    parser.add_argument("--factor", type=float, default=3.0, help="load as a multiple of the sustained rate")
    parser.add_argument("--profile", choices=PROFILES, default="short")
    parser.add_argument("--deadline-ms", type=float, default=250)
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, 4))
    parser.add_argument(
        "--connections", type=int, default=512, help="connections of each process under overload"
    )
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # each connection is a file; children inherit it
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with served(options.model, options.width) as (server, question, alone):
        compute_ms = alone.row_ms()
        print(f"{compute_ms:.1f} ms of one core for each request")
        outcome = measure(
            server,
            alone,
            question,
            profile=PROFILES[options.profile],
            factor=options.factor,
            deadline_s=options.deadline_ms / 1e3,
            processes=options.processes,
            connections=options.connections,
        )
    report(outcome, options.deadline_ms / 1e3, options.factor)
    faults = outcome.faults(compute_ms)
    print(f"failed: {'; '.join(faults)}" if faults else "passed")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
