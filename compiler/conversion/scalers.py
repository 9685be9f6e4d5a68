"""Scalers of scikit-learn in double, as it computes them: float32 may cross a threshold behind them."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from skl2onnx.algebra.onnx_ops import OnnxAdd, OnnxCast, OnnxClip, OnnxDiv, OnnxMul, OnnxSub
from skl2onnx.common.data_types import DoubleTensorType
from skl2onnx.operator_converters.common import concatenate_variables
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

_DOUBLE, _FLOAT = 11, 1  # onnx.TensorProto


def in_double(scope: Any, operator: Any, container: Any) -> None:
    """Converts a scaler: a cast to double, its steps in their order, a cast back unless doubles are due."""
    names = [value.full_name for value in operator.inputs]
    x: Any = concatenate_variables(scope, operator.inputs, container) if len(names) > 1 else names[0]
    scaler, version = operator.raw_operator, container.target_opset
    x = OnnxCast(x, to=_DOUBLE, op_version=version)
    for step, *numbers in STEPS[type(scaler)](scaler):
        x = step(x, *(np.asarray(number, np.float64) for number in numbers), op_version=version)
    (result,) = operator.outputs
    kind = _DOUBLE if isinstance(result.type, DoubleTensorType) else _FLOAT
    OnnxCast(x, to=kind, op_version=version, output_names=[result.full_name]).add_to(scope, container)


def _centred(centre: np.ndarray | None, scale: np.ndarray | None) -> Iterator[tuple[Any, ...]]:
    if centre is not None:
        yield OnnxSub, centre
    if scale is not None:
        yield OnnxDiv, scale


def _into_range(scaler: MinMaxScaler) -> Iterator[tuple[Any, ...]]:
    yield OnnxMul, scaler.scale_
    yield OnnxAdd, scaler.min_
    if scaler.clip:
        yield OnnxClip, *scaler.feature_range


STEPS: dict[type, Callable[[Any], Iterator[tuple[Any, ...]]]] = {
    StandardScaler: lambda s: _centred(s.mean_ if s.with_mean else None, s.scale_),
    RobustScaler: lambda s: _centred(s.center_, s.scale_),
    MaxAbsScaler: lambda s: _centred(None, s.scale_),
    MinMaxScaler: _into_range,
}
