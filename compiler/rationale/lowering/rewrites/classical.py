"""Operators that scikit-learn's pipelines export, domain ai.onnx.ml, in operators that have rules.

Only numbers are rewritten: labels remain with the operators. Operators that read or write strings remain too.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from rationale.errors import UnsupportedModelError
from rationale.lowering.rewrites.engine import length_of, rank_of, rewrites

DOMAIN = "ai.onnx.ml"
classical = partial(rewrites, domain=DOMAIN)
_FLOAT = int(ir.DataType.FLOAT)


def _kind(x: ir.Value) -> ir.DataType:
    """Return the dtype; raise UnsupportedModelError if it is unknown."""
    if x.dtype is None:
        raise UnsupportedModelError(f"the type of {x.name!r} is not known before the model runs")
    return x.dtype


def _floats(op: Any, x: ir.Value) -> ir.Value:
    """Return `x` in the type that these operators answer."""
    return x if _kind(x) == ir.DataType.FLOAT else op.Cast(x, to=_FLOAT)


# -- preprocessing -----------------------------------------------------------------------------------------


@classical("Scaler")
def scaler(op: Any, x: ir.Value, *, offset: Sequence[float], scale: Sequence[float]) -> Any:
    """Compute (x − offset) · scale, per feature; doubles become floats at the end."""
    double = _kind(x) == ir.DataType.DOUBLE
    kind = np.float64 if double else np.float32
    centred = op.Sub(x if double else _floats(op, x), np.asarray(offset, np.float32).astype(kind))
    scaled = op.Mul(centred, np.asarray(scale, np.float32).astype(kind))
    return op.Cast(scaled, to=_FLOAT) if double else scaled


@classical("Imputer")
def imputer(op: Any, x: ir.Value, **attributes: Any) -> Any:
    """Compute Where(x is missing, imputed, x). Missing is NaN, or a value that the attribute names."""
    kind = "int64" if _kind(x).is_integer() else "float"
    values, replaced = (
        np.asarray(attributes.get(name, 0), _kind(x).numpy())
        for name in (f"imputed_value_{kind}s", f"replaced_value_{kind}")
    )
    missing = op.IsNaN(x) if np.isnan(replaced) else op.Equal(x, replaced)
    return op.Where(missing, values, x)


@classical("Binarizer")
def binarizer(op: Any, x: ir.Value, *, threshold: float = 0.0) -> Any:
    """Return 1 if x > threshold, else 0."""
    return op.Cast(op.Greater(x, np.asarray(threshold, _kind(x).numpy())), to=int(_kind(x)))


@classical("Normalizer")
def normalizer(op: Any, x: ir.Value, *, norm: str = "MAX") -> Any:
    """Divide x by the largest of its row, or its L1 or L2 norm; leave a row whose norm is 0 unchanged."""
    x, axis = _floats(op, x), [-1]  # a TfIdfVectorizer's counts have no declared rank
    sizes: dict[str, Callable[[], ir.Value]] = {
        "MAX": lambda: op.ReduceMax(x, axis, keepdims=1),
        "L1": lambda: op.ReduceSum(op.Abs(x), axis, keepdims=1),
        "L2": lambda: op.Sqrt(op.ReduceSum(op.Mul(x, x), axis, keepdims=1)),
    }
    size = sizes[norm]()
    return op.Div(x, op.Where(op.Equal(size, np.float32(0)), np.float32(1), size))


@classical("ArrayFeatureExtractor")
def array_feature_extractor(op: Any, x: ir.Value, indices: ir.Value) -> Any:
    """Take elements of x along the last axis, by their indices."""
    columns = op.Gather(x, op.Reshape(indices, [-1]), axis=-1)
    return op.Unsqueeze(columns, [0]) if rank_of(x) == 1 else columns


@classical("FeatureVectorizer")
def feature_vectorizer(op: Any, *xs: ir.Value, inputdimensions: Sequence[int]) -> Any:
    """Concatenate the features of all inputs."""
    if [length_of(x, rank_of(x) - 1) for x in xs] != list(inputdimensions):
        return None  # cut, or filled up with zeros
    return op.concat([_floats(op, x) for x in xs], axis=1)


@classical("OneHotEncoder")
def one_hot_encoder(
    op: Any,
    x: ir.Value,
    *,
    cats_int64s: Sequence[int] = (),
    cats_strings: Sequence[str] = (),
    zeros: int = 1,
) -> Any:
    """Return 1 for the category of an integer, else 0; an encoder that fails for others is not rewritten."""
    if cats_strings or not zeros or not _kind(x).is_integer():
        return None
    spread = op.Unsqueeze(op.Cast(x, to=int(ir.DataType.INT64)), [-1])
    return op.Cast(op.Equal(spread, np.asarray(cats_int64s, np.int64)), to=_FLOAT)


# -- linear models -----------------------------------------------------------------------------------------


@classical("LinearRegressor")
def linear_regressor(
    op: Any,
    x: ir.Value,
    *,
    coefficients: Sequence[float],
    intercepts: Sequence[float] = (),
    targets: int = 1,
    post_transform: str = "NONE",
) -> Any:
    """Compute W x + b."""
    weights = np.asarray(coefficients, np.float32).reshape(targets, -1)
    return _transformed(op, _affine(op, x, weights, intercepts), post_transform)


@classical("LinearClassifier")
def linear_classifier(
    op: Any,
    x: ir.Value,
    *,
    coefficients: Sequence[float],
    intercepts: Sequence[float] = (),
    post_transform: str = "NONE",
    **_: Any,
) -> Any:
    """Compute W x + b and its transform. The label, and a single score for two classes, are not rewritten."""
    classes = len(intercepts)
    if classes < 2:
        return None
    weights = np.asarray(coefficients, np.float32).reshape(classes, -1)
    scores = _transformed(op, _affine(op, x, weights, intercepts), post_transform)
    return None if scores is None else (None, scores)


@classical("SVMRegressor")
def svm_regressor(
    op: Any,
    x: ir.Value,
    *,
    coefficients: Sequence[float],
    rho: Sequence[float],
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    support_vectors: Sequence[float] = (),
    one_class: int = 0,
    post_transform: str = "NONE",
    **_: Any,
) -> Any:
    """Compute Σ α_i ⟨v_i, x⟩ + ρ for a linear kernel; other kernels are not rewritten."""
    if kernel_type != "LINEAR" or one_class:
        return None
    weights = np.asarray(coefficients, np.float64)
    if n_supports:
        weights = weights @ np.asarray(support_vectors, np.float64).reshape(n_supports, -1)
    scores = _affine(op, x, weights.astype(np.float32)[None], rho[:1])
    return _transformed(op, scores, post_transform)


def _affine(op: Any, x: ir.Value, weights: np.ndarray, bias: Sequence[float]) -> ir.Value:
    """Compute W x + b [N, targets]."""
    product: ir.Value = op.MatMul(_floats(op, x), np.ascontiguousarray(weights.T))
    if any(bias):
        product = op.Add(product, np.asarray(bias, np.float32))
    return product


def _transformed(op: Any, scores: ir.Value, post_transform: str) -> Any:
    if post_transform == "LOGISTIC":
        return op.Sigmoid(scores)
    if post_transform == "SOFTMAX":
        return op.Softmax(scores, axis=-1)
    return scores if post_transform == "NONE" else None
