"""XGBoost: a Booster, or a model of its scikit-learn classes."""

import json
from functools import partial
from typing import Any

import numpy as np
import xgboost as xgb
from onnxmltools import convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType

from compiler.conversion.graphs import INPUT, AsOnnx, tidied
from compiler.conversion.rows import Features, of_numbers
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
    classifies = len(proto.graph.output) == 2
    return of_numbers(proto, known, example, partial(_answers, model, classifies))


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


def _answers(model: Any, classifies: bool, numbers: np.ndarray) -> tuple[np.ndarray | None, ...]:
    """Of a classifier labels (a booster has none) and probabilities, as its ONNX model; else a number."""
    if hasattr(model, "predict_proba"):
        return np.asarray(model.predict(numbers)), np.asarray(model.predict_proba(numbers))
    if isinstance(model, xgb.Booster):
        numbers = xgb.DMatrix(numbers, feature_names=model.feature_names)
    answer = np.asarray(model.predict(numbers))
    return (None, answer) if classifies else (answer,)
