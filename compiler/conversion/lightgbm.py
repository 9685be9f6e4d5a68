"""LightGBM: a Booster, or a model of its scikit-learn classes."""

import copy
import re
from functools import partial
from typing import Any

import lightgbm as lgb
import numpy as np
from onnxmltools import convert_lightgbm
from onnxmltools.convert.common.data_types import FloatTensorType

from compiler.conversion.graphs import INPUT, AsOnnx, tidied
from compiler.conversion.rows import Features, of_numbers

OPSET = 15  # the newest that onnxmltools writes
_MADE_UP = re.compile(r"Column_\d+")  # names where nobody gave any


def features(model: Any) -> Features:
    booster = model if isinstance(model, lgb.Booster) else model.booster_
    names = tuple(booster.feature_name())
    return Features(booster.num_feature(), None if all(map(_MADE_UP.fullmatch, names)) else names)


def as_onnx(model: Any, example: Any) -> AsOnnx:
    """Raises what onnxmltools does."""
    known = features(model)
    proto = convert_lightgbm(
        _countable(model),
        initial_types=[(INPUT, FloatTensorType([None, known.count]))],
        target_opset=OPSET,
        zipmap=False,
    )
    tidied(proto, [INPUT])
    classifies = len(proto.graph.output) == 2
    return of_numbers(proto, known, example, partial(_answers, model, classifies))


def _countable(model: Any) -> Any:
    """With classes of numbers in place of booleans, which onnxmltools takes for texts."""
    classes = getattr(model, "classes_", None)
    if classes is None or np.asarray(classes).dtype.kind != "b":
        return model
    model = copy.copy(model)
    model._classes = np.asarray(classes).astype(np.int64)
    return model


def _answers(model: Any, classifies: bool, numbers: np.ndarray) -> tuple[np.ndarray | None, ...]:
    """Of a classifier labels (a booster has none) and probabilities, as its ONNX model; else a number."""
    if hasattr(model, "predict_proba"):
        return np.asarray(model.predict(numbers)), np.asarray(model.predict_proba(numbers))
    answer = np.asarray(model.predict(numbers))
    return (None, answer) if classifies else (answer,)
