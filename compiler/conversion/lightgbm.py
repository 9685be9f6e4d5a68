"""LightGBM: a Booster, or a model of its scikit-learn classes."""

import re
from typing import Any

import lightgbm as lgb
import numpy as np
from onnxmltools import convert_lightgbm
from onnxmltools.convert.common.data_types import FloatTensorType

from compiler.conversion.graphs import INPUT, AsOnnx, tidied
from compiler.conversion.rows import Features, rows_of

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
        model,
        initial_types=[(INPUT, FloatTensorType([None, known.count]))],
        target_opset=OPSET,
        zipmap=False,
    )
    tidied(proto, [INPUT])
    if example is None:
        return AsOnnx(proto, columns=known.names)
    rows = rows_of(example, known)
    numbers = rows.numbers()
    answers = _answers(model, numbers, classifies=len(proto.graph.output) == 2)
    return AsOnnx(proto, {INPUT: numbers.astype(np.float32)}, answers, rows.names)


def _answers(model: Any, numbers: np.ndarray, *, classifies: bool) -> tuple[np.ndarray | None, ...]:
    """Of a classifier labels (a booster has none) and probabilities, as its ONNX model; else a number."""
    if hasattr(model, "predict_proba"):
        return np.asarray(model.predict(numbers)), np.asarray(model.predict_proba(numbers))
    answer = np.asarray(model.predict(numbers))
    return (None, answer) if classifies else (answer,)
