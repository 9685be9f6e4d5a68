"""The operators that ONNX Runtime's optimisers fuse, domain com.microsoft, as the original operators."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from rationale.errors import UnsupportedModelError
from rationale.lowering.rewrites.engine import Rewriting, rank_of, rewrites
from rationale.rules.defaults import EPSILON

DOMAIN = "com.microsoft"
# operators that ONNX Runtime has in ONNX's own domain: ONNX has LayerNormalization from opset 17 on
UNDER_ONNX = frozenset({"SimplifiedLayerNormalization", "LayerNormalization"})
WITHOUT_CPU_KERNEL = frozenset({"BiasAdd", "BiasSoftmax", "BiasSplitGelu"})
fused = partial(rewrites, domain=DOMAIN)


def rewrite_error(op: Rewriting, fault: str, advice: str) -> UnsupportedModelError:
    """Return an error that names the rewritten node."""
    node = op.result.producer()
    assert node is not None
    return UnsupportedModelError(f"{node.op_type} node {node.name or op.result.name!r}: {fault}. {advice}")


def needs_gpu(node: ir.Node) -> bool:
    """Tell whether ONNX Runtime has only GPU kernels for a node of this domain."""
    if node.op_type == "MultiHeadAttention":
        return None in (*node.inputs, None, None)[1:3]  # packed
    if node.op_type == "Attention":
        mask = (*node.inputs, None, None)[3]
        return mask is not None and mask.shape is not None and mask.shape.rank() == 4
    return node.op_type in WITHOUT_CPU_KERNEL


def number(value: float, like: ir.Value) -> np.ndarray:
    """Return a number in the type of `like`."""
    if like.dtype is None:
        raise UnsupportedModelError(f"the type of {like.name!r} is not known before the model runs")
    return np.asarray(value, like.dtype.numpy())


# -- activations -------------------------------------------------------------------------------------------


@fused("Gelu")
def gelu(op: Rewriting, x: ir.Value) -> ir.Value:
    """Compute x·Φ(x): ONNX's Gelu."""
    return op.Gelu(x)


@fused("BiasGelu")
def bias_gelu(op: Rewriting, x: ir.Value, bias: ir.Value) -> ir.Value:
    """Compute ONNX's Gelu of x + b."""
    return op.Gelu(op.Add(x, bias))


@fused("FastGelu")
def fast_gelu(op: Rewriting, x: ir.Value, bias: ir.Value | None = None) -> ir.Value:
    """Compute ONNX's Gelu of x + b, by tanh."""
    return op.Gelu(op.plus(x, bias), approximate="tanh")


@fused("QuickGelu")
def quick_gelu(op: Rewriting, x: ir.Value, *, alpha: float = 1.702) -> ir.Value:
    """Compute x · σ(αx)."""
    return op.Mul(x, op.Sigmoid(x if alpha == 1 else op.Mul(x, number(alpha, x))))


@fused("BiasSplitGelu")
def bias_split_gelu(op: Rewriting, x: ir.Value, bias: ir.Value) -> ir.Value:
    """Compute a · gelu(b), a and b the halves of x + bias."""
    a, b = op.split(op.Add(x, bias), None, axis=-1)
    return op.Mul(a, op.Gelu(b))


@fused("BiasAdd")
def bias_add(op: Rewriting, x: ir.Value, bias: ir.Value, skip: ir.Value) -> ir.Value:
    """Compute x + b + skip."""
    return op.Add(op.Add(x, bias), skip)


@fused("BiasSoftmax")
def bias_softmax(
    op: Rewriting, x: ir.Value, bias: ir.Value, *, is_inner_broadcast: int, axis: int = 1
) -> ir.Value:
    """Compute Softmax of x + b over all axes from `axis` on."""
    del is_inner_broadcast  # the axes of b that are 1: its shape shows them
    rows, rank = op.Add(x, bias), rank_of(x)
    if axis % rank == rank - 1:
        return op.Softmax(rows, axis=-1)
    return op.Reshape(op.Softmax(op.Flatten(rows, axis=axis), axis=-1), op.Shape(x))


# -- normalisation -----------------------------------------------------------------------------------------


@fused("LayerNormalization")
def layer_normalization(
    op: Rewriting, x: ir.Value, scale: ir.Value, bias: ir.Value | None = None, **attributes: Any
) -> ir.Value:
    """Compute ONNX's LayerNormalization; files of older opsets have it under ai.onnx."""
    return op.LayerNormalization(x, scale, bias, **attributes)


@fused("SimplifiedLayerNormalization")
def simplified_layer_normalization(
    op: Rewriting, x: ir.Value, scale: ir.Value, *, axis: int = -1, epsilon: float = EPSILON, **_: Any
) -> ir.Value:
    """Compute γ·x/√(mean x² + ε) over the last axes; files have it under ai.onnx."""
    axes = [-1] if axis == -1 else list(range(axis % rank_of(x), rank_of(x)))
    return _by_root_mean_square(op, x, scale, axes, number(epsilon, x))


def _by_root_mean_square(
    op: Rewriting, x: ir.Value, scale: ir.Value, axes: list[int], epsilon: np.ndarray
) -> ir.Value:
    variance = op.ReduceMean(op.Mul(x, x), axes, keepdims=1)
    return op.Mul(op.Mul(x, op.Reciprocal(op.Sqrt(op.Add(variance, epsilon)))), scale)


@fused("SkipLayerNormalization")
def skip_layer_normalization(
    op: Rewriting,
    x: ir.Value,
    skip: ir.Value,
    scale: ir.Value,
    beta: ir.Value | None = None,
    bias: ir.Value | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[ir.Value | None, ...]:
    """Compute LayerNormalization of x + skip + b, and that sum."""
    total = _sum(op, x, skip, bias)
    return op.LayerNormalization(total, scale, beta, axis=-1, epsilon=epsilon), None, None, total


@fused("SkipSimplifiedLayerNormalization")
def skip_simplified_layer_normalization(
    op: Rewriting,
    x: ir.Value,
    skip: ir.Value,
    scale: ir.Value,
    bias: ir.Value | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[ir.Value | None, ...]:
    """Compute SimplifiedLayerNormalization of x + skip + b, and that sum."""
    total = _sum(op, x, skip, bias)
    return _by_root_mean_square(op, total, scale, [-1], number(epsilon, x)), None, None, total


def _sum(op: Rewriting, x: ir.Value, skip: ir.Value, bias: ir.Value | None) -> ir.Value:
    return op.plus(op.Add(x, skip), bias)


@fused("EmbedLayerNormalization")
def embed_layer_normalization(
    op: Rewriting,
    ids: ir.Value,
    segment_ids: ir.Value | None,
    words: ir.Value,
    positions: ir.Value,
    segments: ir.Value | None,
    scale: ir.Value,
    beta: ir.Value,
    mask: ir.Value | None = None,
    position_ids: ir.Value | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 1,
) -> tuple[ir.Value | None, ...]:
    """Return LayerNormalization of the sum of embeddings, the lengths of the mask, and that sum."""
    del mask_index_type  # an output that nothing reads if it is 0
    if position_ids is None:
        position = op.Slice(positions, [0], op.Shape(ids, start=1, end=2), [0])
    else:
        position = op.Gather(positions, position_ids, axis=0)
    total = op.Gather(words, ids, axis=0)
    if segment_ids is not None and segments is not None:
        total = op.Add(total, op.Gather(segments, segment_ids, axis=0))
    total = op.Add(total, position)
    lengths = None if mask is None else op.ReduceSum(mask, [1], keepdims=0)
    return op.LayerNormalization(total, scale, beta, axis=-1, epsilon=epsilon), lengths, total


# -- products ----------------------------------------------------------------------------------------------


@fused("FusedMatMul")
def fused_matmul(
    op: Rewriting,
    a: ir.Value,
    b: ir.Value,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> ir.Value:
    """Compute α·A·B of transposed matrices. transBatch moves the first axis to the second last place."""
    y = op.MatMul(
        _transpose_operand(op, a, transA, transBatchA), _transpose_operand(op, b, transB, transBatchB)
    )
    return y if alpha == 1 else op.Mul(y, number(alpha, a))


@fused("TransposeMatMul")
def transpose_matmul(op: Rewriting, a: ir.Value, b: ir.Value, **attributes: Any) -> Any:
    """Compute FusedMatMul, under its old name."""
    return fused_matmul(op, a, b, **attributes)


def _transpose_operand(op: Rewriting, x: ir.Value, swapped: int, batch: int) -> ir.Value:
    if not swapped and not batch:
        return x
    perm = list(range(rank_of(x)))
    if batch:
        perm.insert(-1, perm.pop(0))
    if swapped and len(perm) > 1:
        perm[-2:] = perm[:-3:-1]
    return op.transpose(x, perm)


@fused("FusedGemm")
def fused_gemm(
    op: Rewriting,
    a: ir.Value,
    b: ir.Value,
    c: ir.Value | None = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    **attributes: Any,
) -> Any:
    """Apply an activation to a Gemm."""
    options = {"alpha": activation_alpha, "beta": activation_beta, "gamma": activation_gamma}
    settings = {name: value for name, value in options.items() if value is not None}
    return _apply_activation(op, op.Gemm(a, b, c, **attributes), activation, settings)


@fused("FusedConv")
def fused_conv(
    op: Rewriting,
    x: ir.Value,
    w: ir.Value,
    bias: ir.Value | None = None,
    added: ir.Value | None = None,
    *,
    activation: str = "",
    activation_params: Sequence[float] = (),
    **attributes: Any,
) -> Any:
    """Apply an activation to Conv + Z."""
    y = op.plus(op.Conv(x, w, bias, **attributes), added)
    if activation == "Clip":
        return op.Clip(y, *(number(bound, x) for bound in activation_params))
    settings = dict(zip(("alpha", "beta"), activation_params, strict=False))
    return _apply_activation(op, y, activation, settings)


def _apply_activation(op: Rewriting, y: ir.Value, activation: str, settings: Mapping[str, float]) -> Any:
    """Apply one of ONNX's operators, or none; ONNX Runtime has refused any other activation."""
    return getattr(op, activation)(y, **settings) if activation else y
