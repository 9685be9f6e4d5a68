"""The soak: what it calls wrong, and a short one of the real gateway."""

from pathlib import Path

import numpy as np
import pytest

from loadtests.checks import soak
from loadtests.load.expected import (
    ATTRIBUTIONS,
    BASE,
    EXPECTED,
    EXPLAINED,
    MODEL,
    OUTPUT,
    ComparedQuestion,
    compared,
)
from loadtests.load.locust import LocustSummary
from loadtests.load.questions import EXPLAIN, PREDICT, WrongAnswerError
from loadtests.systems.process import gateway


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("soak")
    soak.write_workload(place)
    return place


def check(folder: Path, verb: str, **changes: np.ndarray) -> None:
    question = compared(folder / EXPECTED, MODEL, 1)[verb][3]
    assert isinstance(question, ComparedQuestion)
    right = {
        OUTPUT: question.expected[OUTPUT],
        ATTRIBUTIONS: np.array([[[0.5, -0.75]]]),
        BASE: np.array([[1.0]]),
        EXPLAINED: np.array([[0.75]]),
    }
    question.check((right | changes).get)


def test_what_adds_up_is_right(folder: Path) -> None:
    check(folder, EXPLAIN)
    check(folder, PREDICT, **{BASE: np.array([[9.0]])})  # which a prediction has not


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({OUTPUT: np.array([[7.0]])}, "y differs"),
        ({ATTRIBUTIONS: np.array([[[0.5, -0.749]]])}, "do not add up"),
        ({BASE: np.array([[1.001]])}, "do not add up"),
    ],
)
def test_a_wrong_answer_is_told(folder: Path, changes: dict[str, np.ndarray], fault: str) -> None:
    with pytest.raises(WrongAnswerError, match=fault):
        check(folder, EXPLAIN, **changes)


def result(memory_mb: list[float], **errors: int) -> soak.SoakReport:
    return soak.report(
        1.0, LocustSummary(60.0, 60, 1.5, 1.6, 1.7, errors), soak.Publisher("nowhere:1"), memory_mb
    )


def test_what_fails_a_soak() -> None:
    flat = [200.0] * 9
    assert not result(flat).failed
    assert result([200.0] * 6 + [220.0] * 3).failed
    assert result(flat, refused=1).failed


@pytest.mark.slow
def test_a_short_soak_of_the_gateway(folder: Path) -> None:
    with gateway(folder / "repository") as server:
        report = soak.soak(server, folder, minutes=0.5)
    assert not report.errors
    assert not report.admin_faults
    assert report.published >= 1
    assert report.requests == 0.5 * 60 * soak.RATE_HZ
