"""Missing numbers: a walk explains them by what an imputer puts in their place."""

from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import TensorProto, helper
from sklearn.compose import ColumnTransformer
from sklearn.feature_selection import SelectKBest, f_regression
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import StandardScaler

from rationale import (
    Auto,
    DeepShap,
    ExactShap,
    ExpectedGradients,
    Gradient,
    IntegratedGradients,
    InvalidOptionError,
    InvalidReferencesError,
    RationaleError,
    compile_model,
    convert,
)

pytestmark = pytest.mark.filterwarnings("ignore:Stochastic Optimizer")

_RANDOM = np.random.default_rng(5)
X = pd.DataFrame(_RANDOM.normal(size=(300, 4)), columns=list("abcd"))
LABEL = (X["a"] + X["b"] * X["c"] > 0).astype(int)
GAPS = X.mask(_RANDOM.random(X.shape) < 0.2)
REFERENCES, ROWS = GAPS[:20], pd.concat([GAPS[20:30], X[30:32], X[:1] * np.nan])

STEPS: dict[str, Any] = {
    "imputer": SimpleImputer(),
    "imputer of medians": SimpleImputer(strategy="median"),
    "with indicators": SimpleImputer(add_indicator=True),
    "scaler in front": make_pipeline(StandardScaler(), SimpleImputer()),
    "scaler behind": make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()),
    "columns apart": ColumnTransformer(
        [
            ("a", make_pipeline(SimpleImputer(), StandardScaler()), ["b", "a"]),
            ("c", SimpleImputer(strategy="constant", fill_value=-2, add_indicator=True), ["d"]),
        ],
        remainder=SimpleImputer(),
    ),
    "a column dropped": ColumnTransformer([("a", SimpleImputer(), ["d", "b"])]),
    "a column twice": make_union(SimpleImputer(), SimpleImputer(strategy="median")),
    "columns chosen": make_pipeline(SimpleImputer(), SelectKBest(f_regression, k=3)),
}


def values(compiled: Any, rows: Any = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Return the attributions [N, features] in the order of the columns, and the gap."""
    answer = compiled.explain(rows)
    parts = [answer[e.attributions].reshape(len(rows), -1) for e in compiled.manifest.explained]
    return np.concatenate(parts, axis=1), answer["completeness_gap"]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", STEPS)
def test_a_linear_model_gets_its_shapley_values(name: str, dtype: Any) -> None:
    model = make_pipeline(STEPS[name], Ridge()).fit(GAPS.astype(dtype), X["a"] - 2 * X["d"] + X["b"])
    references, rows = REFERENCES.astype(dtype), ROWS.astype(dtype)
    source = convert(model, references)
    attributions, gap = values(compile_model(source, DeepShap(references)), rows)
    exact, _ = values(compile_model(source, ExactShap(references)), rows)
    np.testing.assert_allclose(attributions, exact, rtol=0, atol=2e-6)
    np.testing.assert_allclose(gap, 0, atol=2e-6)


@pytest.mark.parametrize("method", [DeepShap, IntegratedGradients, ExpectedGradients])
@pytest.mark.parametrize("name", STEPS)
def test_a_network_gets_complete_attributions(name: str, method: Any) -> None:
    network = MLPClassifier((8,), activation="tanh", max_iter=60, random_state=0)
    model = make_pipeline(STEPS[name], network).fit(GAPS, LABEL)
    compiled = compile_model(convert(model, REFERENCES), method(REFERENCES))
    attributions, gap = values(compiled)
    assert np.isfinite(attributions).all()
    assert compiled.manifest.takes_missing == {e.tensor.name for e in compiled.manifest.explained}
    sampled = method is ExpectedGradients
    error = compiled.explain(ROWS)["completeness_gap_standard_error"] if sampled else 0
    assert (np.abs(gap) <= 1e-6 + 6 * error).all()


def test_values_taken_out_are_those_that_the_imputer_puts_in() -> None:
    """A row that holds the imputer's own value is explained as the one in which it is missing."""
    network = MLPClassifier((8,), max_iter=60, random_state=0)
    model = make_pipeline(SimpleImputer(), network).fit(GAPS, LABEL)
    compiled = compile_model(convert(model, REFERENCES), DeepShap(REFERENCES))
    filled = pd.DataFrame(model[0].transform(ROWS), columns=ROWS.columns)
    np.testing.assert_array_equal(values(compiled)[0], values(compiled, filled)[0])


def test_auto_explains_many_linear_features_exactly() -> None:
    wide = pd.DataFrame(_RANDOM.normal(size=(100, 15)), columns=[f"x{i}" for i in range(15)])
    wide = wide.mask(_RANDOM.random(wide.shape) < 0.1)
    model = make_pipeline(SimpleImputer(add_indicator=True), Ridge()).fit(wide, wide.sum(axis=1))
    compiled = compile_model(convert(model, wide[:30]), Auto(wide[:30]))
    assert compiled.manifest.method.name == "deepshap"
    assert not compiled.manifest.warnings
    assert np.abs(values(compiled, wide[30:40])[1]).max() < 1e-6


def test_a_column_that_is_not_imputed_takes_no_missing_value() -> None:
    steps = ColumnTransformer([("a", SimpleImputer(), ["a", "b"])], remainder="passthrough")
    model = make_pipeline(steps, LogisticRegression()).fit(GAPS.assign(c=X["c"], d=X["d"]), LABEL)
    references = REFERENCES.assign(c=X["c"], d=X["d"])
    compiled = compile_model(convert(model, references), DeepShap(references))
    assert compiled.manifest.takes_missing == {"a", "b"}
    assert np.isfinite(values(compiled, ROWS[:12].assign(c=1.0, d=2.0))[0]).all()
    with pytest.raises(RationaleError, match=r"'c'"):
        compiled.explain(ROWS[:12].assign(c=np.nan, d=2.0))


def test_gradients_take_no_missing_value() -> None:
    model = make_pipeline(SimpleImputer(), LogisticRegression()).fit(GAPS, LABEL)
    compiled = compile_model(convert(model, REFERENCES), Gradient())
    assert not compiled.manifest.takes_missing
    with pytest.raises(InvalidOptionError, match=r"row \d"):
        compiled.explain(ROWS)


def network(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 1])
    constants = [
        helper.make_tensor("fill", TensorProto.FLOAT, [3], [1, 2, 3]),
        helper.make_tensor("w", TensorProto.FLOAT, [3, 1], [0.5, -1, 2]),
        helper.make_tensor("first", TensorProto.INT64, [1], [0]),
    ]
    graph = helper.make_graph(
        [*nodes, helper.make_node("MatMul", ["z", "w"], ["y"])], "g", [x], [y], constants
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


WHERE = [helper.make_node("IsNaN", ["x"], ["gone"]), helper.make_node("Where", ["gone", "fill", "x"], ["z"])]
GAP = np.array([[np.nan, 1, 4]], np.float32)


def test_a_model_that_fills_by_itself() -> None:
    compiled = compile_model(network(*WHERE), DeepShap(np.zeros((1, 3), np.float32)))
    assert compiled.manifest.takes_missing == {"x"}
    np.testing.assert_allclose(compiled.explain(GAP)["x_attributions"].ravel(), [0.5, -1, 8])


@pytest.mark.parametrize(
    "nodes",
    [
        [
            helper.make_node("Where", ["gone", "fill", "x"], ["full"]),
            helper.make_node("Add", ["full", "x"], ["z"]),
        ],
        [
            helper.make_node("Gather", ["gone", "first"], ["any"], axis=1),
            helper.make_node("Where", ["any", "fill", "x"], ["z"]),
        ],
    ],
    ids=["what is missing is added again", "one feature's gap decides for all"],
)
def test_a_model_that_fills_in_part(nodes: list[onnx.NodeProto]) -> None:
    model = network(helper.make_node("IsNaN", ["x"], ["gone"]), *nodes)
    compiled = compile_model(model, DeepShap(np.zeros((1, 3), np.float32)))
    assert not compiled.manifest.takes_missing
    with pytest.raises(InvalidOptionError, match="missing value"):
        compiled.explain(GAP)
    with pytest.raises(InvalidReferencesError, match="missing"):
        compile_model(model, DeepShap(GAP))
