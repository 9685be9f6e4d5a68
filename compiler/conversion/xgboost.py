"""XGBoost: a Booster, or a model of its scikit-learn classes."""

import json
from typing import Any

import numpy as np
import xgboost as xgb
from onnxmltools import convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType

from compiler.conversion.graphs import INPUT, AsOnnx, tidied
from compiler.conversion.rows import Features, rows_of
from compiler.errors import UnsupportedModelError
from compiler.references.tables import shown

OPSET = 15  # the newest that onnxmltools writes


def features(model: Any) -> Features:
    booster = _booster(model)
    names = booster.feature_names
    return Features(booster.num_features(), None if names is None else tuple(names))


def as_onnx(model: Any, example: Any) -> AsOnnx:
    """Raises UnsupportedModelError for what onnxmltools would misread."""
    known = features(model)
    proto = convert_xgboost(
        plain(model), initial_types=[(INPUT, FloatTensorType([None, known.count]))], target_opset=OPSET
    )
    tidied(proto, [INPUT])
    if example is None:
        return AsOnnx(proto, columns=known.names)
    rows = rows_of(example, known)
    numbers = rows.numbers()
    return AsOnnx(
        proto, {INPUT: numbers.astype(np.float32)}, _answers(model, numbers, known.names), rows.names
    )


def plain(model: Any) -> xgb.Booster:
    """The trees that it predicts with, without names, which onnxmltools wants to be f0, f1 …"""
    booster = _booster(model)
    check_booster(booster)
    best = None if model is booster else getattr(model, "best_iteration", None)
    booster = booster.copy() if best is None else booster[: best + 1]
    booster.feature_names = booster.feature_types = None
    if _config(booster)["learner"]["objective"]["name"] == "reg:logistic":  # which it takes for a plain sum
        booster.set_param({"objective": "binary:logistic"})
    return booster


def check_booster(booster: xgb.Booster) -> None:
    kind = _config(booster)["learner"]["gradient_booster"]["name"]
    if kind != "gbtree":
        raise UnsupportedModelError(
            f"XGBoost's booster {kind!r} is unknown to onnxmltools: train with booster='gbtree'."
        )
    kinds = booster.feature_types or []
    names = booster.feature_names or [f"x[{i}]" for i in range(len(kinds))]
    categorical = [name for name, kind in zip(names, kinds, strict=True) if kind == "c"]
    if categorical:
        raise UnsupportedModelError(
            f"XGBoost's categorical features {shown(categorical)} are unknown to onnxmltools: one-hot encode "
            "them in a scikit-learn pipeline, which is converted as a whole, or train with "
            "enable_categorical=False on ordinal numbers."
        )


def _booster(model: Any) -> xgb.Booster:
    return model if isinstance(model, xgb.Booster) else model.get_booster()


def _config(booster: xgb.Booster) -> Any:
    return json.loads(booster.save_config())


def _answers(model: Any, numbers: np.ndarray, names: tuple[str, ...] | None) -> tuple[np.ndarray | None, ...]:
    """Of a classifier labels and probabilities, as its ONNX model; else a number."""
    if not isinstance(model, xgb.Booster):
        if hasattr(model, "predict_proba"):
            return np.asarray(model.predict(numbers)), np.asarray(model.predict_proba(numbers))
        answer = np.asarray(model.predict(numbers))
    else:
        answer = model.predict(xgb.DMatrix(numbers, feature_names=None if names is None else list(names)))
    objective = _config(_booster(model))["learner"]["objective"]["name"]
    is_classifier = objective.startswith(("binary:", "multi:")) or objective == "reg:logistic"
    return (None, answer) if is_classifier else (answer,)
