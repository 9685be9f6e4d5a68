"""What the check measures and how it judges it: each limit from both sides."""

import contextlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rationale import AttnLrp, CpLrp, Lrp, compile_model
from rationale.artifact.checks import measure
from rationale.artifact.checks.check import demand
from rationale.artifact.checks.measure import relative_error
from rationale.errors import CheckFailedError, UnsupportedModelError
from rationale.methods.engine import Gap, Method
from rationale.methods.outputs import BASE_VALUE, EXPLAINED_VALUE, GAP
from rationale.schema.manifest import Measurements
from tests.compiler.models import cnn, mlp

FINE: dict[str, Any] = {
    "rows": 3,
    "outputs_error": 1e-6,
    "completeness_gap": 1e-6,
    "rows_error": 1e-6,
    "nodes": 5,
    "model_bytes": 100,
    "latency_ms": 1.0,
}

# What was measured, why a gap may be, and what comes of it: nothing, a warning, or (with a !) a refusal.
JUDGED: list[tuple[dict[str, Any], Gap | None, str]] = [
    ({}, Gap.ROUNDING, ""),
    ({"outputs_error": 9.9e-5}, None, ""),
    ({"outputs_error": 1.1e-4}, None, "! outputs differ"),
    ({"outputs_error": 7.9e-3, "rounding": 1e-3}, None, ""),
    ({"outputs_error": 8.1e-3, "rounding": 1e-3}, None, "! outputs differ"),
    ({"outputs_error": 7.9e-3, "own_rounding": 1e-3}, None, "float64"),
    ({"outputs_error": 8.1e-3, "own_rounding": 1e-3}, None, "! outputs differ"),
    ({"outputs_error": 0.13, "fused_integers": 0.13}, None, "disable_quant_qdq"),
    ({"outputs_error": 0.138, "fused_integers": 0.13, "own_rounding": 1e-3}, None, "disable_quant_qdq"),
    ({"outputs_error": 0.131, "fused_integers": 0.13}, None, "! outputs differ"),
    ({"outputs_error": 1.1e-4, "fused_integers": 9.9e-5}, None, "! outputs differ"),
    ({"outputs_error": float("nan"), "fused_integers": 0.13}, None, "! outputs differ"),
    ({"outputs_error": float("nan")}, None, "! outputs differ"),
    ({"rows_error": 9.9e-4}, None, ""),
    ({"rows_error": 1.1e-3}, None, "! batch"),
    ({"rows_error": float("nan")}, None, "! batch"),
    ({"rows_error": None}, None, ""),
    ({"completeness_gap": None}, Gap.ROUNDING, "not measured"),
    ({"completeness_gap": None}, None, ""),
    ({"completeness_gap": float("nan")}, Gap.ROUNDING, "! not finite"),
    ({"completeness_gap": float("nan")}, Gap.ABSORBED, "! not finite"),
    ({"completeness_gap": 9.9e-5}, Gap.ROUNDING, ""),
    ({"completeness_gap": 1.1e-4}, Gap.ROUNDING, r"within \d"),
    ({"completeness_gap": 9.9e-3}, Gap.ROUNDING, r"within \d"),
    ({"completeness_gap": 1.1e-2}, Gap.ROUNDING, "! report"),
    ({"completeness_gap": 7.9e-2, "gap_rounding": 1e-2}, Gap.ROUNDING, "float64"),
    (
        {"completeness_gap": 7.9e-2, "gap_rounding": 1e-2, "fused_integers": 1e-2},
        Gap.ROUNDING,
        "whole numbers",
    ),
    ({"completeness_gap": 8.1e-2, "gap_rounding": 1e-2}, Gap.ROUNDING, "! report"),
    ({"completeness_gap": float("inf")}, Gap.ROUNDING, "! report"),
    ({"completeness_gap": 9.9e-3}, Gap.QUADRATURE, ""),
    ({"completeness_gap": 1.1e-2}, Gap.QUADRATURE, "steps"),
    ({"completeness_gap": 9.9e-3, "gap_in_standard_errors": 4.9}, Gap.SAMPLING, ""),
    ({"completeness_gap": 1.1e-2, "gap_in_standard_errors": 4.9}, Gap.SAMPLING, "samples"),
    ({"completeness_gap": 1e-3, "gap_in_standard_errors": 5.1}, Gap.SAMPLING, r"\b5\.1 standard errors"),
    ({"completeness_gap": 1.1e-2}, Gap.SAMPLING, "samples"),
    ({"completeness_gap": 0.99}, Gap.ABSORBED, ""),
    ({"completeness_gap": 17.0}, Gap.ABSORBED, r"\b17 times"),
    ({"completeness_gap": 0.4, "gap_of_a_row": 0.99}, Gap.ABSORBED, ""),
    ({"completeness_gap": 0.4, "gap_of_a_row": 17.0}, Gap.ABSORBED, r"\b17 times"),
]


@pytest.mark.parametrize(("measures", "gap", "verdict"), JUDGED)
def test_a_limit_from_both_sides(measures: dict[str, Any], gap: Gap | None, verdict: str) -> None:
    measured = Measurements(**{**FINE, **measures})
    refused = verdict.startswith("!")
    words = verdict.removeprefix("! ")
    with pytest.raises(CheckFailedError, match=words) if refused else contextlib.nullcontext():
        warnings = demand(measured, gap)
        assert len(warnings) == bool(verdict)
        assert all(re.search(words, warning) for warning in warnings)


@pytest.mark.parametrize("method", [Lrp(), AttnLrp(), CpLrp()])
def test_what_a_row_keeps_is_not_held_against_larger_outputs(method: Method) -> None:
    """Of the targets' largest output the gap is less than 1, of one target's own on most rows it is more."""
    compiled = compile_model(cnn(), method, targets="all")
    measured = compiled.manifest.measured
    assert measured.completeness_gap is not None
    assert measured.completeness_gap < 1
    assert measured.gap_of_a_row is not None
    assert any(f"{measured.gap_of_a_row:.3g} times" in w for w in compiled.manifest.warnings)
    small = compile_model(mlp(last="Identity"), method, targets="all").manifest
    assert small.measured.gap_of_a_row is not None
    assert 0.1 < small.measured.gap_of_a_row < 1
    assert small.warnings == ()


@pytest.mark.parametrize(("gap", "warning_count"), [(9.9e-5, 0), (1.1e-4, 1), (0.7, 1)])
def test_attributions_that_end_on_the_way_may_miss_the_rest(gap: float, warning_count: int) -> None:
    measured = Measurements(**{**FINE, "completeness_gap": gap})
    warnings = demand(measured, Gap.ROUNDING, ended=True)
    assert len(warnings) == warning_count
    assert all(f"{gap:.1e}" in w for w in warnings)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("a", "b", "scale", "error"),
    [
        ([1.0, 2.5], [1.0, 2.0], None, 0.25),
        ([1.0, -2.5], [1.0, -2.0], None, 0.25),
        ([1.0, 2.5], [1.0, 2.0], [-8.0, 3.0], 0.0625),
        ([0.5, 0.0], [0.0, 0.0], None, 0.5),
        ([NAN, 2.5], [NAN, 2.0], None, 0.25),
        ([1.0, 2.0], [NAN, 2.0], None, INF),
        ([NAN, 2.0], [1.0, 2.0], None, INF),
        ([INF, 2.0], [1.0, 2.0], None, INF),
        ([INF, 2.5], [INF, 2.0], None, 0.25),
        ([], [], None, 0.0),
        ([3, 5], [3, 4], None, 0.25),
        ([True, False], [True, True], None, 1.0),
    ],
)
def test_the_relative_error(a: list[float], b: list[float], scale: list[float] | None, error: float) -> None:
    scale_array = None if scale is None else np.asarray(scale)
    assert relative_error(np.asarray(a), np.asarray(b), scale_array) == error


def test_texts_differ_or_they_do_not() -> None:
    words = np.asarray(["a", "b"], object)
    assert relative_error(words, words.copy()) == 0.0
    assert relative_error(words, words[::-1]) == INF


def results(
    gap: Sequence[float] | np.ndarray, explained: list[float], base: list[float] | None
) -> dict[str, np.ndarray]:
    results = {"completeness_gap": gap, "explained_value": explained, "base_value": base}
    return {name: np.asarray(v, np.float32)[:, None] for name, v in results.items() if v is not None}


EVERY = np.ones(3, bool)


def test_the_gap_is_a_part_of_the_largest_difference() -> None:
    answers = results([0.1, -0.3, 0.2], [1.0, 2.0, 4.0], [2.0, 0.5, 8.0])
    assert measure._gap(answers, EVERY) == pytest.approx(0.3 / 4.0)
    assert measure._gap(answers, np.asarray([True, False, True])) == pytest.approx(0.2 / 4.0)
    assert measure._gap(answers, np.asarray([True, True, False])) == pytest.approx(0.3 / 1.5)
    without = results([0.1, -0.3, 0.2], [1.0, 2.0, -4.0], None)
    assert measure._gap(without, EVERY) == pytest.approx(0.3 / 4.0)


def test_a_gap_that_rounding_explains_is_none() -> None:
    eps = float(np.finfo(np.float32).eps)
    explained, base = [4.0, 1.0, 1.0], [3.0, 1.0, 1.0]
    assert measure._gap(results([31 * eps * 4, 0, 0], explained, base), EVERY) == 0.0
    assert measure._gap(results([33 * eps * 4, 0, 0], explained, base), EVERY) > 0
    assert measure._gap(results([0.5, 0, 0], [4.0] * 3, [4.0] * 3), EVERY) == INF
    for i in range(3):
        assert np.isnan(measure._gap(results(np.where(np.arange(3) == i, NAN, 0.5), explained, base), EVERY))
    assert measure._gap(results([NAN, 0, 0], explained, [3.0, 0.5, 1.0]), ~EVERY | [False, True, True]) == 0.0


def test_where_nothing_moves_nothing_is_measured() -> None:
    eps = float(np.finfo(np.float32).eps)
    still = [4.0 + 16 * eps, 4.0, 4.0]
    assert measure._gap(results([0, 0, 0], still, [4.0] * 3), EVERY) is None
    assert measure._gap(results([0, 0, 0], [5.0, 4.0, 4.0], [4.0] * 3), EVERY) == 0.0


def test_the_row_a_unit_away_hides_no_gap_of_those_about_the_references() -> None:
    """Each is held against the difference that it is a part of."""
    four = np.ones(4, bool)
    answers = results([0, 1e-3, 0, 0], [1.0, 1.01, 1.0, 9.0], [1.0] * 4)
    assert measure._gap(answers, four) == pytest.approx(0.1, rel=1e-4)
    answers = results([0, 0, 0, 4.0], [1.0, 1.01, 1.0, 9.0], [1.0] * 4)
    assert measure._gap(answers, four) == pytest.approx(0.5)
    answers = results([0, 0, 0, 4.0], [1.0, 1.0, 1.0, 9.0], [1.0] * 4)
    assert measure._gap(answers, four) == pytest.approx(0.5)
    for i in range(4):  # also what is no number, in any row
        gap = np.where(np.arange(4) == i, NAN, 1e-3)
        assert np.isnan(measure._gap(results(gap, [1.0, 1.01, 1.0, 9.0], [1.0] * 4), four))


def test_the_gap_in_standard_errors() -> None:
    answers = results([0.1, -0.3, 0.2], [1.0, 2.0, 4.0], [2.0, 0.5, 8.0])
    answers["completeness_gap_standard_error"] = np.float32([[0.2], [0.1], [0.05]])
    assert measure._gap_in_errors(answers, EVERY) == pytest.approx(4.0, rel=1e-3)
    assert measure._gap_in_errors(answers, np.asarray([True, True, False])) == pytest.approx(3.0, rel=1e-3)
    nothing = {**answers, "completeness_gap": np.zeros((3, 1), np.float32)}
    assert measure._gap_in_errors(nothing, EVERY) == 0.0


def test_what_rounding_makes_of_the_gap() -> None:
    answers = results([0, 0, 0], [1.0, -6.0, 4.0], [2.0, -5.0, 2.0])
    assert measure._gap_rounding(answers, EVERY, 1e-3) == pytest.approx(1e-3 * 6 / 2)
    assert measure._gap_rounding(answers, EVERY, -1e-3) == 0.0
    assert measure._gap_rounding(results([0] * 3, [1.0] * 3, [1.0] * 3), EVERY, 1e-3) == 0.0


@pytest.mark.parametrize(
    ("seconds", "most", "batch"),
    [
        (lambda n: 0.2 * n, 64, 4),  # beyond a tenth of a second the rest follows in proportion
        (lambda n: 0.011 * n, 64, 64),
        (lambda n: 0.011 * n, 40, 32),
        (lambda n: 0.03 * n, 64, 32),
        (lambda _: 0.6, 64, 1),
        (lambda n: 0.01 if n < 8 else 1.5, 64, 4),
        (lambda _: 1e-4, 1, 1),
    ],
)
def test_the_largest_batch_is_a_power_of_two_within_its_time(
    seconds: Any, most: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_seconds_of_run", lambda *arguments: seconds(arguments[-1]))
    assert measure._max_batch(lambda *_: {}, {}, seconds(1), most) == batch


def test_rows_without_a_finite_answer_are_left_out() -> None:
    outputs = {
        "y": np.asarray([[1.0, 2.0], [NAN, 1.0], [0.0, 0.0]]),
        "z": np.asarray([1.0, 1.0, INF]),
        "other": np.asarray([NAN, 1.0]),
        "label": np.asarray(["a", "b", "c"]),
    }
    np.testing.assert_array_equal(measure._sound_rows(outputs, 3), [True, False, False])
    with pytest.raises(CheckFailedError, match="NaN"):
        measure._sound_rows({"y": np.full((3, 2), NAN)}, 3)


@pytest.mark.parametrize(("factor", "rounding", "fine"), [(0.9, 0, True), (1.1, 0, False), (1.1, 1e-3, True)])
def test_a_model_that_mixes_its_rows(factor: float, rounding: float, fine: bool) -> None:
    """Its batch differs from its rows by a factor of what may be rounding."""
    x = np.asarray([[1.0], [2.0], [4.0]])
    together = {
        "y": x + factor * 1e-3 * 4 * np.asarray([[0], [1], [0]]),
        "label": np.asarray(["a", "b", "c"]),
    }

    def alone(row: dict[str, np.ndarray], names: list[str]) -> dict[str, np.ndarray]:
        assert names == ["y"]
        return {"y": row["x"]}

    with contextlib.nullcontext() if fine else pytest.raises(UnsupportedModelError, match="batch"):
        measure._demand_separate_rows(alone, {"x": x}, together, 3, rounding)


def test_single_answers_are_joined_to_a_batch() -> None:
    """What has no rows is the first's."""
    singles = [{"y": np.full((1, 2), i), "one": np.asarray(7 + i), "zip": [{"a": i}]} for i in range(3)]
    joined = measure._join_rows(singles)
    np.testing.assert_array_equal(joined["y"], [[0, 0], [1, 1], [2, 2]])
    assert (joined["one"], joined["zip"]) == (7, [{"a": 0}])


@pytest.mark.parametrize(
    ("gaps", "due"),
    [
        ([[0.1, 0.0], [0.1, 0.0], [0.1, 0.0]], 0.1),  # of the target that misses most
        ([[0.1, 0.3], [0.1, 0.3], [0.1, 0.9]], 0.3),  # on the median of its rows
        ([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]], 0.0),
    ],
)
def test_the_gap_of_a_row_is_that_of_the_worst_target(gaps: list[list[float]], due: float) -> None:
    """Each over the row's own difference, 2."""
    shape = np.ones((3, 2))
    results = {
        GAP: 2 * np.array(gaps, np.float32),
        EXPLAINED_VALUE: (3 * shape).astype(np.float32),
        BASE_VALUE: shape.astype(np.float32),
    }
    assert measure._gap_of_a_row(results, np.ones(3, bool)) == pytest.approx(due)
