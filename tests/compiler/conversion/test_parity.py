"""The comparison of an ONNX model with what it was made of, where they differ."""

import lightgbm as lgb
import numpy as np
import onnx
import pytest

from compiler import TreeShap, compile_model, convert
from compiler.conversion.parity import measure, said, warnings_of
from tests.compiler.conversion.data import AMOUNT, LOANS, REFERENCES, TWO, K
from tests.references import trees as of

TREES = of.random_trees(1, ("LEQ", "LT"), columns=3)


def test_what_differs_is_told_with_its_row() -> None:
    model, x = of.classifier(TREES, 3, post_transform="SOFTMAX"), of.rows(1, K)
    model.graph.output.append(onnx.helper.make_tensor_value_info("label", onnx.TensorProto.INT64, ["N"]))
    gaps = int(np.isnan(x).any(axis=1).sum())
    assert 0 < gaps < K
    scores = np.exp(of.scores(TREES, x))
    due = scores / scores.sum(axis=1, keepdims=True)
    labels = due.argmax(axis=1)
    fine = measure(model, {"x": x}, (due, labels), "m.M", "c 1")
    assert (fine.rows, fine.labels, fine.missing_rows) == (K, 0, gaps)
    assert fine.relative < 1e-6
    assert warnings_of(fine) == ()
    changed, other = due.copy(), labels.copy()
    changed[4, 1] += 0.25
    other[[2, 9]] += 1
    wrong = measure(model, {"x": x}, (changed, other), "m.M", "c 1")
    assert (wrong.row, wrong.labels) == (4, 2)
    assert wrong.error == pytest.approx(0.25, abs=1e-6)
    assert wrong.output_range == pytest.approx(np.ptp(changed))
    assert f"differs by 2.5e-01 at most on {K} references" in said(wrong)
    assert "2 labels differ" in said(wrong)
    (warning,) = warnings_of(wrong)
    assert "at row 4 of the references they differ by 0.25" in warning
    assert f"2 of {K} labels differ" in warning
    changed[8] = np.nan
    assert measure(model, {"x": x}, (changed, other), "m.M", "c 1").error == np.inf


def test_a_converter_that_is_wrong_is_found_out() -> None:
    """onnxmltools divides the probabilities of LightGBM's random forests, not their scores."""
    forest = lgb.LGBMClassifier(
        boosting_type="rf", bagging_freq=1, bagging_fraction=0.5, n_estimators=4, max_depth=3, verbose=-1
    )
    parity = convert(forest.fit(LOANS, TWO), REFERENCES).parity
    assert parity is not None
    assert parity.relative > 0.1
    assert parity.labels


def test_the_manifest_keeps_it() -> None:
    model = lgb.LGBMRegressor(n_estimators=4, max_depth=3, verbose=-1).fit(LOANS, AMOUNT)
    compiled = compile_model(convert(model, REFERENCES), TreeShap(REFERENCES))
    parity = compiled.manifest.parity
    assert parity is not None
    assert (parity.rows, parity.missing_rows, parity.labels) == (K, 4, None)
    assert compile_model(convert(model), TreeShap(REFERENCES)).manifest.parity is None
