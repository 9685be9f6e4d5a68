"""The load tests do what they say, in short: how fast, they tell on a machine that is left to them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtests.checks import overload
from loadtests.load.drive import DriveTally
from loadtests.load.questions import EXPLAIN
from loadtests.systems import models


@pytest.mark.slow  # a machine that is busy otherwise offers too little load to be refused
def test_under_overload_everyone_is_answered_or_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(overload.PROFILES, "short", overload.OverloadProfile(0.5, 1.0, 2))
    monkeypatch.setattr("sys.argv", ["overload", "--width", "256", "--processes", "2", "--connections", "24"])
    status = overload.main()
    printed = capsys.readouterr().out
    assert "with 429" in printed
    assert ", 0 wrong; unsent" in printed
    assert "broken 0" in printed
    assert ("passed" in printed) == (status == 0)


def outcome(**changes: Any) -> overload.OverloadResult:
    """Of a machine that grows slower."""
    tally = DriveTally({200: [0.1] * 16, 429: [0.01] * 9}, [b"{}"])
    of: dict[str, Any] = {
        "peaks": [100.0, 80.0, 60.0],
        "overloads": [81.0, 63.0],
        "tally": tally,
        "wrong": 0,
        "memory_before": 0,
        "memory_most": 1,
    }
    return overload.OverloadResult(**{**of, **changes})


def test_each_overload_is_held_against_the_loads_around_it() -> None:
    actual = outcome()
    assert actual.peak == 80
    assert actual.kept_share == pytest.approx(0.9)
    assert actual.kept_each == pytest.approx([0.9, 0.9])


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"wrong": 1}, "1 of 1 answers that were compared are wrong"),
        ({"tally": DriveTally({500: [0.1]})}, "other answers: {500: 1}"),
        ({"tally": DriveTally(broken=2)}, "2 connections broke"),
        ({"overloads": [60.0, 50.0]}, "less than 85% was kept"),
        ({"tally": DriveTally({429: [0.2] * 9})}, "refusals are late"),
        ({"memory_most": 1 << 30}, "memory grew"),
    ],
)
def test_what_fails(changes: dict[str, object], fault: str) -> None:
    assert outcome().faults(compute_ms=5.0) == []
    assert outcome(**changes).faults(compute_ms=5.0) == [fault]


def test_small_models_are_reported_and_not_judged_by_what_they_keep() -> None:
    assert outcome(overloads=[1.0, 1.0]).faults(compute_ms=0.5) == []


def test_a_wrong_answer_is_told(tmp_path: Path) -> None:
    models.write_network(tmp_path, width=8, references=3)
    question = models.question(models.NETWORK, EXPLAIN)
    alone = overload.BareRuntime(models.session(tmp_path, question.entry), question.inputs)
    names = [output.name for output in alone.session.get_outputs()]
    outputs = dict(zip(names, alone.session.run(None, question.inputs), strict=True))

    def body(answer: dict[str, np.ndarray]) -> bytes:
        tensors = [{"name": n, "shape": x.shape, "data": x.ravel().tolist()} for n, x in answer.items()]
        return json.dumps({"outputs": tensors}).encode()

    assert alone.is_right(body(outputs))
    assert not alone.is_right(body(outputs | {"x_attributions": outputs["x_attributions"] + 0.01}))
