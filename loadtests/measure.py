"""One system on one workload: its settings chosen, its sustainable rate found, every scenario run."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from http.client import HTTPConnection
from math import inf
from pathlib import Path
from typing import Any

from compiler.bench.process import ProcessDiedError, run_module
from loadtests.figures import PERCENTILES, Figures, figures, plain
from loadtests.plan import EXPLAIN, Phase, Plan, Seen
from loadtests.processes import Server
from loadtests.sustainable import sustainable_rate
from loadtests.systems import Variant, expected_of, memory_bytes, serving, variants
from loadtests.wanted import PATHS, Wanted, rest_body
from loadtests.workloads import ALONE, CROWD, SCENARIOS, Profile, Scenario, Workload

Tell = Callable[[str], None]
_WARM_S = 1.0
_GIVE_UP_S = 600.0
_PAUSE_S = 0.2


class WrongAnswerError(Exception):
    """A server answered something else than it must. The message says where."""


class GeneratorError(Exception):
    """The load generator itself failed."""


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
        phases = scenario.phases(self.seconds, sustainable)
        changes = {
            "verbs": scenario.verbs,
            "protocol": scenario.protocol,
            "rows": self.workload.batch if scenario.batched else 1,
        }
        return self.run(target, scenario.name, phases, **changes)

    def run(self, target: "Target", label: str, phases: Sequence[Phase], **changes: Any) -> Run:
        """Raises WrongAnswerError, GeneratorError."""
        plan = Plan(
            address=target.server.http,
            protocol="rest",
            folder=str(self.folder),
            expected=expected_of(target.variant.system, self.folder),
            verbs={EXPLAIN: 1},
            phases=tuple(phases),
            timeout_s=self.workload.timeout_s,
        )
        plan = replace(plan, **changes)
        if plan.protocol == "grpc":
            plan = replace(plan, address=target.server.grpc or "")
        found = figures(generate(plan), memory_bytes(target.server))
        self.tell(f"{self.workload.name}, {target.variant.label}: {label}: {in_words(found)}")
        if found.wrong:
            raise WrongAnswerError(
                f"{self.workload.name}: {target.variant.label} gave {found.wrong} wrong answers out of "
                f"{found.compared} compared, under the load '{label}'"
            )
        return Run(target.variant, label, found)


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
            if scenario.name in bench.profile.scenarios and (scenario.protocol == "rest" or server.grpc):
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
    """Waits for what an overload has left in the queue: one more request is answered after all of it.

    Raises:
        StuckError: none is.
    """
    wanted = Wanted.read(bench.folder, expected_of(target.variant.system, bench.folder))
    host, _, port = target.server.http.rpartition(":")
    headers, body = {"Content-Type": "application/json"}, rest_body(wanted.rows[:1])
    give_up_s = time.monotonic() + _GIVE_UP_S
    with contextlib.closing(HTTPConnection(host, int(port), timeout=_GIVE_UP_S)) as connection:
        while time.monotonic() < give_up_s:
            connection.request("POST", PATHS[EXPLAIN], body, headers)
            reply = connection.getresponse()
            reply.read()
            if reply.status == HTTPStatus.OK:
                return
            time.sleep(_PAUSE_S)
    raise StuckError(f"{target.variant.label} answers nothing {_GIVE_UP_S:g} s after an overload")


def generate(plan: Plan) -> Seen:
    """Runs the load generator in a process of its own. Raises GeneratorError."""
    with tempfile.TemporaryDirectory() as name:
        asked, seen = Path(name) / "plan.json", Path(name) / "seen.json"
        asked.write_text(plan.to_json())
        try:
            run_module("loadtests.generator", str(asked), str(seen))
        except ProcessDiedError as error:
            raise GeneratorError(f"the load generator failed:\n{error}") from error
        return Seen.read(seen)


def in_words(found: Figures) -> str:
    """A run in one line."""
    times = " ".join(
        f"p{percent} {'—' if value is None else f'{plain(1e3 * value)} ms'}"
        for percent, value in zip(PERCENTILES, (found.p50_s, found.p90_s, found.p99_s), strict=True)
    )
    faults = "".join(f", {count} × {error}" for error, count in found.errors.items())
    return f"{plain(found.answered_rate)} answers/s, {times}{faults}"
