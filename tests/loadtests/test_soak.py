"""The soak: what it calls wrong, and a short one of the real gateway."""

from pathlib import Path

import numpy as np
import pytest

from loadtests import soak
from loadtests.models import write_network
from loadtests.processes import gateway

WANT = np.array([[0.25]], np.float32)


def answer(**changes: np.ndarray) -> dict[str, np.ndarray]:
    right = {
        "p": WANT,
        "x_attributions": np.array([[[0.5, -0.75]]]),
        "base_value": np.array([[1.0]]),
        "explained_value": np.array([[0.75]]),
    }
    return right | changes


def test_what_adds_up_is_right() -> None:
    assert soak.fault_of(answer(), WANT) is None
    assert soak.fault_of({"p": WANT}, WANT) is None


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"p": np.array([[0.26]])}, "predicts"),
        ({"x_attributions": np.array([[[0.5, -0.74]]])}, "attributions end at"),
        ({"base_value": np.array([[1.01]])}, "attributions end at"),
    ],
)
def test_a_wrong_answer_is_told(changes: dict[str, np.ndarray], fault: str) -> None:
    assert fault in (soak.fault_of(answer(**changes), WANT) or "")


def result(memory_mb: list[float], answers: dict[str, int], wrong: tuple[str, ...] = ()) -> soak.Report:
    tally = soak.Tally(took_s={"predict json": [0.001]}, wrong=list(wrong))
    tally.answers.update(answers)
    return soak.report(1.0, tally, soak.Publisher("nowhere:1", soak.Load("network", {})), memory_mb)


def test_what_fails_a_soak() -> None:
    flat, fine = [200.0] * 9, {"predict json 200": 5}
    assert not result(flat, fine).failed
    assert result([200.0] * 6 + [220.0] * 3, fine).failed
    assert result(flat, {"predict json 503": 1}).failed
    assert result(flat, fine, ("predict json: predicts 1",)).failed


@pytest.mark.slow
def test_a_short_soak_of_the_gateway(tmp_path: Path) -> None:
    load = write_network(tmp_path / "models", width=soak.WIDTH, references=soak.REFERENCES, name=soak.MODEL)
    with gateway(tmp_path / "models") as server:
        told = soak.soak(server, load, minutes=0.5)
    assert not told.wrong
    assert not told.admin_faults
    assert told.published >= 1
    assert all(kind.endswith(" 200") for kind in told.answers)
    soak.plot(told, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").stat().st_size > 10_000
