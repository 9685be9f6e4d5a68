"""The soak: what it calls wrong, and a short one of the real gateway."""

from pathlib import Path

import numpy as np
import pytest

from loadtests.checks import soak
from loadtests.load.expected import ATTRIBUTIONS, BASE, EXPECTED, EXPLAINED, OUTPUT, compared
from loadtests.load.plan import Answer, Plan, Seen
from loadtests.load.questions import EXPLAIN, PREDICT, WrongAnswerError
from loadtests.systems.process import gateway


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("soak")
    soak.write_workload(place)
    return place


def check(folder: Path, verb: str, **changes: np.ndarray) -> None:
    question = compared(Plan("", None, folder, EXPECTED, {}, (), tolerance=soak.TOLERANCE), verb)[3]
    right = {
        OUTPUT: question.due[OUTPUT],
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


def result(memory_mb: list[float], error: str = "", wrong: str = "") -> soak.Report:
    seen = Seen((Answer("predict json", 0.0, 0.0, 0.001, error, wrong),), 60.0, 1, 0.1)
    return soak.report(1.0, seen, soak.Publisher("nowhere:1"), memory_mb)


def test_what_fails_a_soak() -> None:
    flat = [200.0] * 9
    assert not result(flat).failed
    assert result([200.0] * 6 + [220.0] * 3).failed
    assert result(flat, error="HTTP 503").failed
    assert result(flat, wrong="y differs").failed


@pytest.mark.slow
def test_a_short_soak_of_the_gateway(folder: Path) -> None:
    with gateway(folder / "repository") as server:
        told = soak.soak(server, folder, minutes=0.5)
    assert not told.wrong
    assert not told.admin_faults
    assert told.published >= 1
    assert set(told.answers) == {f"{kind}: answered" for kind in soak.MIX}
    soak.plot(told, folder / "soak.png")
    assert (folder / "soak.png").stat().st_size > 10_000
