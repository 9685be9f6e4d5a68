"""Our results beside each peer's: what the claims are about."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.measure import Result
from loadtests.systems import OURS


@dataclass(frozen=True)
class Comparison:
    """Ratios above 1 are in our favour; None where a side has no figure.

    Attributes:
        rate: our sustainable rate over theirs; median: their median latency, alone, over ours.
        memory: theirs over ours, after the many callers.
    """

    workload: str
    peer: str
    rate: float | None
    median: float | None
    memory: float | None


def compare(results: Sequence[Result]) -> list[Comparison]:
    """Of each peer on each workload that we were measured on too."""
    ours = {result.workload: result for result in results if result.system == OURS}
    found = []
    for theirs in (result for result in results if result.system != OURS and result.workload in ours):
        mine = ours[theirs.workload]
        found.append(
            Comparison(
                workload=theirs.workload,
                peer=theirs.system,
                rate=_ratio(mine.sustainable, theirs.sustainable),
                median=_ratio(theirs.alone.figures.p50_s, mine.alone.figures.p50_s),
                memory=_ratio(theirs.crowd.figures.memory_bytes, mine.crowd.figures.memory_bytes),
            )
        )
    return found


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over and under else None
