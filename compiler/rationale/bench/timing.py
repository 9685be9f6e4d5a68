"""Times of several systems, taken in turn in one process."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

BLOCK_S = 0.03  # what takes less is called several times in its turn, after a call that is not timed
MOST_CALLS = 50
REST_S = 0.06  # between turns: threads of ONNX Runtime spin for 40 ms after a run


@dataclass(frozen=True)
class System:
    """What is timed.

    Attributes:
        prepare: called before each of its turns, outside the time.
        explain: its attributions [N, …]; None where it explains nothing.
        setup_s: what its preparation took.
    """

    name: str
    run: Callable[[], Any]
    prepare: Callable[[], Any] = lambda: None
    explain: Callable[[], np.ndarray] | None = None
    setup_s: float = 0.0


@dataclass(frozen=True)
class Ratio:
    """Of two systems' times, each round's turns side by side.

    Attributes:
        median, low, high: over the rounds (low and high: the quartiles); least: of the fastest calls.
    """

    median: float
    low: float
    high: float
    least: float


def alternate(
    systems: Sequence[System],
    rounds: int,
    tell: Callable[[int, int], None] = lambda *_: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[list[float]]]:
    """Return the seconds of each call in each round, by system; their order turns: A B C, B C A, C A B."""
    times: dict[str, list[list[float]]] = {system.name: [] for system in systems}
    calls = {system.name: _calls(system, clock) for system in systems}
    for done in range(rounds):
        for i in range(len(systems)):
            system = systems[(i + done) % len(systems)]
            tell(done * len(systems) + i, rounds * len(systems))
            times[system.name].append(_turn(system, calls[system.name], clock))
    return times


def _calls(system: System, clock: Callable[[], float]) -> int:
    """How many calls a turn of it has, from the first, or from later ones where that was quick."""
    seconds = _turn(system, 1, clock)[0]
    if seconds < BLOCK_S:
        seconds = min(_turn(system, 2, clock))
    return max(1, min(MOST_CALLS, round(BLOCK_S / max(seconds, 1e-9))))


def _turn(system: System, calls: int, clock: Callable[[], float]) -> list[float]:
    system.prepare()
    time.sleep(REST_S)
    if calls > 1:
        system.run()
    times = []
    for _ in range(calls):
        started = clock()
        system.run()
        times.append(clock() - started)
    return times


def ratio(above: Sequence[Sequence[float]], below: Sequence[Sequence[float]]) -> Ratio:
    """How many times longer the calls of `above` take, of times by `alternate`."""
    rounds = [statistics.median(a) / statistics.median(b) for a, b in zip(above, below, strict=True)]
    low, median, high = quartiles(rounds)
    return Ratio(median, low, high, min(map(min, above)) / min(map(min, below)))


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the quarter, the median, and three quarters."""
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return low, median, high
