"""What is said of models with a part that has no rule, those of scikit-learn first, and that it helps."""

import re
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from sklearn.base import is_classifier
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC

from rationale import Compiled, DeepShap, ExactShap, PermutationShap, compile_model
from rationale.errors import UnsupportedModelError
from tests.compiler.models import parsed, rows
from tests.tolerances import COMPLETE_32

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside what it imports
    from skl2onnx import to_onnx

X = np.random.default_rng(0).standard_normal((80, 5)).astype(np.float32)
X[:, 4] = np.arange(80) % 3  # a category
Y = X @ [1.0, 2, -1, 0.5, 0.3]
LABELS = (Y > 0).astype(int)

Estimator = Any


def categories() -> Estimator:
    columns = ColumnTransformer(
        [("n", StandardScaler(), [0, 1, 2, 3]), ("c", OneHotEncoder(categories=[[0.0, 1.0, 2.0]]), [4])]
    )
    network = MLPClassifier(hidden_layer_sizes=(6,), max_iter=20, random_state=0)
    return make_pipeline(columns, network)


def exported(estimator: Estimator, avoided: set[str] | None = None) -> onnx.ModelProto:
    """Fitted, and as skl2onnx writes it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # networks that did not converge; deprecations
        estimator.fit(X, LABELS if is_classifier(estimator) else Y)
        return to_onnx(estimator, X[:1], black_op=avoided)


def explained(model: onnx.ModelProto, **options: Any) -> Compiled:
    return compile_model(model, DeepShap(X[:7]), targets="all", **options)


def assert_complete(compiled: Compiled) -> None:
    answer = compiled.explain(X[7:12])
    difference = np.abs(answer["explained_value"] - answer["base_value"]).max()
    assert difference > 0
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32 * difference


def refusal(model: onnx.ModelProto) -> str:
    with pytest.raises(UnsupportedModelError) as caught:
        explained(model)
    return str(caught.value)


MISSING = {
    "forest": (
        RandomForestClassifier(3, random_state=0),
        "decision trees .* have no slope to walk.*--method treeshap",
    ),
    "boosting": (GradientBoostingRegressor(n_estimators=3), "decision trees .* have no slope to walk"),
    "margins": (SVC(), "support vector machines have no rule.*exactshap .* and permutationshap"),
    "categories": (categories(), "OneHotEncoder: .*--input transformed_column"),
    "neighbours": (
        KNeighborsClassifier(),
        "conditions .TopK node .*nothing different.*permutationshap",
    ),
}


@pytest.mark.parametrize("name", MISSING)
def test_the_part_that_is_missing_is_named_with_what_can_be_done(name: str) -> None:
    estimator, advice = MISSING[name]
    text = refusal(exported(estimator))
    assert re.search(advice.replace("{", "[{]"), text, re.DOTALL), text
    assert "black_op" not in text  # none of them is an operator for which skl2onnx writes another
    if name != "neighbours":
        assert "--output" not in text  # a scaler's answer explains nothing


@pytest.mark.parametrize(
    ("estimator", "avoided"),
    [
        (LinearRegression(), {"LinearRegressor"}),
        (make_pipeline(StandardScaler(), LogisticRegression()), {"LinearClassifier"}),
        (make_pipeline(Normalizer(), LogisticRegression()), {"LinearClassifier", "Normalizer"}),
    ],
    ids=["linear", "logistic", "normalised"],
)
def test_operators_that_skl2onnx_avoids(estimator: Estimator, avoided: set[str]) -> None:
    assert_complete(explained(exported(estimator, avoided)))


def test_the_tensor_behind_an_encoder() -> None:
    assert_complete(explained(exported(categories()), inputs=["transformed_column"]))


def test_an_output_before_what_is_missing() -> None:
    """Named where most of the path comes before it."""
    head = "g (float[N, 5] x) => (float[N, 5] y) { a = Tanh (x) b = Mul (a, x) "
    imports = '"" : 21, "com.microsoft" : 1'
    text = refusal(parsed(head + "y = com.microsoft.SampleOp (b) }", opsets=imports))
    assert "Explain 'b', before it (--output b)" in text
    assert "--input" not in text
    head = "g (float[N, 5, 2] x) => (float[N, 5, 1] y) { a = Tanh (x) "
    text = refusal(parsed(head + "c = GlobalLpPool (a) d = Tanh (c) e = Tanh (d) y = Mul (e, e) }"))
    assert "--input c" in text
    assert "--output" not in text


def test_whole_numbers_of_an_operator_without_a_rule() -> None:
    constants = {"s": np.float32(0.1), "o": np.uint8(3), "c": np.array([True, False, True, True, False])}
    text = """g (float[N, 5] x) => (float[N, 5] y) {
        q = QuantizeLinear (x, s, o)
        [either] p = com.microsoft.QLinearWhere (c, q, s, o, q, s, o, s, o)
        y = DequantizeLinear (p, s, o) }"""
    text = refusal(parsed(text, constants, opsets='"" : 21, "com.microsoft" : 1'))
    assert "conditions (QLinearWhere node 'either'): com.microsoft.QLinearWhere has no rule. Explain" in text


def test_what_has_no_slope_is_explained_by_coalitions() -> None:
    """As the refusals say."""
    for estimator in (SVC(), KNeighborsClassifier()):
        model = exported(estimator)
        for method in (ExactShap(X[:7]), PermutationShap(X[:7])):
            compiled = compile_model(model, method, output="output_probability", targets="all")
            assert np.abs(compiled.explain(X[7:12])["completeness_gap"]).max() < COMPLETE_32


def test_an_opset_that_is_written_twice() -> None:
    """As by skl2onnx 1.20: ONNX Runtime and the checker take it."""
    model = parsed("g (float[N, 5] x) => (float[N, 5] y) { y = Tanh (x) }")
    model.opset_import.add(domain="", version=21)
    compiled = explained(model)
    assert_complete(compiled)
    assert [e.version for e in compiled.model.opset_import if not e.domain] == [21]


def test_the_default_domain_by_its_other_name() -> None:
    text = """g (float[N, 1, 3, 2] x) => (float[N, 1, 6, 4] y) {
        u = Upsample <mode = "linear"> (x, s)
        y = Tanh (u)
    }"""
    model = parsed(text, {"s": np.array([1, 1, 2, 2], np.float32)}, opsets='"ai.onnx" : 9')
    assert (
        compile_model(model, DeepShap(rows(3, 1, 3, 2)), targets=[5]).manifest.measured.outputs_error < 1e-5
    )
