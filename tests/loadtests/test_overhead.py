"""Both commands about overhead ask every way there is, and report each."""

import pytest

from loadtests.checks import overhead, triton_overhead


def test_every_kind_of_request_is_asked_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with overhead.kinds() as kinds:
        spent = overhead.measure(kinds, requests=40, rounds=2)
    assert all(len(each) == 2 and min(each) > 0 for each in spent.values())
    overhead.report(spent)
    printed = capsys.readouterr().out
    assert printed.count("µs of CPU per request") == len(kinds) == 10
    assert printed.count("1.00 times") >= 4, "each yardstick beside itself"


def test_what_the_gateway_adds_is_told_turn_by_turn(capsys: pytest.CaptureFixture[str]) -> None:
    triton_overhead.report({triton_overhead.STRAIGHT: [1.0, 9.0, 2.0], "gateway, JSON": [1.5, 9.25, 3.0]})
    assert "gateway, JSON      3.00 ms at the median, +0.50 ms" in capsys.readouterr().out
