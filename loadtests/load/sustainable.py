"""The highest rate that a system sustains, by bisection."""

from collections.abc import Callable
from math import sqrt

_STEP = 1.4  # the next one is its square: a guess is as a rule not far off
_LEAST = 0.02  # requests a second; what does not sustain this sustains nothing


def sustainable_rate(holds: Callable[[float], bool], guess: float, precision: float) -> float:
    """The highest rate known to hold, with one known not to hold less than `precision` times above it.

    From `guess` the rate is raised or lowered until both sides are known, then the middle of their ratio is
    tried. 0 where even the least rate does not hold.
    """
    low, high = _bracket(holds, guess)
    while low > 0 and high / low > precision:
        middle = sqrt(low * high)
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def _bracket(holds: Callable[[float], bool], guess: float) -> tuple[float, float]:
    """A rate that holds and one that does not: ever longer steps from `guess`, up or down."""
    rate, step = guess, _STEP
    if holds(rate):
        while holds(rate * step):
            rate, step = rate * step, step * step
        return rate, rate * step
    while rate > _LEAST:
        if holds(rate / step):
            return rate / step, rate
        rate, step = rate / step, step * step
    return 0.0, rate
