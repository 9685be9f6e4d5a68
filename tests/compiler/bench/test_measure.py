"""What a run of the benchmark keeps, whatever becomes of it later."""

from typing import Any, cast

import pytest

from rationale.bench import measure
from rationale.bench.cases import CASES, Settings
from rationale.bench.measure import Outcome, bench
from rationale.bench.process import ProcessDiedError
from rationale.errors import RationaleError


def outcome_of(_measure: object, case: Any, _settings: object) -> Outcome:
    """Stands for a process; that of ResNet50 dies."""
    if case.model == "resnet50":
        raise ProcessDiedError("killed")
    return Outcome(case, 0.0, 0, 0, {}, {})


def test_each_case_is_kept_before_the_next_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "in_a_process", outcome_of)
    kept: list[list[str]] = []
    outcomes, failed = bench(
        CASES[:3], Settings(), keep=lambda measured: kept.append([one.case.model for one in measured])
    )
    assert kept == [["vgg19"], ["vgg19", "densenet201"]]
    assert [one.case.model for one in outcomes] == kept[-1]
    assert len(failed) == 1
    assert "resnet50" in failed[0]


def test_nothing_measured_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "in_a_process", outcome_of)
    with pytest.raises(RationaleError, match="killed"):
        bench(CASES[1:2], Settings(), keep=cast(Any, None))
