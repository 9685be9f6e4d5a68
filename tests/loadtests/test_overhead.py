"""The command about overhead asks every way there is, and reports each."""

import pytest

from loadtests.checks import overhead
from loadtests.checks.overhead import RequestCost


@pytest.mark.full
def test_every_kind_of_request_is_asked_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with overhead.kinds() as kinds:
        actual = overhead.measure(kinds, requests=40, rounds=2)
    assert all(len(each) == 2 and min(cost.cpu_us for cost in each) > 0 for each in actual.values())
    overhead.report(actual)
    printed = capsys.readouterr().out
    assert printed.count("µs of CPU per request") == len(kinds) == 10
    assert printed.count("1.00 times") >= 4, "each yardstick beside itself"


@pytest.mark.full
def test_what_the_gateway_adds_is_told_round_by_round(capsys: pytest.CaptureFixture[str]) -> None:
    actual = {
        "Triton": [RequestCost(100, took_ms) for took_ms in (1.0, 9.0, 2.0)],
        "json predict": [RequestCost(150, took_ms) for took_ms in (1.5, 9.25, 3.0)],
    }
    overhead.report(actual)
    assert "1.50 times Triton; 3.00 ms at the median, +0.50 ms" in capsys.readouterr().out
