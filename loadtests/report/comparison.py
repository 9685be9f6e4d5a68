"""Our results beside each peer's, and what this project says of itself beside SHAP's service."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtests.load.measure import Result
from loadtests.systems.variants import OURS


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


PEER = "shap"
RATE, MEDIAN = "sustainable rate, ours over SHAP's", "median latency alone, SHAP's over ours"
OF: dict[str, Callable[[Comparison], float | None]] = {RATE: lambda it: it.rate, MEDIAN: lambda it: it.median}


@dataclass(frozen=True)
class Claim:
    """`what` is at least so many times as large in our favour, on explanations of one row over REST."""

    workload: str
    what: str
    at_least: float


CLAIMS = (
    Claim("credit-100", RATE, 6),
    Claim("credit-100", MEDIAN, 4),
    Claim("credit-1000", RATE, 12),
    Claim("credit-1000", MEDIAN, 10),
    Claim("resnet50", RATE, 4),
)


@dataclass(frozen=True)
class Verdict:
    """A claim, and what a run got; None: it did not measure that."""

    workload: str
    what: str
    asked: float
    got: float | None

    @property
    def in_words(self) -> str:
        """met, missed, or not measured."""
        if self.got is None:
            return "not measured"
        return "met" if self.got >= self.asked else "missed"


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """Of every claim about a workload that was run."""
    ran = {result.workload for result in results}
    found = {one.workload: one for one in compare(results) if one.peer == PEER}
    return [
        Verdict(
            claim.workload,
            claim.what,
            claim.at_least,
            OF[claim.what](found[claim.workload]) if claim.workload in found else None,
        )
        for claim in CLAIMS
        if claim.workload in ran
    ]


def told(found: Sequence[Verdict]) -> list[tuple[str, ...]]:
    """A line of a table for each: where, what, asked, got, in words."""
    return [
        (
            one.workload,
            one.what,
            f"{one.asked:g}",
            "—" if one.got is None else f"{one.got:.3g}",
            one.in_words,
        )
        for one in found
    ]
