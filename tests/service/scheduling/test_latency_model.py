"""The line through recent batches, against lines that are known."""

import pytest

from rationale_service.engine.scheduling.batch import LatencyModel


def learned(*batches: tuple[int, float]) -> LatencyModel:
    times = LatencyModel()
    for rows, seconds in batches:
        times.observe(rows, seconds)
    return times


def test_nothing_is_known_at_first() -> None:
    assert not LatencyModel().has_measurements
    assert LatencyModel().estimate(7) == 0


def test_a_fixed_part_and_a_slope() -> None:
    times = learned(*((rows, 0.002 + 0.003 * rows) for rows in (1, 5, 2, 8)))
    assert times.estimate(20) == pytest.approx(0.062)


def test_one_size_tells_no_slope() -> None:
    assert learned((3, 0.5), (3, 0.7)).estimate(64) == pytest.approx(0.6, rel=0.05)


@pytest.mark.parametrize("batches", [((1, 0.9), (8, 0.1)), ((4, 0.1), (8, 0.9))])
def test_neither_part_is_negative(batches: tuple[tuple[int, float], ...]) -> None:
    times = learned(*batches)
    assert 0 <= times.estimate(0) <= times.estimate(1) <= times.estimate(100)


def test_what_is_long_past_is_forgotten() -> None:
    times = learned(*[(2, 9.0)] * 50, *[(2, 0.01)] * 300)
    assert times.estimate(2) == pytest.approx(0.01, rel=0.01)


def test_one_stall_does_not_speak_for_the_batches_after_it() -> None:
    times = learned(*[(2, 0.01)] * 20, (2, 5.0))
    assert times.estimate(2) == pytest.approx(0.0115, rel=0.1)


def test_a_change_that_lasts_is_learned() -> None:
    times = learned(*[(2, 0.01)] * 20, *[(2, 0.5)] * 40)
    assert times.estimate(2) > 0.25


def test_a_batch_of_a_size_that_is_new_teaches_at_once() -> None:
    times = learned(*[(1, 0.001)] * 20, (64, 0.064))
    assert times.estimate(64) == pytest.approx(0.064, rel=0.05)
