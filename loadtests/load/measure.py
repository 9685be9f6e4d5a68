"""Measurement of a system on a workload: best settings, sustainable rate, and locust's runs of scenarios."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import ceil, sqrt
from pathlib import Path

from benchmarks.timing import memory_with_children
from loadtests.load.locust import LocustSummary, run_locust
from loadtests.load.questions import WrongAnswerError
from loadtests.load.workloads import ALONE, CROWD, SCENARIOS, LoadProfile, Scenario, Workload
from loadtests.systems.process import Server
from loadtests.systems.variants import SystemSettings, expected_of, serving, variants

_DRAIN_S = 600
_STEP = 1.4  # factor between rates to try; the next factor is its square
_LEAST = 0.02  # requests a second; a system that fails here sustains nothing


@dataclass(frozen=True)
class LoadRun:
    """One load on one system.

    Attributes:
        load: the scenario, or the offered rate. is_open: whether requests were sent when due, regardless of
            answers, and times count from then; otherwise each caller asked again after its answer.
        memory_bytes: memory of the server and its workers, right after the load.
    """

    workload: str
    variant: SystemSettings
    load: str
    is_open: bool
    seen: LocustSummary
    memory_bytes: int

    def __str__(self) -> str:
        kind = "open" if self.is_open else "closed"
        return f"{self.workload}, {self.variant.label}, {kind} load {self.load}: {self.seen}"


@dataclass
class Result:
    """One system on one workload.

    Attributes:
        best: the variant with the highest throughput, in which all but `alone` was measured.
        alone: one caller and no queue, in the variant that is fastest there; crowd: many callers, in `best`.
        sustainable: requests to explain one row, a second. runs: all.
    """

    workload: str
    system: str
    best: SystemSettings
    alone: LoadRun
    crowd: LoadRun
    sustainable: float = 0.0
    runs: list[LoadRun] = field(default_factory=list)


@dataclass(frozen=True)
class Bench:
    """A server that runs in certain settings, on a prepared workload; `pages` is for locust's reports."""

    workload: Workload
    folder: Path
    profile: LoadProfile
    tell: Callable[[str], None]
    pages: Path
    variant: SystemSettings
    server: Server

    def by_rate(self, rate: float) -> LoadRun:
        """Run explanations of one row at this rate, long enough for the percentiles."""
        seconds = min(self.profile.at_least / rate, self.profile.longest_s)
        return self.run(Scenario(f"{rate:.3g} per s", shares=(rate,)), 1.0, seconds)

    def run(
        self, scenario: Scenario, sustainable: float = 0.0, seconds: float = 0, timeout_s: float = 0
    ) -> LoadRun:
        """Put one load on the server; its shares are of `sustainable`, in requests a second.

        Raises:
            WrongAnswerError: if an answer is wrong. RuntimeError: if locust fails.
        """
        self.pages.mkdir(parents=True, exist_ok=True)
        longest = min(4 * self.workload.p99_s, self.profile.longest_s)  # several answers, even slow ones
        options = {
            "--rows": self.workload.batch if scenario.batched else 1,
            "--explanations": scenario.explanations,
            "--users": scenario.users,
            "--rate": ",".join(str(max(share * sustainable, 0.1)) for share in scenario.shares),
            "--run-time": ceil(max(self.profile.seconds, seconds, longest)),
            "--timeout": ceil(timeout_s or self.workload.timeout_s),
            "--html": self.pages / f"{self.workload.name}, {self.variant.label}, {scenario.name}.html",
        }
        expected = self.folder / expected_of(self.variant.system, self.folder)
        seen = run_locust(self.server, expected, options, scenario.form)
        memory = memory_with_children(self.server.pid)
        measured_run = LoadRun(
            self.workload.name, self.variant, scenario.name, bool(scenario.shares), seen, memory
        )
        self.tell(str(measured_run))
        if seen.wrong:
            raise WrongAnswerError(f"{seen.wrong} wrong answers: {measured_run}")
        return measured_run

    def drain(self) -> None:
        """Wait until the queue of an overload is empty: one more caller gets its answer after all others.

        Raises:
            RuntimeError: if it gets none.
        """
        if not self.run(Scenario("drain"), timeout_s=_DRAIN_S).seen.faultless:
            raise RuntimeError(f"{self.variant.label} answers nothing {_DRAIN_S} s after an overload")

    def holds(self, runs: list[LoadRun], rate: float) -> bool:
        """Run a rate, add the run to `runs`, and tell whether it had no error and a p99 within the limit."""
        run = self.by_rate(rate)
        runs.append(run)
        held = run.seen.faultless and run.seen.p99_ms <= 1e3 * self.workload.p99_s
        if not held:
            self.drain()
        return held


def measure(
    workload: Workload,
    system: str,
    cores: int,
    profile: LoadProfile,
    *,
    folder: Path,
    pages: Path,
    tell: Callable[[str], None],
) -> Result:
    """Measure everything about one system, in its best settings.

    Raises:
        WrongAnswerError: if the system gives one.
        RuntimeError: if a server does not start or stops answering, or locust fails.
    """

    def benches(tried: list[SystemSettings]) -> Iterator[Bench]:
        for variant in tried:
            with serving(variant, folder) as server:
                bench = Bench(workload, folder, profile, tell, pages, variant, server)
                bench.run(Scenario("warm-up"))
                yield bench

    tried = [
        (bench.variant, bench.run(ALONE), bench.run(CROWD))
        for bench in benches(variants(system, cores)[: profile.variants])
    ]
    alone = min((alone for _, alone, _ in tried), key=lambda run: run.seen.p50_ms)
    best, _, crowd = max(tried, key=lambda trial: trial[2].seen.answers_per_s)
    runs = [run for _, *pair in tried for run in pair]
    result = Result(workload.name, system, best, alone, crowd, runs=runs)
    for bench in benches([best]):
        guess = max(0.8 * crowd.seen.answers_per_s, 0.1)
        result.sustainable = sustainable_rate(partial(bench.holds, runs), guess, profile.precision)
        for scenario in SCENARIOS:
            if scenario.name in profile.scenarios and (bench.server.grpc or scenario.form != "GrpcUser"):
                runs.append(bench.run(scenario, result.sustainable))
                bench.drain()
    return result


def sustainable_rate(holds: Callable[[float], bool], guess: float, precision: float) -> float:
    """Return the highest rate known to hold, with one known not to hold less than `precision` times above it.

    Raise or lower the rate from `guess` until both sides are known, then try their geometric mean. Return 0
    if even the least rate does not hold.
    """
    low, high = _bracket(holds, guess)
    while low > 0 and high / low > precision:
        middle = sqrt(low * high)
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def _bracket(holds: Callable[[float], bool], guess: float) -> tuple[float, float]:
    """Return a rate that holds and one that does not, by ever longer steps from `guess`, up or down."""
    rate, step = guess, _STEP
    if holds(rate):
        while holds(rate * step):
            rate, step = rate * step, step * step
        return rate, rate * step
    while rate > _LEAST:
        if holds(rate / step):
            return rate / step, rate
        rate, step = rate / step, step * step
    return 0.0, rate
