"""One system on one workload: its settings chosen, its sustainable rate found, every scenario run."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from loadtests.load.plan import Phase, Plan, generate
from loadtests.load.sustainable import sustainable_rate
from loadtests.load.workloads import ALONE, CROWD, EXPLAINING, SCENARIOS, Profile, Scenario, Workload
from loadtests.report.figures import PERCENTILES, Figures, figures, plain
from loadtests.systems.process import Server
from loadtests.systems.variants import Variant, expected_of, serving, variants

Tell = Callable[[str], None]
_WARM_S = 1.0
_GIVE_UP_S = 600.0
_PAUSE_S = 0.2


class WrongAnswerError(Exception):
    """A server answered something else than it must. The message says where."""


class StuckError(Exception):
    """A server never recovers from an overload."""


@dataclass(frozen=True)
class Run:
    """`label` is the scenario, or the rate that was offered."""

    variant: Variant
    label: str
    figures: Figures


@dataclass
class Result:
    """One system on one workload.

    Attributes:
        best: the variant with the highest throughput, in which all but `alone` was measured.
        alone: one caller and no queue, in the variant that is fastest there; crowd: many callers, in `best`.
        sustainable: requests to explain one row, a second. probes, curve: runs by rate.
    """

    workload: str
    system: str
    best: Variant
    alone: Run
    crowd: Run
    tried: list[Run]
    sustainable: float = 0.0
    probes: list[Run] = field(default_factory=list)
    curve: list[Run] = field(default_factory=list)
    scenarios: list[Run] = field(default_factory=list)

    def runs(self) -> Iterator[tuple[str, Run]]:
        """All of them, each with what it was made for."""
        for kind in ("tried", "probes", "curve", "scenarios"):
            for run in getattr(self, kind):
                yield kind, run


@dataclass(frozen=True)
class Bench:
    """What every measurement needs: the prepared folder, how long, and whom to tell."""

    workload: Workload
    folder: Path
    profile: Profile
    tell: Tell

    @property
    def seconds(self) -> float:
        """Of a scenario: long enough for several answers even where each takes all that it may."""
        return max(self.profile.seconds, min(4 * self.workload.p99_s, self.profile.longest_s))

    def by_rate(self, target: "Target", rate: float) -> Run:
        """Explanations of one row at this rate, long enough for the percentiles."""
        seconds = max(self.profile.seconds, min(self.profile.at_least / rate, self.profile.longest_s))
        return self.run(target, f"{plain(rate)}/s", (Phase(seconds, rate=rate),))

    def by_scenario(self, target: "Target", scenario: Scenario, sustainable: float = 0.0) -> Run:
        """One scenario; `sustainable`, in requests a second, is what its stages are shares of."""
        rows = self.workload.batch if scenario.batched else 1
        phases = scenario.phases(self.seconds, sustainable)
        return self.run(target, scenario.name, phases, mix=scenario.mix, rows=rows)

    def run(self, target: "Target", label: str, phases: Sequence[Phase], **changes: Any) -> Run:
        """Raises WrongAnswerError, GeneratorError."""
        seen = generate(self.plan(target, phases, **changes))
        found = figures(seen, target.server.shared_memory_bytes())
        self.tell(f"{self.workload.name}, {target.variant.label}: {label}: {in_words(found)}")
        if found.wrong:
            raise WrongAnswerError(
                f"{self.workload.name}: {target.variant.label} gave {found.wrong} wrong answers out of "
                f"{found.compared} compared, under the load '{label}'"
            )
        return Run(target.variant, label, found)

    def plan(self, target: "Target", phases: Sequence[Phase], **changes: Any) -> Plan:
        """Explanations of one row by JSON, where `changes` say nothing else."""
        return Plan(
            http=target.server.http,
            grpc=target.server.grpc,
            folder=self.folder,
            expected=expected_of(target.variant.system, self.folder),
            phases=tuple(phases),
            **{"mix": EXPLAINING, "timeout_s": self.workload.timeout_s, **changes},
        )


@dataclass(frozen=True)
class Target:
    """A server that runs, in certain settings."""

    variant: Variant
    server: Server


def measure(bench: Bench, system: str, cores: int) -> Result:
    """Everything about one system.

    Raises:
        WrongAnswerError: it gave one.
        GeneratorError: the load generator failed.
    """
    result = choose(bench, system, cores)
    with serving(result.best, bench.folder) as server:
        target = Target(result.best, server)
        warm_up(bench, target)
        result.sustainable = sustain(bench, target, result)
        for share in bench.profile.curve if result.sustainable else ():
            result.curve.append(bench.by_rate(target, share * result.sustainable))
        for scenario in SCENARIOS:
            if scenario.name in bench.profile.scenarios and (server.grpc or not scenario.by_grpc):
                result.scenarios.append(bench.by_scenario(target, scenario, result.sustainable))
                drain(bench, target)
    return result


def choose(bench: Bench, system: str, cores: int) -> Result:
    """Tries the system's settings, each with one caller and with many."""
    tried: list[tuple[Run, Run]] = []
    for variant in variants(system, cores)[: bench.profile.variants]:
        with serving(variant, bench.folder) as server:
            target = Target(variant, server)
            warm_up(bench, target)
            tried.append((bench.by_scenario(target, ALONE), bench.by_scenario(target, CROWD)))
    alone = min((run for run, _ in tried), key=lambda run: run.figures.p50_s or inf)
    crowd = max((run for _, run in tried), key=lambda run: run.figures.answered_rate)
    return Result(
        bench.workload.name, system, crowd.variant, alone, crowd, [run for pair in tried for run in pair]
    )


def sustain(bench: Bench, target: Target, result: Result) -> float:
    """Its sustainable rate, the probes kept in `result`."""

    def holds(rate: float) -> bool:
        probe = bench.by_rate(target, rate)
        result.probes.append(probe)
        held = within(probe.figures, bench.workload.p99_s)
        if not held:
            drain(bench, target)
        return held

    guess = max(0.8 * result.crowd.figures.answered_rate, 0.1)
    return sustainable_rate(holds, guess, bench.profile.precision)


def within(found: Figures, p99_s: float) -> bool:
    """No error, no wrong answer, and the p99 within the limit."""
    return found.faultless and found.p99_s is not None and found.p99_s <= p99_s


def warm_up(bench: Bench, target: Target) -> None:
    """Every answer is compared: a system that is wrong from the start is not measured."""
    bench.run(target, "warm-up", (Phase(_WARM_S, users=1),), check_every=1)


def drain(bench: Bench, target: Target) -> None:
    """Waits for what an overload has left in the queue: one more caller is answered after all of it.

    Raises:
        StuckError: none is.
    """
    give_up_s = time.monotonic() + _GIVE_UP_S
    while time.monotonic() < give_up_s:
        seen = generate(bench.plan(target, [Phase(_PAUSE_S, users=1)], timeout_s=_GIVE_UP_S))
        if figures(seen, 0).faultless:
            return
    raise StuckError(f"{target.variant.label} answers nothing {_GIVE_UP_S:g} s after an overload")


def in_words(found: Figures) -> str:
    """A run in one line."""
    times = " ".join(
        f"p{percent} {'—' if value is None else f'{plain(1e3 * value)} ms'}"
        for percent, value in zip(PERCENTILES, (found.p50_s, found.p90_s, found.p99_s), strict=True)
    )
    faults = "".join(f", {count} × {error}" for error, count in found.errors.items())
    return f"{plain(found.answered_rate)} answers/s, {times}{faults}"
