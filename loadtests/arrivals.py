"""When requests are due: a Poisson process, as many independent callers make one."""

from collections.abc import Iterator, Sequence
from random import Random

from loadtests.plan import Phase


def arrivals(phases: Sequence[Phase], random: Random) -> Iterator[float]:
    """Seconds from the start at which a request is due. Every phase must have a rate."""
    began = 0.0
    for phase in phases:
        if phase.rate is None:
            raise ValueError("every phase of an open load needs a rate")
        at = began + random.expovariate(phase.rate)
        while at < began + phase.seconds:
            yield at
            at += random.expovariate(phase.rate)
        began += phase.seconds
