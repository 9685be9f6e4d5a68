"""Rounding to integer steps and its inverse: the operators of quantised models."""

import math

import numpy as np

from rationale.errors import UnsupportedModelError
from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules.pointwise.conditions import number
from rationale.rules.rule import Evaluation, Kind, Trait, rule
from rationale.rules.secants import jump_secant

_INTEGERS = {f"{sign}INT{n}": (sign, n) for sign in ("", "U") for n in (2, 4, 8, 16)}


def _along(op: Ops, parameter: Tensor | None, x: Tensor, axis: int) -> Tensor | float:
    """Shape a scale or a zero point, per tensor or per axis, to broadcast against x."""
    if parameter is None:
        return 0.0
    constant = parameter.constant
    if constant is None:
        raise UnsupportedModelError("a computed scale or zero point")
    values = np.asarray(constant).astype(op.dtype.numpy())
    if values.size == 1:
        return float(values.reshape(-1)[0])
    shape = [1] * x.rank
    shape[axis % x.rank] = values.size
    return op.row_constant(values.reshape(shape)) if axis % x.rank else op.constant(values.reshape(shape))


def limits(name: str) -> tuple[float, float]:
    """Return the least and the largest integer of a type; infinite for 8-bit floats."""
    if name not in _INTEGERS:
        return -math.inf, math.inf
    sign, bits = _INTEGERS[name]
    return (0.0, 2.0**bits - 1) if sign else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1)


@rule("QuantizeLinear", kind=Kind.POINTWISE, traits=[Trait.DISCRETE])
def quantize_linear(
    op: Ops,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    **attributes: int,
) -> Evaluation:
    """Compute y = x/scale rounded, + zero point, within limits; straight-through, gradient 1/scale inside."""
    y = op.QuantizeLinear(x, scale, zero_point, axis=axis, **attributes)

    def quantize_linear_pullback(m: Tensor) -> Tensor:
        low, high = limits(y.dtype.name)
        step = _along(op, scale, x, axis)
        level = op.Add(op.Div(x, step), _along(op, zero_point, x, axis))
        inside = op.And(op.GreaterOrEqual(level, low - 0.5), op.LessOrEqual(level, high + 0.5))
        return op.Div(op.Where(inside, m, 0.0), step)

    return y, (quantize_linear_pullback, None, None)


@quantize_linear.secant
def quantize_linear_slope(
    op: Ops,
    x: Tensor,
    r: Tensor,
    y: Tensor,
    y_r: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    **_: int,
) -> Tensor:
    """Compute the plain quotient for every x ≠ r, since y has steps."""
    return jump_secant(op, x, r, number(op, y), number(op, y_r), 0.0)


@rule("DequantizeLinear", kind=Kind.POINTWISE, traits=[Trait.DISCRETE])
def dequantize_linear(
    op: Ops,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    **attributes: int,
) -> Evaluation:
    """Compute y = (x − zero point)·scale."""
    if attributes.get("block_size"):
        raise UnsupportedModelError("scales per block")
    steps = op.Cast(x, to=int(scale.dtype))  # in three nodes, which ONNX Runtime does not move through others
    steps = op.Sub(steps, _along(op, zero_point, x, axis)) if zero_point is not None else steps

    def dequantize_linear_pullback(m: Tensor) -> Tensor:
        return op.Mul(m, _along(op, scale, x, axis))

    return op.Mul(steps, _along(op, scale, x, axis)), (dequantize_linear_pullback, None, None)


@dequantize_linear.secant
def dequantize_linear_slope(
    op: Ops,
    x: Tensor,
    r: Tensor,
    y: Tensor,
    y_r: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    **_: int,
) -> Tensor:
    """Return the scale."""
    step = _along(op, scale, x, axis)
    return op.array([step], y) if isinstance(step, float) else step
