"""Arrivals, and what answers come to."""

from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import mean, stdev

import pytest

from loadtests.load.plan import PLAN, SEEN, Answer, Phase, Plan, Seen, arrivals
from loadtests.report.figures import figures


def test_arrivals_follow_the_phases():
    due_s = list(arrivals((Phase(10, rate=100), Phase(5, rate=1000), Phase(10, rate=10)), Random(1)))
    assert due_s == sorted(due_s)
    counts = [sum(low <= at < high for at in due_s) for low, high in ((0, 10), (10, 15), (15, 25))]
    assert counts == [1000, 5000, 100], "the rate that is told is the rate that was offered"
    assert len(due_s) == sum(counts)


def test_arrivals_come_together_and_apart_as_by_chance():
    """Of a Poisson process the gaps are exponential: they deviate by as much as their mean."""
    due_s = list(arrivals((Phase(100, rate=50),), Random(1)))
    gaps_s = [later - sooner for sooner, later in pairwise(due_s)]
    assert stdev(gaps_s) == pytest.approx(mean(gaps_s), rel=0.05)


def test_arrivals_need_rates():
    with pytest.raises(ValueError, match="needs a rate"):
        list(arrivals((Phase(1, users=3),), Random(1)))


def test_plans_and_answers_travel_as_json():
    mix, phases = {"explain json": 0.5, "predict grpc": 0.5}, (Phase(1, rate=2.0), Phase(3, users=4))
    plan = Plan("host:1", None, Path("folder"), "expected.npz", mix, phases)
    assert PLAN.validate_json(PLAN.dump_json(plan)) == plan
    assert plan.seconds == 4
    seen = Seen((Answer("explain json", 0.5, 0.0, 0.1, "HTTP 429"),), 2.0, 0, 0.3)
    assert SEEN.validate_json(SEEN.dump_json(seen)) == seen


def test_figures_are_of_answers_and_errors_stand_beside_them():
    took_s = [0.01] * 98 + [0.2, 0.4]
    answers = [Answer("explain json", 0.01 * i, 0.001, took) for i, took in enumerate(took_s)]
    answers.append(Answer("explain json", 0.5, 0.0, 9.0, "HTTP 429"))
    answers.append(Answer("explain json", 0.5, 0.0, 0.01, wrong="y differs"))
    found = figures(Seen(tuple(answers), 1.0, 50, 0.25), memory_bytes=7)
    assert (found.p50_s, found.p99_s) == (0.01, 0.2)
    assert found.offered_rate == 102
    assert found.answered_rate == 99, "two came after the load had ended, one is an error"
    assert (found.errors, found.wrong, found.faultless) == ({"HTTP 429": 1}, 1, False)
    assert (found.generator_share, found.memory_bytes, found.lag_p99_s) == (0.25, 7, 0.001)


def test_no_answer_has_no_percentiles():
    found = figures(Seen((), 1.0, 0, 0.0), 0)
    assert (found.p50_s, found.requests, found.faultless) == (None, 0, False)
