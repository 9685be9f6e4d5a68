"""Tables of the models and scenarios to measure, and of their durations."""

from dataclasses import dataclass

from benchmarks.cases import BenchmarkCase


@dataclass(frozen=True)
class Workload:
    """A model with its references, and the longest time that its callers accept.

    Attributes:
        case: network and sizes; `rows` counts the distinct rows, from which callers draw at random.
        p99_s: time limit for 99 of 100 explanations.
        batch: rows of a request in the scenario of batches.
    """

    name: str
    case: BenchmarkCase
    p99_s: float
    batch: int = 16

    @property
    def timeout_s(self) -> float:
        """A request's timeout: well above the time that callers accept."""
        return max(4 * self.p99_s, 2.0)


WORKLOADS = (
    Workload("credit-100", BenchmarkCase("credit", (24,), 100, 128), p99_s=0.1),
    Workload("credit-1000", BenchmarkCase("credit", (24,), 1000, 128), p99_s=0.25),
    Workload("resnet50", BenchmarkCase("resnet50", (3, 112, 112), 10, 4), p99_s=5.0, batch=2),
)
ALL_SYSTEMS = ("rationale", "shap", "captum")


@dataclass(frozen=True)
class Scenario:
    """The behaviour of callers.

    Attributes:
        users: number of callers that ask again after each answer (closed load).
        shares: fractions of the sustainable rate, offered in turn, regardless of answers (open load).
        explanations: percentage of requests that explain; the others predict. form: the requests' user class.
        batched: whether requests have the workload's `batch` rows instead of one.
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
class LoadProfile:
    """The length and scope of a measurement.

    Attributes:
        seconds: time of one run.
        at_least: fewest requests of a run by rate; these and slow answers prolong it.
        longest_s: upper limit of one run's time.
        precision: factor to which the search narrows the sustainable rate.
        variants: number of settings to try for each system. workloads, scenarios, systems: their names.
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
    "tiny": LoadProfile(1, 1, 1, 4.0, 1, ("credit-100",), ("mix",)),
    "short": LoadProfile(3, 100, 10, 1.25, 2, ("credit-100",), _ALL_SCENARIOS),
    "claim": LoadProfile(6, 60, 30, 1.1, 3, _ALL_WORKLOADS, (), ("rationale", "shap")),
    "full": LoadProfile(20, 400, 120, 1.05, 3, _ALL_WORKLOADS, _ALL_SCENARIOS),
}
