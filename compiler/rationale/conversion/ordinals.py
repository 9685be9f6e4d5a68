"""scikit-learn's OrdinalEncoder for numbers that are categories, rare and missing ones too."""

from typing import Any

import numpy as np
import onnx
from skl2onnx.algebra.onnx_ops import (
    OnnxCast,
    OnnxConcat,
    OnnxEqual,
    OnnxGather,
    OnnxIsNaN,
    OnnxMatMul,
    OnnxWhere,
)
from skl2onnx.common._registration import get_converter, get_shape_calculator
from skl2onnx.common.data_types import FloatTensorType
from skl2onnx.operator_converters.common import concatenate_variables

_with_texts = get_converter("SklearnOrdinalEncoder")
_shapes = get_shape_calculator("SklearnOrdinalEncoder")
_DOUBLE = onnx.TensorProto.DOUBLE
_NO_CATEGORY = -1.0  # the code of a number that the encoder refuses


def ordinals(scope: Any, operator: Any, container: Any) -> None:
    """Convert an encoder of numbers, with its answer to each; texts among them as skl2onnx does."""
    encoder, version, (result,) = operator.raw_operator, container.target_opset, operator.outputs
    if any(isinstance(category, str) for categories in encoder.categories_ for category in categories):
        _with_texts(scope, operator, container)
        return
    whole = concatenate_variables(scope, operator.inputs, container)
    x = OnnxCast(whole, to=_DOUBLE, op_version=version)
    codes = [_coded(encoder, i, x, version) for i in range(len(encoder.categories_))]
    joined = OnnxConcat(*codes, axis=1, op_version=version)
    kind = result.type._get_element_onnx_type()
    OnnxCast(joined, to=kind, op_version=version, output_names=[result.full_name]).add_to(scope, container)


def ordinal_shapes(operator: Any) -> None:
    """Set an output column for each input column, of floats: codes are exact in them, and trees read them."""
    _shapes(operator)
    operator.outputs[0].type = FloatTensorType(operator.outputs[0].type.shape)


def _coded(encoder: Any, i: int, x: Any, version: int) -> Any:
    """Return the codes [N, 1] of a column."""
    categories, codes = encoder.categories_[i].astype(np.float64), _codes(encoder, i)
    is_number, unknown = ~np.isnan(categories), _unknown(encoder)
    column = OnnxGather(x, np.array([i]), axis=1, op_version=version)
    same = OnnxEqual(column, categories[is_number], op_version=version)
    same = OnnxCast(same, to=_DOUBLE, op_version=version)
    matches = OnnxMatMul(same, np.ones((is_number.sum(), 1)), op_version=version)
    code = OnnxMatMul(same, codes[is_number][:, None], op_version=version)
    is_unknown = OnnxEqual(matches, np.zeros(1), op_version=version)
    code = OnnxWhere(is_unknown, np.array([unknown]), code, op_version=version)
    missing = unknown if is_number.all() else codes[~is_number][0]
    return OnnxWhere(OnnxIsNaN(column, op_version=version), np.array([missing]), code, op_version=version)


def _codes(encoder: Any, i: int) -> np.ndarray:
    """Return the code [C] of each category of column i."""
    categories = encoder.categories_[i]
    rows = np.array([[first[0] for first in encoder.categories_]] * len(categories), np.float64)
    rows[:, i] = categories
    return np.asarray(encoder.transform(rows)[:, i], np.float64)


def _unknown(encoder: Any) -> float:
    return _NO_CATEGORY if encoder.handle_unknown == "error" else float(encoder.unknown_value)
