"""What is measured, as tables: models, scenarios, and how long each takes."""

from dataclasses import dataclass

from benchmarks.cases import Case


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
class Scenario:
    """How callers behave.

    Attributes:
        users: that ask again when they are answered (closed load); or else
        shares: of the system's sustainable rate, one after the other, sent whatever is answered (open load).
        explanations: percent of the requests; the others predict. form: of the requests.
        batched: of the workload's `batch` rows instead of one.
    """

    name: str
    users: int = 1
    shares: tuple[float, ...] = ()
    explanations: int = 100
    form: str = "JsonUser"
    batched: bool = False


ALONE, CROWD = Scenario("alone"), Scenario("crowd", users=8)
SCENARIOS = (
    Scenario("predict", users=8, explanations=0),
    Scenario("mix", users=8, explanations=5),
    Scenario("batches", users=2, batched=True),
    Scenario("burst", shares=(0.5, 0.5, 2.0, 0.5, 0.5)),
    Scenario("grpc-explain", users=8, form="GrpcUser"),
    Scenario("grpc-predict", users=8, explanations=0, form="GrpcUser"),
)


@dataclass(frozen=True)
class Profile:
    """How long is measured.

    Attributes:
        seconds: of one run; at_least: requests in a run by rate, which may prolong it, as slow answers may.
        longest_s: of one run, whatever prolongs it.
        precision: the sustainable rate is known to this factor.
        variants: settings of a system that are tried. workloads, scenarios, systems: by name.
    """

    seconds: float
    at_least: int
    longest_s: float
    precision: float
    variants: int
    workloads: tuple[str, ...]
    scenarios: tuple[str, ...]
    systems: tuple[str, ...] = ALL_SYSTEMS


_ALL_SCENARIOS = tuple(scenario.name for scenario in SCENARIOS)
_ALL_WORKLOADS = tuple(workload.name for workload in WORKLOADS)
PROFILES = {
    "tiny": Profile(1, 1, 1, 4.0, 1, ("credit-100",), ("mix",)),
    "short": Profile(3, 100, 10, 1.25, 2, ("credit-100",), _ALL_SCENARIOS),
    "claim": Profile(6, 60, 30, 1.1, 3, _ALL_WORKLOADS, (), ("rationale", "shap")),
    "full": Profile(20, 400, 120, 1.05, 3, _ALL_WORKLOADS, _ALL_SCENARIOS),
}
