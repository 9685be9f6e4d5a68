"""When requests are due: a Poisson process, as many independent callers make one, of a known number.

By chance a process of 100 arrivals has 10 more or fewer, and then another rate was offered than the one that
is reported. Given their number, the arrivals of a Poisson process are drawn evenly from its time.
"""

from collections.abc import Iterator, Sequence
from random import Random

from loadtests.plan import Phase


def arrivals(phases: Sequence[Phase], random: Random) -> Iterator[float]:
    """Seconds from the start at which a request is due, in order. Every phase must have a rate."""
    began = 0.0
    for phase in phases:
        if phase.rate is None:
            raise ValueError("every phase of an open load needs a rate")
        count = max(round(phase.rate * phase.seconds), 1)
        yield from sorted(began + random.uniform(0, phase.seconds) for _ in range(count))
        began += phase.seconds
