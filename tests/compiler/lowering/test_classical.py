"""Operators of ai.onnx.ml, by value: what takes their place answers as ONNX Runtime's own kernels do."""

import re
import warnings
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper
from skl2onnx import to_onnx
from sklearn.base import BaseEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer, MinMaxScaler, Normalizer, StandardScaler
from sklearn.svm import SVR

from rationale import DeepShap, compile_model
from rationale.lowering import lower
from rationale.lowering.rewrites.classical import DOMAIN
from rationale.lowering.rewrites.engine import rewritten_operators
from tests.compiler.models import rows
from tests.references.trees import shapley
from tests.tolerances import PARITY_32

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside what it imports
    from skl2onnx import to_onnx

N, F = 4, 3
X = rows(N, F, seed=2)
HOLES = np.where(rows(N, F, seed=3) > 0.5, np.float32(np.nan), X)
WHOLE = np.array([[1, 5], [2, 7], [1, 9], [3, 5]], np.int64)
ZEROS = np.concatenate([X, np.zeros((1, F), np.float32)])
WEIGHTS = [0.5, -1.0, 2.0, 0.25, 1.5, -0.75]
NODES: dict[str, tuple[str, list[np.ndarray], dict[str, Any]]] = {
    "Scaler": ("Scaler", [X], {"offset": [0.5, -1.0, 2.0], "scale": [2.0, 0.1, -3.0]}),
    "Scaler of doubles": ("Scaler", [X.astype(np.float64)], {"offset": [0.5] * 3, "scale": [0.1] * 3}),
    "Scaler of integers": ("Scaler", [WHOLE], {"offset": [0.5, 2.0], "scale": [2.0, 0.1]}),
    "Scaler by one number": ("Scaler", [X], {"offset": [0.5], "scale": [0.1]}),
    "Imputer": (
        "Imputer",
        [HOLES],
        {"imputed_value_floats": [1.0, 2.0, 3.0], "replaced_value_float": float("nan")},
    ),
    "Imputer of one number": (
        "Imputer",
        [WHOLE],
        {"imputed_value_int64s": [8], "replaced_value_int64": 5},
    ),
    "Binarizer": ("Binarizer", [X], {"threshold": 0.25}),
    "Binarizer at its threshold": ("Binarizer", [X], {"threshold": float(X[1, 1])}),
    "Normalizer MAX": ("Normalizer", [ZEROS], {"norm": "MAX"}),
    "Normalizer L1": ("Normalizer", [ZEROS], {"norm": "L1"}),
    "Normalizer L2": ("Normalizer", [ZEROS], {"norm": "L2"}),
    "FeatureVectorizer": ("FeatureVectorizer", [X, X[:, :2]], {"inputdimensions": [3, 2]}),
    "OneHotEncoder": ("OneHotEncoder", [WHOLE], {"cats_int64s": [1, 3, 5, 7], "zeros": 1}),
    "LinearRegressor": (
        "LinearRegressor",
        [X],
        {"coefficients": WEIGHTS, "intercepts": [1.0, -2.0], "targets": 2},
    ),
    "SVMRegressor": (
        "SVMRegressor",
        [X],
        {
            "kernel_type": "LINEAR",
            "kernel_params": [0.0, 0.0, 0.0],
            "coefficients": [0.5, -1.5],
            "support_vectors": WEIGHTS,
            "n_supports": 2,
            "rho": [0.75],
        },
    ),
}
LINEAR = {"coefficients": WEIGHTS, "intercepts": [1.0, -2.0], "classlabels_ints": [4, 7]}
NODES |= {
    f"LinearClassifier {post}": ("LinearClassifier", [X], {**LINEAR, "post_transform": post})
    for post in ("NONE", "LOGISTIC", "SOFTMAX")
}


def one_node(op_type: str, operands: list[np.ndarray], attributes: dict[str, Any]) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(len(operands))]
    outputs = ["label", "y"] if op_type == "LinearClassifier" else ["y"]
    whole = op_type == "Imputer" and operands[0].dtype == np.int64
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), ["N", *a.shape[1:]])
        for n, a in zip(names, operands, strict=True)
    ]
    kinds = {"label": onnx.TensorProto.INT64, "y": onnx.TensorProto.INT64 if whole else 1}
    graph = helper.make_graph(
        [helper.make_node(op_type, names, outputs, domain="ai.onnx.ml", **attributes)],
        "one",
        infos,
        [helper.make_tensor_value_info(o, kinds[o], [None] * (1 if o == "label" else 2)) for o in outputs],
    )
    if op_type == "OneHotEncoder":
        graph.output[0].type.tensor_type.shape.dim.add()
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def run(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def test_every_operator_is_here() -> None:
    operators = {op_type for domain, op_type in rewritten_operators() if domain == DOMAIN}
    assert operators == {op_type for op_type, _, _ in NODES.values()} | {"ArrayFeatureExtractor"}  # a sample


@pytest.mark.parametrize("name", NODES)
def test_answers_as_the_operator_itself(name: str) -> None:
    op_type, operands, _ = NODES[name]
    model, inputs = one_node(*NODES[name]), {f"x{i}": a for i, a in enumerate(operands)}
    lowered = lower(model).model
    remaining = [n.op_type for n in lowered.graph if n.domain]
    assert remaining == (["LinearClassifier"] if op_type == "LinearClassifier" else [])  # for its label
    actual, expected = run(ir.serde.serialize_model(lowered), inputs), run(model, inputs)
    assert actual.keys() == expected.keys()
    for output, right in expected.items():
        assert actual[output].dtype == right.dtype
        assert actual[output].shape == right.shape
        np.testing.assert_allclose(actual[output], right, PARITY_32, PARITY_32)


UNCHANGED: dict[str, tuple[str, list[np.ndarray], dict[str, Any]]] = {
    "fails for the unknown": ("OneHotEncoder", [WHOLE], {"cats_int64s": [1, 2, 3, 5, 7, 9], "zeros": 0}),
    "a kernel": (
        "SVMRegressor",
        [X],
        {**NODES["SVMRegressor"][2], "kernel_type": "RBF", "kernel_params": [0.5, 0.0, 3.0]},
    ),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_what_stays_as_it_is(name: str) -> None:
    assert [n.op_type for n in lower(one_node(*UNCHANGED[name])).model.graph] == [UNCHANGED[name][0]]


TABLE = rows(60, F, seed=5)
TARGET = TABLE @ [1.0, -2.0, 0.5] + TABLE[:, 0] * 0.1
PIPELINES: dict[str, BaseEstimator] = {
    "scaled": make_pipeline(StandardScaler(), LogisticRegression()),
    "imputed": make_pipeline(SimpleImputer(), MinMaxScaler(), LogisticRegression()),
    "normalised": make_pipeline(Normalizer(), Ridge()),
    "binary": make_pipeline(StandardScaler(), Binarizer(threshold=0.2), Ridge()),
    "margins": make_pipeline(StandardScaler(), SVR(kernel="linear")),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_deepshap_of_pipelines(name: str) -> None:
    """Of a model linear in its features, before one Sigmoid, they are Shapley values of its own scores."""
    pipeline = PIPELINES[name]
    labels = (TARGET > 0).astype(int) if hasattr(pipeline, "predict_proba") else TARGET
    pipeline.fit(TABLE, labels)
    references, x = TABLE[:7], TABLE[20:25]
    answer = compile_model(to_onnx(pipeline, TABLE[:1]), DeepShap(references)).explain(x)
    values = pipeline.predict_proba if hasattr(pipeline, "predict_proba") else pipeline.predict
    right = np.asarray(values(x), np.float64).reshape(len(x), -1)[:, -1:]
    np.testing.assert_allclose(answer["explained_value"], right, atol=1e-5)
    assert np.abs(answer["completeness_gap"]).max() < 1e-5
    if name in ("binary", "margins"):  # sums of functions of one feature each
        expected = shapley(
            lambda z: np.reshape(pipeline.predict(z.astype(np.float32)), (-1, 1)), x, references
        )
        np.testing.assert_allclose(answer["X_attributions"], expected, atol=1e-5)


def test_labels_of_text_are_the_operators_own() -> None:
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    pipeline.fit(TABLE, np.array(["bad", "good", "none"])[np.digitize(TARGET, [-1, 1])])
    compiled = compile_model(to_onnx(pipeline, TABLE[:1]), DeepShap(TABLE[:7]), targets="all")
    answer = compiled.explain(TABLE[20:29])
    assert answer["output_label"].tolist() == pipeline.predict(TABLE[20:29]).tolist()
    assert re.search("ZipMap", compiled.manifest.warnings[0])
