"""scikit-learn's OrdinalEncoder for numbers that are categories, rare and missing ones too."""

from typing import Any

import numpy as np
import onnx
from skl2onnx.common._registration import get_converter, get_shape_calculator
from skl2onnx.common.data_types import FloatTensorType
from skl2onnx.operator_converters.common import concatenate_variables

from rationale.conversion.sklearn.operators import Ops

_with_texts = get_converter("SklearnOrdinalEncoder")
_shapes = get_shape_calculator("SklearnOrdinalEncoder")
_DOUBLE = onnx.TensorProto.DOUBLE
_NO_CATEGORY = -1.0  # the code of a number that the encoder refuses


def ordinals(scope: Any, operator: Any, container: Any) -> None:
    """Convert an encoder of numbers, with its answer to each; texts among them as skl2onnx does."""
    encoder, ops, (result,) = operator.raw_operator, Ops(container), operator.outputs
    if any(isinstance(category, str) for categories in encoder.categories_ for category in categories):
        _with_texts(scope, operator, container)
        return
    whole = concatenate_variables(scope, operator.inputs, container)
    x = ops.Cast(whole, to=_DOUBLE)
    codes = [_encode_column(encoder, i, x, ops) for i in range(len(encoder.categories_))]
    joined = ops.Concat(*codes, axis=1)
    kind = result.type._get_element_onnx_type()
    ops.Cast(joined, to=kind, output_names=[result.full_name]).add_to(scope, container)


def ordinal_shapes(operator: Any) -> None:
    """Set an output column for each input column, of floats: codes are exact in them, and trees read them."""
    _shapes(operator)
    operator.outputs[0].type = FloatTensorType(operator.outputs[0].type.shape)


def _encode_column(encoder: Any, i: int, x: Any, ops: Ops) -> Any:
    """Return the codes [N, 1] of a column."""
    categories, codes = encoder.categories_[i].astype(np.float64), _codes(encoder, i)
    is_number, unknown = ~np.isnan(categories), _unknown(encoder)
    column = ops.Gather(x, np.array([i]), axis=1)
    same = ops.Equal(column, categories[is_number])
    same = ops.Cast(same, to=_DOUBLE)
    matches = ops.MatMul(same, np.ones((is_number.sum(), 1)))
    code = ops.MatMul(same, codes[is_number][:, None])
    is_unknown = ops.Equal(matches, np.zeros(1))
    code = ops.Where(is_unknown, np.array([unknown]), code)
    missing = unknown if is_number.all() else codes[~is_number][0]
    return ops.Where(ops.IsNaN(column), np.array([missing]), code)


def _codes(encoder: Any, i: int) -> np.ndarray:
    """Return the code [C] of each category of column i."""
    categories = encoder.categories_[i]
    rows = np.array([[first[0] for first in encoder.categories_]] * len(categories), np.float64)
    rows[:, i] = categories
    return np.asarray(encoder.transform(rows)[:, i], np.float64)


def _unknown(encoder: Any) -> float:
    return _NO_CATEGORY if encoder.handle_unknown == "error" else float(encoder.unknown_value)
