"""CatBoost, by its own export."""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from compiler.conversion.graphs import INPUT, AsOnnx, tidied
from compiler.conversion.rows import Features, of_numbers
from compiler.errors import UnsupportedModelError
from compiler.lowering.loading.load import without_zip_maps
from compiler.references.tables import shown


def features(model: Any) -> Features:
    names = tuple(model.feature_names_)
    return Features(len(names), None if names == tuple(map(str, range(len(names)))) else names)


def as_onnx(model: Any, example: Any) -> AsOnnx:
    """Raises UnsupportedModelError for categorical features, which CatBoost's export does not know."""
    known = features(model)
    categorical = [model.feature_names_[i] for i in model.get_cat_feature_indices()]
    if categorical:
        raise UnsupportedModelError(
            f"CatBoost's categorical features {shown(categorical)} cannot be exported to ONNX: one-hot "
            "encode them, or train on numbers."
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        model.save_model(str(file), format="onnx")
        proto, _ = without_zip_maps(onnx.load(file))
    for value in proto.graph.output:
        dims = value.type.tensor_type.shape.dim
        if value.name == "predictions" and len(dims) == 1:  # it has an axis of one, too
            dims.add(dim_value=1)
    tidied(proto, [INPUT])
    classifies = len(proto.graph.output) == 2
    return of_numbers(proto, known, example, partial(_answers, model, classifies))


def _answers(model: Any, classifies: bool, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of a classifier labels and probabilities, as its ONNX model; else a number."""
    if not classifies:
        return (np.asarray(model.predict(numbers)),)
    labels = model.predict(numbers, prediction_type="Class")
    return np.asarray(labels).reshape(-1), np.asarray(model.predict(numbers, prediction_type="Probability"))
