"""Quantised layers of domain com.microsoft, in ONNX's own operators or with unpacked weights."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rationale.graph.nodes import constant_array
from rationale.lowering.rewrites.discrete import dynamic_quantize_linear, recentre, requantise
from rationale.lowering.rewrites.engine import Rewriting, is_constant, rank_of
from rationale.lowering.rewrites.microsoft import fused, rewrite_error
from rationale.rules.defaults import HUNDREDTH


@fused("QuantizeLinear")
def quantize_linear(op: Rewriting, x: ir.Value, *parameters: ir.Value | None, **attributes: Any) -> Any:
    """Compute ONNX's QuantizeLinear, which takes 16 bits since opset 21."""
    return op.QuantizeLinear(x, *parameters, **attributes)


@fused("DequantizeLinear")
def dequantize_linear(op: Rewriting, x: ir.Value, *parameters: ir.Value | None, **attributes: Any) -> Any:
    """Compute ONNX's DequantizeLinear, which takes 16 bits since opset 21."""
    return op.DequantizeLinear(x, *parameters, **attributes)


@fused("QGemm")
def qgemm(
    op: Rewriting,
    a: ir.Value,
    a_scale: ir.Value,
    a_zero: ir.Value,
    b: ir.Value,
    b_scale: ir.Value,
    b_zero: ir.Value | None,
    bias: ir.Value | None = None,
    y_scale: ir.Value | None = None,
    y_zero: ir.Value | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Any:
    """Compute Gemm(a − zero of a, b − zero of b, bias)·α·scale of a·scale of b: floats, or requantised."""
    float_bias = None if bias is None else op.Cast(bias, to=int(ir.DataType.FLOAT))
    factor_a, factor_b = (
        recentre(op, a, a_zero, None),
        recentre(op, b, b_zero, 0 if transB else 1),
    )
    steps = op.Gemm(factor_a, factor_b, float_bias, transA=transA, transB=transB)
    scale = op.Mul(op.Mul(a_scale, np.asarray(alpha, np.float32)), b_scale)
    if y_scale is None or y_zero is None:
        return op.Mul(steps, scale)
    return requantise(op, steps, op.Div(scale, y_scale), y_zero)


@fused("QLinearAdd")
def qlinear_add(op: Rewriting, *operands: ir.Value | None) -> Any:
    """Compute A + B of dequantised numbers, quantised."""
    (a, b), y = _dequantise(op, operands[:6]), operands[6:]
    return op.QuantizeLinear(op.Add(a, b), *y)


@fused("QLinearMul")
def qlinear_mul(op: Rewriting, *operands: ir.Value | None) -> Any:
    """Compute A · B of dequantised numbers, quantised."""
    (a, b), y = _dequantise(op, operands[:6]), operands[6:]
    return op.QuantizeLinear(op.Mul(a, b), *y)


@fused("QLinearConcat")
def qlinear_concat(op: Rewriting, *operands: ir.Value | None, axis: int) -> Any:
    """Compute Concat of dequantised numbers, quantised; the first inputs are the result's scale and zero."""
    return op.QuantizeLinear(op.Concat(*_dequantise(op, operands[2:]), axis=axis), *operands[:2])


@fused("QLinearSigmoid")
def qlinear_sigmoid(op: Rewriting, *operands: ir.Value | None) -> Any:
    """Compute σ of dequantised numbers, quantised."""
    (x,), y = _dequantise(op, operands[:3]), operands[3:]
    return op.QuantizeLinear(op.Sigmoid(x), *y)


@fused("QLinearLeakyRelu")
def qlinear_leaky_relu(op: Rewriting, *operands: ir.Value | None, alpha: float = HUNDREDTH) -> Any:
    """Compute LeakyRelu of dequantised numbers, quantised."""
    (x,), y = _dequantise(op, operands[:3]), operands[3:]
    return op.QuantizeLinear(op.LeakyRelu(x, alpha=alpha), *y)


@fused("QLinearSoftmax")
def qlinear_softmax(
    op: Rewriting, x: ir.Value, *operands: ir.Value | None, opset: int, axis: int = -1
) -> Any:
    """Compute Softmax of dequantised numbers, quantised: one axis, before opset 13 the last."""
    rank = rank_of(x)
    if opset < 13 and axis % rank != rank - 1:
        raise rewrite_error(
            op, "Softmax of several axes at once cannot be explained", "Export with opset 13 or later."
        )
    return op.QuantizeLinear(op.Softmax(op.DequantizeLinear(x, *operands[:2]), axis=axis), *operands[2:])


@fused("QLinearAveragePool")
def qlinear_average_pool(
    op: Rewriting, *operands: ir.Value | None, channels_last: int = 0, **attributes: Any
) -> Any:
    """Compute AveragePool of dequantised numbers, quantised."""
    _check_channels(op, channels_last)
    (x,), y = _dequantise(op, operands[:3]), operands[3:]
    return op.QuantizeLinear(op.AveragePool(x, **attributes), *y)


@fused("QLinearGlobalAveragePool")
def qlinear_global_average_pool(
    op: Rewriting,
    x: ir.Value,
    x_scale: ir.Value,
    x_zero: ir.Value,
    y_scale: ir.Value,
    y_zero: ir.Value,
    *,
    channels_last: int = 0,
) -> Any:
    """Compute GlobalAveragePool(x − zero of x), requantised: the scale of x over that of y."""
    _check_channels(op, channels_last)
    steps = op.GlobalAveragePool(recentre(op, x, x_zero, None))
    return requantise(op, steps, op.Div(x_scale, y_scale), y_zero)


def _check_channels(op: Rewriting, channels_last: int) -> None:
    if channels_last:
        raise rewrite_error(
            op, "channels on the last axis cannot be explained", "Export it with channels_last=0."
        )


def _dequantise(op: Rewriting, operands: Sequence[ir.Value | None]) -> list[Any]:
    """Return the floats of each triple: integers, their scale and their zero point."""
    return [op.DequantizeLinear(*operands[i : i + 3]) for i in range(0, len(operands), 3)]


@fused("MatMulIntegerToFloat")
def matmul_integer_to_float(
    op: Rewriting,
    a: ir.Value,
    b: ir.Value,
    a_scale: ir.Value,
    b_scale: ir.Value,
    a_zero: ir.Value | None = None,
    b_zero: ir.Value | None = None,
    bias: ir.Value | None = None,
) -> Any:
    """Compute (a − zero of a)·(b − zero of b)·(scale of a·scale of b) + bias."""
    steps = op.MatMul(recentre(op, a, a_zero, None), recentre(op, b, b_zero, rank_of(b) - 1))
    return op.plus(op.Mul(steps, op.Mul(a_scale, b_scale)), bias)


@fused("DynamicQuantizeMatMul")
def dynamic_quantize_matmul(
    op: Rewriting,
    a: ir.Value,
    b: ir.Value,
    b_scale: ir.Value,
    b_zero: ir.Value | None = None,
    bias: ir.Value | None = None,
) -> Any:
    """Compute MatMulIntegerToFloat of DynamicQuantizeLinear(a)."""
    quantised, scale, zero = dynamic_quantize_linear(op, a)
    return matmul_integer_to_float(op, quantised, b, scale, b_scale, zero, b_zero, bias)


@fused("MatMulNBits")
def matmul_nbits(
    op: Rewriting,
    a: ir.Value,
    b: ir.Value,
    scales: ir.Value,
    zero_points: ir.Value | None = None,
    group_index: ir.Value | None = None,
    bias: ir.Value | None = None,
    *,
    K: int,
    N: int,
    block_size: int,
    bits: int = 4,
    weight_prepacked: int = 0,
    **_: Any,
) -> Any:
    """Compute MatMul with (packed weights − zero point)·scale, block by block along K, + bias."""
    if not all(map(is_constant, (b, scales, zero_points))) or group_index is not None or weight_prepacked:
        raise rewrite_error(
            op, "weights that are computed, ordered by g_idx or prepacked", "Export it without."
        )
    blocks, kind = -(-K // block_size), constant_array(scales).dtype
    steps = _unpack(constant_array(b).reshape(N, blocks, -1), bits)[:, :, :block_size]
    zeros: Any = 2 ** (bits - 1)
    if zero_points is not None:
        packed = constant_array(zero_points)
        unpacked = _unpack(packed.reshape(N, -1), bits)[:, :blocks] if packed.dtype == np.uint8 else packed
        zeros = unpacked.reshape(N, blocks, 1).astype(np.float32)
    weights = (steps - zeros) * constant_array(scales).reshape(N, blocks, 1).astype(np.float32)
    return op.plus(op.MatMul(a, weights.reshape(N, -1)[:, :K].T.astype(kind)), bias)


def _unpack(packed: np.ndarray, bits: int) -> np.ndarray:
    """Unpack bytes to floats of `bits` bits each, lowest first: [..., bytes] to [..., bytes·8/bits]."""
    parts = packed[..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8(2**bits - 1)
    return parts.reshape(*packed.shape[:-1], -1).astype(np.float32)
