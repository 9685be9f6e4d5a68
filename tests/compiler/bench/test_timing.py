"""Turns, blocks and ratios."""

import time

import pytest

from rationale.bench.timing import BLOCK_S, MOST_CALLS, System, alternate, quartiles, ratio


def test_systems_take_turns() -> None:
    """Slow ones are called once a turn, and nobody always comes first."""
    order: list[str] = []

    def system(name: str) -> System:
        return System(name, lambda: time.sleep(2 * BLOCK_S), lambda: order.append(name))

    times = alternate([system(name) for name in "abc"], 3)
    assert order == [*"abc", *"abc", *"bca", *"cab"]  # the first three: how many calls a turn has
    assert [len(turn) for name in "abc" for turn in times[name]] == [1] * 9
    assert all(t >= 2 * BLOCK_S for turns in times.values() for turn in turns for t in turn)


def test_fast_systems_are_called_often() -> None:
    times = alternate([System("fast", lambda: None)], 2)
    assert [len(turn) for turn in times["fast"]] == [MOST_CALLS, MOST_CALLS]


def test_ratio_compares_rounds() -> None:
    """A round in which everything is slow counts as any other."""
    ours = [[1.0, 1.0, 9.0], [10.0, 11.0, 10.0], [2.0, 1.0, 2.0]]
    theirs = [[3.0], [30.0], [4.0]]
    found = ratio(theirs, ours)
    assert (found.low, found.median, found.high) == (2.5, 3.0, 3.0)
    assert found.least == 3.0


@pytest.mark.parametrize(("values", "expected"), [([4.0], (4, 4, 4)), ([1.0, 2, 3, 4, 5], (2, 3, 4))])
def test_quartiles(values: list[float], expected: tuple[float, ...]) -> None:
    assert quartiles(values) == expected
