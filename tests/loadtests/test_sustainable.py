"""The finder, on systems whose capacity is known."""

import pytest

from loadtests.load.sustainable import sustainable_rate


@pytest.mark.parametrize("capacity", [0.3, 37.0, 41.0, 5200.0])
@pytest.mark.parametrize("guess", [0.1, 40.0, 3000.0])
@pytest.mark.parametrize("precision", [1.05, 1.5])
def test_the_capacity_is_found(capacity, guess, precision):
    probes = []

    def holds(rate: float) -> bool:
        probes.append(rate)
        return rate <= capacity

    found = sustainable_rate(holds, guess, precision)
    assert capacity / precision <= found <= capacity
    assert found in probes, "the figure is one that was measured"
    assert len(probes) < 30


def test_a_system_that_sustains_nothing_has_the_rate_0():
    assert sustainable_rate(lambda _: False, 10.0, 1.1) == 0.0
