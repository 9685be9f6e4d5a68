"""Quantised layers of domain com.microsoft: by ONNX's own operators, or on the weights that they hold."""

from typing import Any

import numpy as np
import onnx_ir as ir

from compiler.lowering.rewrites.discrete import centred, dynamic_quantize_linear, requantised
from compiler.lowering.rewrites.engine import Rewriting, is_constant, rank_of
from compiler.lowering.rewrites.microsoft import fused, refused


@fused("QuantizeLinear")
def quantize_linear(op: Rewriting, x: ir.Value, *parameters: ir.Value | None, **attributes: Any) -> Any:
    """ONNX's, which has taken 16 bits since opset 21."""
    return op.QuantizeLinear(x, *parameters, **attributes)


@fused("DequantizeLinear")
def dequantize_linear(op: Rewriting, x: ir.Value, *parameters: ir.Value | None, **attributes: Any) -> Any:
    """ONNX's, which has taken 16 bits since opset 21."""
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
    """Gemm(a − zero of a, b − zero of b, bias) in α·scale of a·scale of b: as floats, or requantised."""
    whole = None if bias is None else op.Cast(bias, to=int(ir.DataType.FLOAT))
    left, right = centred(op, a, a_zero, None), centred(op, b, b_zero, 0 if transB else 1)
    steps = op.Gemm(left, right, whole, transA=transA, transB=transB)
    scale = op.Mul(op.Mul(a_scale, np.asarray(alpha, np.float32)), b_scale)
    if y_scale is None or y_zero is None:
        return op.Mul(steps, scale)
    return requantised(op, steps, op.Div(scale, y_scale), y_zero)


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
    steps = op.MatMul(centred(op, a, a_zero, None), centred(op, b, b_zero, rank_of(b) - 1))
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
    """MatMulIntegerToFloat of DynamicQuantizeLinear(a)."""
    whole, scale, zero = dynamic_quantize_linear(op, a)
    return matmul_integer_to_float(op, whole, b, scale, b_scale, zero, b_zero, bias)


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
    """MatMul with (packed weights − zero point)·scale, block by block along K, + bias."""
    if not all(map(is_constant, (b, scales, zero_points))) or group_index is not None or weight_prepacked:
        raise refused(op, "weights that are computed, ordered by g_idx or prepacked", "Export it without.")
    blocks, kind = -(-K // block_size), _array(scales).dtype
    steps = _unpacked(_array(b).reshape(N, blocks, -1), bits)[:, :, :block_size]
    zeros: Any = 2 ** (bits - 1)
    if zero_points is not None:
        given = _array(zero_points)
        whole = _unpacked(given.reshape(N, -1), bits)[:, :blocks] if given.dtype == np.uint8 else given
        zeros = whole.reshape(N, blocks, 1).astype(np.float32)
    weights = (steps - zeros) * _array(scales).reshape(N, blocks, 1).astype(np.float32)
    return op.plus(op.MatMul(a, weights.reshape(N, -1)[:, :K].T.astype(kind)), bias)


def _array(value: ir.Value) -> np.ndarray:
    assert value.const_value is not None
    return value.const_value.numpy()


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Bytes as floats of so many bits each, the lowest first: [..., bytes] to [..., bytes·8/bits]."""
    parts = packed[..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8(2**bits - 1)
    return parts.reshape(*packed.shape[:-1], -1).astype(np.float32)
