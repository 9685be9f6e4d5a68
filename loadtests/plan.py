"""What one run of the load generator is to do, and what it saw: plain values that travel as JSON."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Protocol = Literal["rest", "grpc"]
PREDICT, EXPLAIN = "predict", "explain"


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
        address: host:port; protocol: how it is asked.
        folder: of the workload, with `rows.npy`; expected: the file there that answers are compared with.
        verbs: the share of each; rows: in one request.
        phases: one after the other, all by rate or all by users.
        check_every: of so many answers one is compared in full; the status of all is.
        timeout_s: of one request. seed: of arrivals, verbs and rows.
    """

    address: str
    protocol: Protocol
    folder: str
    expected: str
    verbs: dict[str, float]
    phases: tuple[Phase, ...]
    rows: int = 1
    check_every: int = 8
    timeout_s: float = 30.0
    seed: int = 0

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        content: dict[str, Any] = json.loads(text)
        content["phases"] = tuple(Phase(**phase) for phase in content["phases"])
        return cls(**content)


@dataclass(frozen=True)
class Answer:
    """One request.

    Attributes:
        due_s: when it was to be sent, since the start; lag_s: how much later it was.
        took_s: until its answer had come, from `due_s` on: waiting for a late client counts too.
        error: why it is none, "" where it is one. wrong: it was compared, and differs.
    """

    verb: str
    due_s: float
    lag_s: float
    took_s: float
    error: str = ""
    wrong: bool = False


@dataclass(frozen=True)
class Seen:
    """All that one run saw. `compared`: answers that were compared in full; `cpu_s`: the generator's own."""

    answers: tuple[Answer, ...]
    seconds: float
    compared: int
    cpu_s: float

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> "Seen":
        content = json.loads(path.read_text())
        content["answers"] = tuple(Answer(**answer) for answer in content["answers"])
        return cls(**content)
