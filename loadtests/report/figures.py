"""What a run's answers come to."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from loadtests.load.plan import Seen

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Figures:
    """One run of the load generator against one system.

    Attributes:
        offered_rate: requests that were due, answered_rate: right and wrong answers that came before the load
            ended; both per second.
        p50_s, p90_s, p99_s: from when a request was due to its answer; None where there was none.
        errors: refusals, timeouts and broken connections, by what they were; wrong: answers that differ.
        compared: answers that were compared. lag_p99_s: how late the generator itself was.
        generator_share: of one core, that the generator used.
        memory_bytes: of the server, right after.
    """

    offered_rate: float
    answered_rate: float
    requests: int
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    errors: dict[str, int]
    wrong: int
    compared: int
    lag_p99_s: float
    generator_share: float
    memory_bytes: int

    @property
    def faultless(self) -> bool:
        """Something was asked, and every answer is one, and right where it was compared."""
        return not self.errors and not self.wrong and self.requests > 0


def figures(seen: Seen, memory_bytes: int) -> Figures:
    """Of one run; `memory_bytes` are the server's after it."""
    answers = seen.answers
    took_s = [answer.took_s for answer in answers if not answer.error]
    in_time = sum(not answer.error and answer.due_s + answer.took_s <= seen.seconds for answer in answers)
    p50_s, p90_s, p99_s = _percentiles(took_s)
    lag_s = [answer.lag_s for answer in answers]
    return Figures(
        offered_rate=len(answers) / seen.seconds,
        answered_rate=in_time / seen.seconds,
        requests=len(answers),
        p50_s=p50_s,
        p90_s=p90_s,
        p99_s=p99_s,
        errors=dict(Counter(answer.error for answer in answers if answer.error)),
        wrong=sum(bool(answer.wrong) for answer in answers),
        compared=seen.compared,
        lag_p99_s=_percentiles(lag_s)[-1] or 0.0,
        generator_share=seen.cpu_s / seen.seconds,
        memory_bytes=memory_bytes,
    )


def _percentiles(values: list[float]) -> list[float | None]:
    """By rank, never between two values: a p99 of few requests is then their largest."""
    if not values:
        return [None for _ in PERCENTILES]
    return [float(value) for value in np.percentile(values, PERCENTILES, method="higher")]


def plain(value: float) -> str:
    """Three digits, and none of a larger number lost."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
