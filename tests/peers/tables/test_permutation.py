"""`exactshap` and `permutationshap` on a kernel machine, beside scikit-learn's own answers and shap."""

import warnings

import numpy as np
import onnx
import pytest
from sklearn.svm import SVR

from rationale import ExactShap, PermutationShap, compile_model
from tests.references.trees import shapley

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside what they import
    import shap
    from skl2onnx import to_onnx

FEATURES, PAIRS = 6, 64
NEAR = 1e-5  # of answers between −2 and 2 (issue: 1e-5)
REFERENCES, X = (np.random.default_rng(n).normal(size=(n, FEATURES)).astype(np.float32) for n in (20, 5))


@pytest.fixture(scope="module")
def machine() -> SVR:
    x = np.random.default_rng(0).normal(size=(150, FEATURES))
    return SVR(gamma=0.3).fit(x, np.sin(x[:, 0] * x[:, 1]) + x[:, 2] * x[:, 3] * x[:, 4])


@pytest.fixture(scope="module")
def model(machine: SVR) -> onnx.ModelProto:
    return to_onnx(machine, X[:1])


@pytest.fixture(scope="module")
def expected(machine: SVR) -> np.ndarray:
    return shapley(lambda rows: machine.predict(rows)[:, None], X.astype(float), REFERENCES.astype(float))


def test_every_coalition(model: onnx.ModelProto, expected: np.ndarray) -> None:
    attributions = compile_model(model, ExactShap(REFERENCES)).explain(X)["X_attributions"]
    np.testing.assert_allclose(attributions, expected, atol=NEAR)


@pytest.mark.slow  # numba compiles shap's explainer for half a minute
def test_as_many_orders(machine: SVR, model: onnx.ModelProto, expected: np.ndarray) -> None:
    ours = compile_model(model, PermutationShap(REFERENCES, PAIRS, 3, standard_error=True)).explain(X)
    masker = shap.maskers.Independent(REFERENCES, len(REFERENCES))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what shap imports to look whether it explains a transformer
        explainer = shap.PermutationExplainer(machine.predict, masker, seed=3)
        theirs = explainer(X, max_evals=PAIRS * (2 * FEATURES + 1), silent=True).values[:, None]
    error = ours["X_standard_error"].max()
    assert NEAR < error < 0.03
    assert np.abs(ours["X_attributions"] - expected).max() < 4 * error  # of 30 values
    assert np.abs(theirs - expected).max() < 4 * error
