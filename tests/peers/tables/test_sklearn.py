"""scikit-learn's multilayer perceptrons through skl2onnx, against float64 networks of their own weights."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from torch import nn

from rationale import DeepShap, Explanation, compile_model
from rationale.errors import UnsupportedModelError
from tests.grid import grid
from tests.peers.agreement import GAP, OUTPUTS, TRUTH_DEEP, error
from tests.peers.networks import Case
from tests.references.deeplift import Standardise, predict

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside what it imports
    from skl2onnx import to_onnx

FEATURES, N, K = 9, 4, 7
UNITS = np.array([1, 10, 300, 0.1, 1, 2, 5, 1, 0.5])
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "logistic": nn.Sigmoid, "identity": nn.Identity}
SCALERS = {"alone": None, "standard": StandardScaler, "min_max": MinMaxScaler}
CLASSIFIERS = ("binary", "multiclass")


@dataclass(frozen=True)
class Fitted:
    """A fitted estimator or pipeline, with rows it has not seen.

    Attributes:
        case: the same network in torch, with x [N, 9] and references [K, 9].
    """

    estimator: Any
    case: Case

    def exported(self, dtype: type = np.float32, **options: Any) -> onnx.ModelProto:
        """The estimator by skl2onnx, for inputs of `dtype`."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return to_onnx(self.estimator, self.case.x[:1].astype(dtype), options=options or None)

    def explain(self, model: onnx.ModelProto) -> Explanation:
        return compile_model(model, DeepShap(self.case.references), targets="all").explain(self.case.x)


def fit(kind: str, activation: str = "relu", scaler: str = "alone", labels: Any = None) -> Fitted:
    """`kind`: binary, multiclass, regressor or regressor_of_two; `labels`: names of the classes."""
    random = np.random.default_rng(5)
    z = random.standard_normal((240, FEATURES))
    score = z @ random.standard_normal(FEATURES) + 0.5 * z[:, 0] * z[:, 1]
    y = {
        "binary": (score > 0).astype(int),
        "multiclass": np.digitize(score, [-2, 0, 2]),
        "regressor": score,
        "regressor_of_two": np.stack([score, z[:, 2] ** 2], axis=1),
    }[kind]
    rows = (z * (UNITS if scaler != "alone" else 1)).astype(np.float32)
    make = MLPClassifier if kind in CLASSIFIERS else MLPRegressor
    alpha = 0.01 if activation == "logistic" else 0.5  # more would silence the sigmoids
    options = {"solver": "lbfgs", "alpha": alpha, "random_state": 0, "max_iter": 150}
    mlp = make(hidden_layer_sizes=(8, 6), activation=activation, **options)
    chosen = SCALERS[scaler]
    estimator = make_pipeline(chosen(), mlp) if chosen else mlp
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it need not converge
        estimator.fit(rows[:200], y[:200] if labels is None else np.asarray(labels)[y[:200]])
    network = in_torch(mlp, estimator[0] if chosen else None)
    return Fitted(estimator, Case(network, rows[200 : 200 + N], rows[220 : 220 + K]))


def in_torch(mlp: MLPClassifier | MLPRegressor, scaler: Any) -> nn.Sequential:
    """The estimator's probabilities or values from its weights, in float64."""
    layers: list[nn.Module] = []
    if isinstance(scaler, StandardScaler):
        layers.append(Standardise(torch.tensor(scaler.mean_), torch.tensor(scaler.scale_)))
    if isinstance(scaler, MinMaxScaler):
        low, factor = torch.tensor(scaler.min_), torch.tensor(scaler.scale_)
        layers.append(Standardise(-low / factor, 1 / factor))
    for weight, bias in zip(mlp.coefs_, mlp.intercepts_, strict=True):
        layers += [linear(weight.T, bias), ACTIVATIONS[mlp.activation]()]
    layers.pop()
    if mlp.out_activation_ == "softmax":
        layers.append(nn.Softmax(dim=-1))
    if mlp.out_activation_ == "logistic":
        layers += [nn.Sigmoid(), linear(np.array([[-1.0], [1.0]]), np.array([1.0, 0.0]))]
    return nn.Sequential(*layers)


def linear(weight: np.ndarray, bias: np.ndarray) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))
    return layer


def in_onnxruntime(model: onnx.ModelProto, x: np.ndarray) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"X": x}), strict=True))


@grid("kind, activation, scaler", [*CLASSIFIERS, "regressor"], ACTIVATIONS, SCALERS)
def test_agrees_with_the_network_of_its_weights(kind: str, activation: str, scaler: str) -> None:
    fitted = fit(kind, activation, scaler)
    case = fitted.case
    values = fitted.estimator.predict_proba if kind in CLASSIFIERS else fitted.estimator.predict
    expected = predict(case.network, case.x)
    np.testing.assert_allclose(expected, np.reshape(values(case.x), expected.shape), rtol=1e-5)
    model = fitted.exported(zipmap=False) if kind in CLASSIFIERS else fitted.exported()
    answer = fitted.explain(model)
    # Logits reach 58; float32 keeps such a one, and so what Softmax makes of it, to 4e-6.
    assert error(answer["X_attributions"], case.truth()) <= TRUTH_DEEP
    assert error(answer["explained_value"], expected) <= TRUTH_DEEP
    change = expected - predict(case.network, case.references).mean(axis=0)
    assert np.abs(answer["completeness_gap"]).max() <= GAP * np.abs(change).max()
    for name, outputs in in_onnxruntime(model, case.x).items():
        if outputs.dtype.kind == "f":
            assert error(answer[name], outputs) <= OUTPUTS
        else:
            np.testing.assert_array_equal(answer[name], outputs)


@pytest.mark.parametrize(
    ("kind", "labels"), [("binary", ["bad", "good"]), ("binary", None), ("multiclass", ["a", "b", "c", "d"])]
)
def test_probabilities_behind_a_zip_map_are_explained(kind: str, labels: list[str] | None) -> None:
    """skl2onnx's default: the probabilities come as a list of dictionaries."""
    fitted = fit(kind, "tanh", labels=labels)
    model = fitted.exported()
    assert "ZipMap" in {node.op_type for node in model.graph.node}
    outputs = in_onnxruntime(model, fitted.case.x)
    dictionaries = outputs["output_probability"]
    probabilities = np.array([list(row.values()) for row in dictionaries])
    compiled = compile_model(model, DeepShap(fitted.case.references), targets="all")
    answer = compiled.explain(fitted.case.x)
    assert error(answer["explained_value"], probabilities) <= OUTPUTS
    assert error(answer["output_probability"], probabilities) <= OUTPUTS
    assert error(answer["X_attributions"], fitted.case.truth()) <= TRUTH_DEEP
    np.testing.assert_array_equal(answer["output_label"], outputs["output_label"])


def test_regressor_of_two_values() -> None:
    """skl2onnx reshapes its values to [2N, 1]; what comes before has a row for each of the batch."""
    fitted = fit("regressor_of_two")
    model = fitted.exported()
    assert in_onnxruntime(model, fitted.case.x)["variable"].shape == (2 * N, 1)
    with pytest.raises(UnsupportedModelError, match=r"'variable' .*\[2, 1\]"):
        fitted.explain(model)
    values = model.graph.node[-1].input[0]
    method = DeepShap(fitted.case.references)
    answer = compile_model(model, method, output=values, targets="all").explain(fitted.case.x)
    assert error(answer["X_attributions"], fitted.case.truth()) <= TRUTH_DEEP
    assert error(answer["explained_value"], predict(fitted.case.network, fitted.case.x)) <= TRUTH_DEEP


def test_double_precision() -> None:
    """What skl2onnx writes for a float64 example row: all of it is float64, so nothing is lost."""
    fitted = fit("binary", "tanh", "standard")
    answer = fitted.explain(fitted.exported(np.float64, zipmap=False))
    assert answer["X_attributions"].dtype == np.float64
    assert error(answer["X_attributions"], fitted.case.truth()) <= 1e-13


def test_default_targets_of_a_classifier() -> None:
    """Each row's own winner among the probabilities."""
    fitted = fit("multiclass", "logistic")
    model = fitted.exported(zipmap=False)
    answer = compile_model(model, DeepShap(fitted.case.references)).explain(fitted.case.x)
    winners = fitted.estimator.predict_proba(fitted.case.x).argmax(axis=1)
    assert len(set(winners)) > 1, "every row has the same winner"
    truth = fitted.case.truth()[np.arange(N), winners][:, None]
    assert error(answer["X_attributions"], truth) <= TRUTH_DEEP


def test_default_target_of_two_classes() -> None:
    """Class 1 in every row, whichever of the two is predicted."""
    fitted = fit("binary", "logistic")
    answer = compile_model(fitted.exported(zipmap=False), DeepShap(fitted.case.references)).explain(
        fitted.case.x
    )
    assert set(fitted.estimator.predict_proba(fitted.case.x).argmax(axis=1)) == {0, 1}
    assert error(answer["X_attributions"], fitted.case.truth()[:, 1:]) <= TRUTH_DEEP
