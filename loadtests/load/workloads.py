"""What is measured, as tables: models, scenarios, and how long each takes."""

from dataclasses import dataclass

from compiler.bench.cases import Case
from loadtests.load.plan import Phase

EXPLAINING, PREDICTING = {"explain json": 1.0}, {"predict json": 1.0}


@dataclass(frozen=True)
class Workload:
    """A model with its references, and what its callers can stand.

    Attributes:
        case: network and sizes; its `rows` are distinct ones, drawn from at random.
        p99_s: 99 of 100 explanations must come within it.
        batch: rows of a request in the scenario of batches.
    """

    name: str
    case: Case
    p99_s: float
    batch: int = 16

    @property
    def timeout_s(self) -> float:
        """Of a request: well above what callers can stand."""
        return max(4 * self.p99_s, 2.0)


WORKLOADS = (
    Workload("credit-100", Case("credit", (24,), 100, 128), p99_s=0.1),
    Workload("credit-1000", Case("credit", (24,), 1000, 128), p99_s=0.25),
    Workload("resnet50", Case("resnet50", (3, 112, 112), 10, 4), p99_s=5.0, batch=2),
)
ALL_SYSTEMS = ("rationale", "shap", "captum")


@dataclass(frozen=True)
class Stage:
    """A phase of a scenario: `load` is a share of the system's sustainable rate of explanations."""

    seconds: float
    load: float


@dataclass(frozen=True)
class Scenario:
    """How callers behave.

    Attributes:
        mix: the share of each kind of request; batched: of the workload's `batch` rows instead of one.
        users: that wait for their answers; or else stages: arrivals whatever is answered. `seconds` are of
            the profile for users, and multiply those of the stages.
    """

    name: str
    title: str
    mix: dict[str, float]
    users: int | None = None
    stages: tuple[Stage, ...] = ()
    batched: bool = False

    @property
    def by_grpc(self) -> bool:
        """Whether a system needs that end."""
        return any(kind.endswith("grpc") for kind in self.mix)

    def phases(self, seconds: float, sustainable: float) -> tuple[Phase, ...]:
        """Of `seconds` in all; `sustainable` in requests a second."""
        if self.users is not None:
            return (Phase(seconds, users=self.users),)
        unit_s = seconds / sum(stage.seconds for stage in self.stages)
        return tuple(
            Phase(stage.seconds * unit_s, rate=max(stage.load * sustainable, 0.1)) for stage in self.stages
        )


ALONE = Scenario("alone", "one caller, explanations", EXPLAINING, users=1)
CROWD = Scenario("crowd", "eight callers, explanations", EXPLAINING, users=8)
SCENARIOS = (
    Scenario("predict", "eight callers, predictions", PREDICTING, users=8),
    Scenario("mix", "eight callers, 95 % predictions", {"predict json": 0.95, "explain json": 0.05}, users=8),
    Scenario("batches", "two callers, batches to explain", EXPLAINING, users=2, batched=True),
    Scenario(
        "burst",
        "half the sustainable rate, twice it for a moment, half again",
        EXPLAINING,
        stages=(Stage(4, 0.5), Stage(1, 2.0), Stage(5, 0.5)),
    ),
    Scenario("grpc-explain", "eight callers, explanations over gRPC", {"explain grpc": 1.0}, users=8),
    Scenario("grpc-predict", "eight callers, predictions over gRPC", {"predict grpc": 1.0}, users=8),
)


@dataclass(frozen=True)
class Profile:
    """How long is measured.

    Attributes:
        seconds: of one run; at_least: requests in a run by rate, which may prolong it, as slow answers may.
        longest_s: of one run, whatever prolongs it.
        precision: the sustainable rate is known to this factor.
        variants: settings of a system that are tried. workloads, scenarios, systems: by name.
        curve: shares of the sustainable rate at which latency is drawn.
    """

    seconds: float
    at_least: int
    longest_s: float
    precision: float
    variants: int
    workloads: tuple[str, ...]
    scenarios: tuple[str, ...]
    systems: tuple[str, ...] = ALL_SYSTEMS
    curve: tuple[float, ...] = (0.25, 0.5, 0.75, 0.9)


_ALL_SCENARIOS = tuple(scenario.name for scenario in SCENARIOS)
_ALL_WORKLOADS = tuple(workload.name for workload in WORKLOADS)
PROFILES = {
    "tiny": Profile(0.5, 1, 0.5, 4.0, 1, ("credit-100",), ("mix",)),
    "short": Profile(3.0, 100, 10.0, 1.25, 2, ("credit-100",), _ALL_SCENARIOS),
    "claim": Profile(
        6.0, 60, 30.0, 1.1, 3, ("credit-100", "credit-1000", "resnet50"), (), ("rationale", "shap"), (0.5,)
    ),
    "full": Profile(20.0, 400, 120.0, 1.05, 3, _ALL_WORKLOADS, _ALL_SCENARIOS),
}
