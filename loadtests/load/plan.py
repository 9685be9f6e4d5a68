"""What one run of the load generator is to do, and what it saw; `generate` runs it in its own process."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from pydantic import TypeAdapter

from compiler.bench.process import ProcessDiedError, run_module


class GeneratorError(Exception):
    """The load generator itself failed."""


@dataclass(frozen=True)
class Phase:
    """A stretch of load: `rate` requests a second whatever is answered, or `users` that wait for answers."""

    seconds: float
    rate: float | None = None
    users: int | None = None


@dataclass(frozen=True)
class Plan:
    """One run.

    Attributes:
        http, grpc: host:port. folder: of the workload; expected: the file there with the answers due.
        mix: the share of each kind of request, a verb and a form: "explain json", "predict grpc".
        phases: one after the other, all by rate or all by users. rows: in one request.
        check_every: of so many answers one is compared in full; the status of all is. tolerance: of the
            largest value; float32 against float64, through the fifty layers of the deepest network here.
        timeout_s: of one request. seed: of arrivals, kinds and rows.
    """

    http: str
    grpc: str | None
    folder: Path
    expected: str
    mix: dict[str, float]
    phases: tuple[Phase, ...]
    rows: int = 1
    check_every: int = 8
    tolerance: float = 1e-3
    timeout_s: float = 30.0
    seed: int = 0

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases)


@dataclass(frozen=True)
class Answer:
    """One request.

    Attributes:
        due_s: when it was to be sent, since the start; lag_s: how much later it was.
        took_s: until its answer had come, from `due_s` on: waiting for a late client counts too.
        error: why there is none; wrong: why it is not the one that is due. "" where there is no such fault.
    """

    kind: str
    due_s: float
    lag_s: float
    took_s: float
    error: str = ""
    wrong: str = ""


@dataclass(frozen=True)
class Seen:
    """All that one run saw. `compared`: answers that were compared in full; `cpu_s`: the generator's own."""

    answers: tuple[Answer, ...]
    seconds: float
    compared: int
    cpu_s: float


def arrivals(phases: Sequence[Phase], random: Random) -> Iterator[float]:
    """Seconds from the start at which a request is due, in order: a Poisson process of a known number.

    By chance a process of 100 arrivals has 10 more or fewer, and then another rate was offered than the one
    that is reported. Given their number, its arrivals are drawn evenly from its time.
    """
    began = 0.0
    for phase in phases:
        if phase.rate is None:
            raise ValueError("every phase of an open load needs a rate")
        count = max(round(phase.rate * phase.seconds), 1)
        yield from sorted(began + random.uniform(0, phase.seconds) for _ in range(count))
        began += phase.seconds


PLAN, SEEN = TypeAdapter(Plan), TypeAdapter(Seen)


def generate(plan: Plan) -> Seen:
    """Returns when the load is over and all is answered or has timed out. Raises GeneratorError."""
    with tempfile.TemporaryDirectory() as name:
        asked, seen = Path(name) / "plan.json", Path(name) / "seen.json"
        asked.write_bytes(PLAN.dump_json(plan))
        try:
            run_module("loadtests.load.generator", str(asked), str(seen))
        except ProcessDiedError as error:
            raise GeneratorError(f"the load generator failed:\n{error}") from error
        return SEEN.validate_json(seen.read_bytes())
