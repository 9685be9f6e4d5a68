"""Due times of the requests of an open load."""

import random
import time
from collections.abc import Iterator, Sequence


def arrivals(rates: Sequence[float], seconds: float) -> Iterator[float]:
    """Yield times of `time.perf_counter`, a Poisson process of a known number in each stretch of `seconds`.

    A plain process of 100 arrivals has 10 more or fewer by chance: its rate would then differ from the
    reported one. With a fixed number, arrivals are uniform over the stretch.
    """
    began_s, drawn = time.perf_counter(), random.Random(0)
    for number, rate in enumerate(rates):
        count = max(round(rate * seconds), 1)
        yield from sorted(began_s + seconds * (number + drawn.random()) for _ in range(count))
