"""Our results beside each peer's: what the claim is about."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.measure import Result
from loadtests.systems import OURS
from loadtests.workloads import WORKLOADS


@dataclass(frozen=True)
class Comparison:
    """Ratios above 1 are in our favour; None where a side has no figure.

    Attributes:
        rate: our sustainable rate over theirs; median: their median latency, alone, over ours.
        memory: theirs over ours, after the many callers.
        claimed_rate, claimed_median: what this project says of itself, for SHAP alone.
    """

    workload: str
    peer: str
    rate: float | None
    median: float | None
    memory: float | None
    claimed_rate: float | None = None
    claimed_median: float | None = None


def compare(results: Sequence[Result]) -> list[Comparison]:
    ours = {result.workload: result for result in results if result.system == OURS}
    claims = {workload.name: workload.claimed for workload in WORKLOADS}
    found = []
    for theirs in (result for result in results if result.system != OURS and result.workload in ours):
        mine = ours[theirs.workload]
        claim = claims[theirs.workload] if theirs.system == "shap" else None
        found.append(
            Comparison(
                workload=theirs.workload,
                peer=theirs.system,
                rate=_ratio(mine.sustainable, theirs.sustainable),
                median=_ratio(theirs.alone.figures.p50_s, mine.alone.figures.p50_s),
                memory=_ratio(theirs.crowd.figures.memory_bytes, mine.crowd.figures.memory_bytes),
                claimed_rate=claim[0] if claim else None,
                claimed_median=claim[1] if claim else None,
            )
        )
    return found


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over and under else None
