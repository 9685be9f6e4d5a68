"""Definitions of casts and quantised operators in terms of steps and floats."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx_ir as ir

from rationale.lowering.rewrites.engine import (
    HELD,
    UNCHANGED,
    dtype_of,
    is_constant,
    mark,
    rank_of,
    replace_node,
    rewrites,
)
from rationale.rules.pointwise.quantise import limits

_WHOLE = frozenset({"Round", "Floor", "Ceil", "Sign"})
_KEEP_WHOLE = frozenset("Abs Add Clip Conv Identity MatMul Max Min Mul Neg Reshape Sub Unsqueeze".split())
_DEEPEST = 6


def _number(number: float, x: ir.Value) -> np.ndarray:
    """Return a number in the type of `x`."""
    return np.asarray(number, dtype_of(x).numpy())


def _is_whole(x: ir.Value | None, depth: int = 0) -> bool:
    """Tell whether a value is known to have no fraction."""
    if x is None or (x.dtype is not None and not x.dtype.is_floating_point()):
        return True
    if x.const_value is not None:
        values = x.const_value.numpy()
        return bool(np.array_equal(values, np.round(values)))
    node = x.producer()
    if node is None or depth > _DEEPEST:
        return False
    if node.op_type == "Cast":
        source = node.inputs[0]
        return source is not None and source.dtype is not None and not source.dtype.is_floating_point()
    keeps_whole = node.op_type in _KEEP_WHOLE and all(_is_whole(v, depth + 1) for v in node.inputs)
    return node.op_type in _WHOLE or keeps_whole


@rewrites("Cast")
def cast(op: Any, x: ir.Value, *, to: int, **_: Any) -> Any:
    """Compute sign x·⌊|x|⌋ from floats to integers, x ≠ 0 to a condition; else return x."""
    source, target = x.dtype, ir.DataType(to)
    if source is None or source in (target, ir.DataType.STRING):
        return None
    if target == ir.DataType.BOOL:
        return op.Not(op.Equal(x, _number(0, x)))
    if target.is_floating_point() or target == ir.DataType.STRING or _is_whole(x):
        return None
    return op.Cast(op.Mul(op.Sign(x), op.Floor(op.Abs(x))), to=to)


def _per_slice(
    op: Any, parameter: ir.Value, x: ir.Value, axis: int, block_size: int, like: ir.Value | None = None
) -> Any:
    """Shape a scale or zero point to broadcast against x; `like` has its rank if it is new."""
    rank = rank_of(x)
    if block_size:
        repeated = op.Unsqueeze(parameter, [axis % rank + 1])
        ones = [1] * (rank + 1)
        ones[axis % rank + 1] = block_size
        tiled = op.Tile(repeated, ones)
        return op.Reshape(tiled, op.Shape(x))
    if rank_of(like or parameter) != 1 or rank == 1:
        return parameter
    return op.Unsqueeze(parameter, [i for i in range(rank) if i != axis % rank])


@rewrites("QuantizeLinear")
def quantize_linear(
    op: Any,
    x: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    **_: Any,
) -> Any:
    """Compute round(x/scale) + zero point, within the limits, if these are computed or in blocks."""
    target: ir.DataType = op.before.outputs[0].dtype or ir.DataType.UINT8
    if (is_constant(scale) and is_constant(zero_point) and not block_size) or "INT" not in target.name:
        return None
    steps = mark(op.Div(x, _per_slice(op, scale, x, axis, block_size)), UNCHANGED)
    y = op.Cast(op.QuantizeLinear(steps, _number(1, x), np.asarray(0, np.int16)), to=int(dtype_of(x)))
    if zero_point is not None:
        offset = op.Cast(zero_point, to=int(dtype_of(x)))
        y = mark(op.Add(y, _per_slice(op, offset, x, axis, block_size, zero_point)), UNCHANGED)
    low, high = limits(target.name)
    return op.Cast(op.Clip(y, _number(low, x), _number(high, x)), to=int(target))


@rewrites("DynamicQuantizeLinear")
def dynamic_quantize_linear(op: Any, x: ir.Value) -> Any:
    """Compute QuantizeLinear by the range of x, 0 included, in 255 steps; a range of 0 counts as 1.

    If x is 0, any scale gives 0; but products with a scale far from another row's would cancel.
    """
    least, most = (f(x, keepdims=0) for f in (op.ReduceMin, op.ReduceMax))
    least = op.Min(least, _number(0, x))
    span = op.Sub(op.Max(most, _number(0, x)), least)
    scale = mark(op.Div(op.Where(op.Equal(span, _number(0, x)), _number(1, x), span), _number(255, x)), HELD)
    offset = op.Round(op.Clip(op.Neg(op.Div(least, scale)), _number(0, x), _number(255, x)))
    zero_point = mark(op.Cast(offset, to=int(ir.DataType.UINT8)), HELD)
    return op.QuantizeLinear(x, scale, zero_point), scale, zero_point


@rewrites("DequantizeLinear")
def dequantize_linear(
    op: Any,
    x: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value | None = None,
    **options: Any,
) -> Any:
    """Compute (x − zero point)·scale if these are computed, or in blocks."""
    if is_constant(scale) and is_constant(zero_point) and not options.get("block_size"):
        return None
    return _dequantised(op, x, scale, zero_point, **options)


def spell_out_dequantising(graph: ir.Graph, nodes: Iterable[ir.Node]) -> None:
    """Replace each of these DequantizeLinear nodes by (x − zero point)·scale, in place.

    ONNX Runtime (1.31) fuses one, a Conv with float weights, and a QuantizeLinear into a quantised Conv, and
    rounds the weights to 8 bits by a scale of its own. It also moves one through a Reshape in a way that it
    then cannot load, at opset 21.
    """
    for node in nodes:
        replace_node(graph, node, [_dequantised])


def _dequantised(
    op: Any,
    x: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    **_: Any,
) -> Any:
    y = op.Cast(x, to=int(dtype_of(scale)))
    if zero_point is not None:
        offset = op.Cast(zero_point, to=int(dtype_of(scale)))
        y = mark(op.Sub(y, _per_slice(op, offset, x, axis, block_size, zero_point)), UNCHANGED)
    return mark(op.Mul(y, _per_slice(op, scale, x, axis, block_size)), UNCHANGED)


def recentre(op: Any, x: ir.Value, zero_point: ir.Value | None, axis: int | None) -> Any:
    """Return x − zero point as float32."""
    y = op.Cast(x, to=int(ir.DataType.FLOAT))
    if zero_point is None:
        return y
    offset = op.Cast(zero_point, to=int(ir.DataType.FLOAT))
    if axis is not None and rank_of(zero_point) == 1:
        offset = op.Unsqueeze(offset, [i for i in range(rank_of(x)) if i != axis % rank_of(x)])
    return mark(op.Sub(y, offset), UNCHANGED)


@rewrites("MatMulInteger")
def matmul_integer(
    op: Any, a: ir.Value, b: ir.Value, a_zero: ir.Value | None = None, b_zero: ir.Value | None = None
) -> Any:
    """Compute (a − zero of a)·(b − zero of b), in floats: exact up to 2²⁴."""
    factor_a, factor_b = (
        recentre(op, a, a_zero, rank_of(a) - 2),
        recentre(op, b, b_zero, rank_of(b) - 1),
    )
    return op.Cast(op.MatMul(factor_a, factor_b), to=int(ir.DataType.INT32))


@rewrites("ConvInteger")
def conv_integer(
    op: Any,
    x: ir.Value,
    w: ir.Value,
    x_zero: ir.Value | None = None,
    w_zero: ir.Value | None = None,
    **attributes: Any,
) -> Any:
    """Compute Conv(x − zero of x, w − zero of w), in floats: exact up to 2²⁴."""
    steps = op.Conv(recentre(op, x, x_zero, None), recentre(op, w, w_zero, 0), **attributes)
    return op.Cast(steps, to=int(ir.DataType.INT32))


@rewrites("QLinearMatMul")
def qlinear_matmul(
    op: Any,
    a: ir.Value,
    a_scale: ir.Value,
    a_zero: ir.Value,
    b: ir.Value,
    b_scale: ir.Value,
    b_zero: ir.Value,
    y_scale: ir.Value,
    y_zero: ir.Value,
) -> Any:
    """Requantise (a − zero)·(b − zero)·(scale of a·scale of b/scale of y), from integers."""
    rows, columns = rank_of(a) - 2, rank_of(b) - 1
    steps = op.MatMul(recentre(op, a, a_zero, rows), recentre(op, b, b_zero, columns))
    scale = op.Mul(_per_slice(op, a_scale, a, rows, 0), _per_slice(op, b_scale, b, columns, 0))
    return requantise(op, steps, op.Div(scale, _per_slice(op, y_scale, a, 1, 0)), y_zero)


@rewrites("QLinearConv")
def qlinear_conv(
    op: Any,
    x: ir.Value,
    x_scale: ir.Value,
    x_zero: ir.Value,
    w: ir.Value,
    w_scale: ir.Value,
    w_zero: ir.Value,
    y_scale: ir.Value,
    y_zero: ir.Value,
    bias: ir.Value | None = None,
    **attributes: Any,
) -> Any:
    """Compute Conv(x − zero of x, w − zero of w) + bias, requantised: scales of x and w over that of y."""
    bias = None if bias is None else op.Cast(bias, to=int(ir.DataType.FLOAT))
    steps = op.Conv(recentre(op, x, x_zero, None), recentre(op, w, w_zero, 0), bias, **attributes)
    scale = op.Div(op.Mul(x_scale, w_scale), y_scale)
    return requantise(op, steps, _per_slice(op, scale, x, 1, 0, w_scale), y_zero)


def requantise(op: Any, steps: Any, scale: Any, zero_point: ir.Value) -> Any:
    """Convert steps of one scale to those of another with a single factor, like integer kernels.

    A factor with other roundings rounds to the other side if a number of steps ends in a half.
    """
    return op.QuantizeLinear(op.Mul(steps, scale), np.asarray(1, np.float32), zero_point)
