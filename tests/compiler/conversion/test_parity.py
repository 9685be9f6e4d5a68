"""The comparison of an ONNX model with what it was made of, where they differ."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import onnx
import pandas as pd
import pytest
import xgboost as xgb
from onnx import helper
from sklearn.ensemble import GradientBoostingRegressor

from rationale import TreeShap, compile_model, convert
from rationale.conversion.graphs import INPUT, ConversionResult, ModelPair
from rationale.conversion.parity import (
    LIMIT,
    MIXTURES,
    compare,
    describe_parity,
    parity_warnings,
    refuse_another_model,
)
from rationale.conversion.rows import Rows
from rationale.errors import CheckFailedError, InvalidOptionError
from rationale.schema.manifest import Manifest, Parity
from tests.compiler.conversion.data import AMOUNT, LOANS, REFERENCES, K, compared_rows
from tests.references import trees as of

TREES = of.random_trees(1, ("LEQ", "LT"), columns=3)
FEATURES = ("age", "income", "debt", "years", "rate")


def of_these(x: np.ndarray, *answers: np.ndarray) -> Parity:
    """Of the trees, with a fitted model that answers so."""
    model = of.classifier(TREES, 3, post_transform="SOFTMAX")
    model.graph.output.append(helper.make_tensor_value_info("label", onnx.TensorProto.INT64, ["N"]))
    parity = compare(ConversionResult(model, {INPUT: x}, answers), "m.M", "c 1")
    assert parity is not None
    return parity


def probabilities(x: np.ndarray) -> np.ndarray:
    scores = np.exp(of.scores(TREES, x))
    return np.asarray(scores / scores.sum(axis=1, keepdims=True))


def sums(weights: np.ndarray, nodes: Any = None) -> onnx.ModelProto:
    """The scores x · weights [F, C], of which a missing value makes none."""
    features, columns = weights.shape
    inputs = [helper.make_tensor_value_info(INPUT, onnx.TensorProto.FLOAT, ["N", features])]
    outputs = [helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["N", columns])]
    constant = onnx.numpy_helper.from_array(weights.astype(np.float32), "weights")
    nodes = nodes or [helper.make_node("MatMul", [INPUT, "weights"], ["scores"])]
    graph = helper.make_graph(nodes, "sums", inputs, outputs, [constant])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def of_rows(
    x: np.ndarray,
    weights: np.ndarray,
    fitted: Callable[[np.ndarray], np.ndarray],
    allowed: Any = None,
    nodes: Any = None,
) -> Parity:
    """Of the sums, with a fitted model that answers any rows."""
    rows = Rows(tuple(x.T), FEATURES[: x.shape[1]])
    pair = ModelPair(
        rows, lambda r: {INPUT: r.numbers().astype(np.float32)}, lambda r: (np.asarray(fitted(r.numbers())),)
    )
    parity = compare(
        ConversionResult.from_table(sums(weights, nodes), pair, rows.names), "m.M", "c 1", allowed
    )
    assert parity is not None
    return parity


X = np.random.default_rng(0).normal(size=(K, 4)).astype(np.float32).astype(np.float64)
TWO_COLUMNS = np.array([[2000, 0], [500, 0.25], [0, 0.5], [1000, 0.125]])


def test_what_differs_is_told_with_its_row() -> None:
    x = of.rows(1, K)
    gaps = np.isnan(x).any(axis=1)
    assert 0 < gaps.sum() < K
    expected = probabilities(x)
    labels = expected.argmax(axis=1)
    fine = of_these(x, expected, labels)
    assert [compared_rows(fine, kind) for kind in ("references", "incomplete")] == [K, gaps.sum()]
    assert fine.labels == 0
    assert fine.relative < 1e-6
    assert parity_warnings(fine) == ()
    changed, other = expected.copy(), labels.copy()
    row = int(np.flatnonzero(~gaps)[3])
    changed[row, 1] += 0.25
    other[[int(np.flatnonzero(~gaps)[0]), int(np.flatnonzero(gaps)[0])]] += 1
    wrong = of_these(x, changed, other)
    worst, incomplete = wrong.worst, wrong.errors_on("incomplete")
    assert (worst.kind, worst.row, worst.labels, worst.column) == ("references", row, 2, "p[1]")
    assert wrong.labels == 2  # a row that lacks a value counts once
    assert worst.error == pytest.approx(0.25, abs=1e-6)
    assert worst.output_range == pytest.approx(np.ptp(changed[:, 1]))
    assert worst.relative == worst.error / worst.output_range
    assert incomplete is not None
    assert incomplete.relative < 1e-6  # the row that differs is a complete one
    line = describe_parity(wrong)
    assert all(figure in line for figure in (" 2.5e-01 ", f" {K} ", f" {gaps.sum()} ", "; 2 labels"))
    with pytest.raises(CheckFailedError, match=rf"m\.M: .*\b{row}\b.*\b0\.25\b.*p\[1\]"):
        refuse_another_model(wrong)
    changed[8] = np.nan
    assert of_these(x, changed, other).worst.error == np.inf
    changed[8, 2] = 1e-6
    near = of_these(x, changed, other).errors_on("near_bounds")
    assert near is not None
    assert (near.rows, near.row, near.column, near.output_range) == (1, 8, "p[2]", 1e-6)


@pytest.mark.parametrize(("share", "warned"), [(5e-6, 0), (2e-5, 1), (9e-3, 1)])
def test_what_is_more_than_rounding_is_warned_of(share: float, warned: int) -> None:
    x = of.rows(1, K)
    expected = probabilities(x)
    labels = expected.argmax(axis=1)
    expected[4, 2] += share * np.ptp(expected[:, 2])
    parity = of_these(x, expected, labels)
    refuse_another_model(parity)
    warnings = parity_warnings(parity)
    assert len(warnings) == warned
    assert all("row 4 " in warning for warning in warnings)


def test_labels_that_differ_are_warned_of() -> None:
    x = of.rows(1, K)
    other = probabilities(x).argmax(axis=1)
    other[5] += 1
    (warning,) = parity_warnings(of_these(x, probabilities(x), other))
    assert f" 1 of {K} " in warning
    parity = of_these(x, probabilities(x), other)
    mixtures = parity.worst.model_copy(update={"kind": "mixtures", "rows": 7})
    mixed = parity.model_copy(update={"errors": (*parity.errors, mixtures)})
    assert f" 2 of {K + 7} " in parity_warnings(mixed)[0]  # labels are those of mixtures too


def test_each_column_is_held_to_its_own_range() -> None:
    """A column in thousands hides nothing of another in 0 to 1."""
    silent = TWO_COLUMNS * [1, 0]
    parity = of_rows(X, silent, lambda x: x @ TWO_COLUMNS)
    assert parity.worst.column == "scores[1]"
    assert parity.relative > 0.5
    with pytest.raises(CheckFailedError, match=r"scores\[1\]"):
        refuse_another_model(parity)
    assert of_rows(X, TWO_COLUMNS, lambda x: x @ TWO_COLUMNS).relative < 1e-6


def test_rounding_of_a_column_that_barely_moves_is_no_other_model() -> None:
    weights = np.array([[1.0], [1e-7]])
    x = np.stack([np.full(K, 16_000.1), np.linspace(0, 1, K)], axis=1)
    parity = of_rows(x, weights, lambda x: x @ weights)
    assert parity.relative > 0.01
    refuse_another_model(parity)
    assert parity_warnings(parity)


def test_mixtures_of_references_are_compared() -> None:
    """What Shapley values are made of: both features are high in no reference."""
    x = X.copy()
    x[:, 1] = -np.sign(x[:, 0]) * np.abs(x[:, 1])

    def fitted(x: np.ndarray) -> np.ndarray:
        return np.asarray(x @ TWO_COLUMNS + np.outer((x[:, 0] > 0) & (x[:, 1] > 0), [0, 0.2]))

    parity = of_rows(x, TWO_COLUMNS, fitted)
    assert compared_rows(parity, "mixtures") == MIXTURES
    worst = parity.worst
    assert worst.kind == "mixtures"
    assert worst.error == pytest.approx(0.2, abs=1e-6)
    assert f" {MIXTURES} " in describe_parity(parity)
    with pytest.raises(CheckFailedError, match=rf"row {worst.row} .*'(age|income|debt|years)'.* row \d"):
        refuse_another_model(parity)


def test_a_single_row_or_feature_has_no_mixtures() -> None:
    for x in (X[:1], X[:, :1]):
        weights = TWO_COLUMNS[: x.shape[1]]
        parity = of_rows(x, weights, lambda x, w=weights: x @ w)
        assert compared_rows(parity, "mixtures") == 0


def without(values: dict[int, float]) -> Callable[[np.ndarray], np.ndarray]:
    """A fitted model that takes a value for a missing one of these features, and no other missing one."""

    def fitted(x: np.ndarray) -> np.ndarray:
        filled = x.copy()
        for feature, value in values.items():
            filled[np.isnan(x[:, feature]), feature] = value
        if np.isnan(filled).any():
            raise ValueError("Input contains NaN")
        return np.asarray(filled @ TWO_COLUMNS)

    return fitted


def test_missing_values_that_are_taken_otherwise_are_refused() -> None:
    """The references are complete; the sums have no answer where the fitted model has one."""
    parity = of_rows(X, TWO_COLUMNS, without(dict.fromkeys(range(4), 0.0)))
    assert parity.refuses_missing == (INPUT,)
    assert compared_rows(parity, "masked") == 0  # of those that are served
    refuse_another_model(parity)
    (warning,) = parity_warnings(parity)
    masked = parity.errors_on("masked", refused=True)
    assert masked is not None
    assert masked.error == np.inf  # the sums are no number
    assert "'x'" in warning
    assert masked.where in warning
    assert Parity.model_validate_json(parity.model_dump_json()) == parity


def test_missing_values_that_the_fitted_model_refuses_are_refused() -> None:
    parity = of_rows(X, TWO_COLUMNS, without({}))
    assert parity.refuses_missing == (INPUT,)
    assert compared_rows(parity, "masked") == 0
    assert parity_warnings(parity) == ()


def test_missing_values_that_both_take() -> None:
    parity = of_rows(X, TWO_COLUMNS, lambda x: x.astype(np.float32) @ TWO_COLUMNS.astype(np.float32))
    masked = parity.errors_on("masked")
    assert masked is not None
    assert masked.rows >= 1000
    assert (parity.refuses_missing, masked.relative) == ((), 0)


@pytest.mark.parametrize(("most", "refused"), [(4, ()), (1, (INPUT,)), (0, (INPUT,))])
def test_several_missing_values_at_once_may_be_taken_otherwise(most: int, refused: tuple[str, ...]) -> None:
    """Each alone is zero to both; of more than `most` in a row the fitted model makes something else."""
    zero = helper.make_node("Sub", ["weights", "weights"], ["zeros"])
    nodes = [
        zero,
        helper.make_node("ReduceMax", ["zeros"], ["zero"], keepdims=0),
        helper.make_node("IsNaN", [INPUT], ["lacks"]),
        helper.make_node("Where", ["lacks", "zero", INPUT], ["filled"]),
        helper.make_node("MatMul", ["filled", "weights"], ["scores"]),
    ]

    def fitted(x: np.ndarray) -> np.ndarray:
        lacks = np.isnan(x)
        return np.asarray(np.where(lacks, 0, x) @ TWO_COLUMNS + 100 * (lacks.sum(1, keepdims=True) > most))

    parity = of_rows(X, TWO_COLUMNS, fitted, nodes=nodes)
    assert parity.refuses_missing == refused
    assert (compared_rows(parity, "masked") > 0) == (not refused)


@pytest.mark.parametrize("allowed", [-0.1, 0, float("nan"), float("inf")])
def test_what_may_be_allowed(allowed: float) -> None:
    model = lgb.LGBMRegressor(n_estimators=4, max_depth=3, verbose=-1).fit(LOANS, AMOUNT)
    with pytest.raises(InvalidOptionError, match=f"--allow-parity {allowed}"):
        convert(model, REFERENCES, allow_parity=allowed)


def test_another_model_is_refused_unless_it_is_allowed(tmp_path: Path) -> None:
    whole = REFERENCES.fillna(0)
    model = GradientBoostingRegressor(n_estimators=4, max_depth=3).fit(LOANS.fillna(0), AMOUNT)
    predict = model.predict
    model.predict = lambda rows: predict(rows) + 0.2 * np.ptp(predict(whole))
    with pytest.raises(CheckFailedError, match=r"sklearn\.GradientBoostingRegressor: .* 1%"):
        compile_model(model, TreeShap(whole))
    with pytest.raises(CheckFailedError, match="15%"):
        convert(model, whole, allow_parity=0.15)
    folder = compile_model(model, TreeShap(whole), allow_parity=0.5).write(tmp_path, "loans")
    manifest = Manifest.read(folder / "explanation.json")
    assert manifest.parity is not None
    assert manifest.parity.allowed == 0.5
    assert " 0.5 " in manifest.warnings[0]


def test_the_manifest_keeps_it() -> None:
    model = lgb.LGBMRegressor(n_estimators=4, max_depth=3, verbose=-1).fit(LOANS, AMOUNT)
    compiled = compile_model(convert(model, REFERENCES), TreeShap(REFERENCES))
    parity = compiled.manifest.parity
    assert parity is not None
    assert [compared_rows(parity, kind) for kind in ("references", "incomplete")] == [K, 4]
    assert parity.labels is None
    assert compile_model(convert(model), TreeShap(REFERENCES)).manifest.parity is None


def test_an_entry_refuses_missing_values_that_its_model_does_not_take() -> None:
    whole = REFERENCES.fillna(0)
    model = GradientBoostingRegressor(n_estimators=4, max_depth=3).fit(LOANS.fillna(0), AMOUNT)
    compiled = compile_model(model, TreeShap(whole))
    assert not compiled.manifest.takes_missing
    with pytest.raises(InvalidOptionError, match="row 0"):
        compiled.explain(REFERENCES)
    compiled.explain(whole)


def test_a_model_of_onnx_has_no_parity_to_allow() -> None:
    with pytest.raises(InvalidOptionError, match="--allow-parity"):
        compile_model(of.regressor(TREES[:1]), TreeShap(np.zeros((2, 5))), allow_parity=0.1)


def test_a_wide_table_is_read_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 3000)).astype(np.float32))
    model = xgb.XGBRegressor(n_estimators=2, max_depth=2).fit(table, table[0])
    calls, numbers = list[int](), Rows.numbers

    def counted(rows: Rows) -> np.ndarray:
        calls.append(len(rows))
        return numbers(rows)

    monkeypatch.setattr(Rows, "numbers", counted)
    parity = convert(model, table).parity
    assert parity is not None
    assert parity.relative < LIMIT
    assert len(calls) < 20
    assert max(calls) * 3000 <= 4_000_000


@pytest.mark.parametrize("end", [0, 1])
def test_probabilities_near_0_or_1_are_told_and_not_refused(end: int) -> None:
    """A Sigmoid of float32 is off by 1.5e-7, which is more than all that these references differ by."""
    nodes = [
        helper.make_node("MatMul", [INPUT, "weights"], ["margin"]),
        helper.make_node("Sigmoid", ["margin"], ["scores"]),
    ]
    x = np.array([[-39.5], [-40.5], [-41.0]]) * (1 if end == 0 else -0.44)
    weights = np.ones((1, 1))

    def parity(off: float) -> Parity:
        pair = ModelPair(
            Rows((x[:, 0],), ("f0",)),
            lambda r: {INPUT: r.numbers().astype(np.float32)},
            lambda r: (1 / (1 + np.exp(-r.numbers())) + off,),
        )
        measured = compare(ConversionResult.from_table(sums(weights, nodes), pair, ("f0",)), "m.M", "c 1")
        assert measured is not None
        return measured

    equal = parity(0)
    refuse_another_model(equal)
    assert 0 < equal.worst.error < 2e-7
    near = equal.errors_on("near_bounds")
    assert near is not None
    assert near.rows == 3
    assert near.relative > 0.01
    assert near.error == pytest.approx(near.relative * near.output_range)
    assert f"{near.relative:.1e} of the way to 0 or 1 on 3 within 1e-05" in describe_parity(equal)
    with pytest.raises(CheckFailedError, match=r"m\.M: .* scores\b"):
        refuse_another_model(parity(1e-6 if end == 0 else -1e-6))
