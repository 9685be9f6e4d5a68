"""Definitions of activations, norms, extremes, and operators with computed parameters: one function each."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import onnx_ir as ir

from rationale.errors import UnsupportedModelError
from rationale.lowering.rewrites.engine import dtype_of, is_constant, length_of, rank_of, rewrites, sizes_of
from rationale.rules.defaults import EPSILON, MOMENTUM
from rationale.rules.linear.products import parse_equation


def _ones(x: ir.Value, sizes: Sequence[int]) -> np.ndarray:
    return np.ones(tuple(sizes), dtype_of(x).numpy())


def _power(op: Any, x: ir.Value, p: int) -> Any:
    """Compute |x|^p."""
    if p == 1:
        return op.Abs(x)
    return op.Mul(x, x) if p == 2 else op.Pow(op.Abs(x), float(p))


def _root(op: Any, x: ir.Value, p: int) -> Any:
    """Compute x^(1/p)."""
    if p == 1:
        return x
    return op.Sqrt(x) if p == 2 else op.Pow(x, 1.0 / p)


@rewrites("LogSoftmax")
def log_softmax(op: Any, x: ir.Value, *, axis: int = -1) -> Any:
    """Compute z − LSE(z)."""
    return op.Sub(x, op.ReduceLogSumExp(x, [axis], keepdims=1))


@rewrites("HardSwish")
def hard_swish(op: Any, x: ir.Value) -> Any:
    """Compute x · max(0, min(1, x/6 + 1/2))."""
    return op.Mul(x, op.Clip(op.Add(op.Mul(x, 1 / 6), 0.5), 0.0, 1.0))


@rewrites("Swish")
def swish(op: Any, x: ir.Value, *, alpha: float = 1.0) -> Any:
    """Compute x · σ(αx)."""
    return op.Mul(x, op.Sigmoid(op.Mul(x, float(alpha)) if alpha != 1.0 else x))


@rewrites("Gelu")
def gelu(op: Any, x: ir.Value, *, approximate: str = "none") -> Any:
    """Compute x/2 · (1 + erf(x/√2)), or its approximation by tanh."""
    if approximate == "tanh":
        inner = op.Mul(op.Add(x, op.Mul(op.Mul(op.Mul(x, x), x), 0.044715)), float(np.sqrt(2 / np.pi)))
        return op.Mul(op.Mul(x, 0.5), op.Add(op.Tanh(inner), 1.0))
    return op.Mul(op.Mul(x, 0.5), op.Add(op.Erf(op.Mul(x, float(np.sqrt(0.5)))), 1.0))


@rewrites("GlobalMaxPool")
def global_max_pool(op: Any, x: ir.Value) -> Any:
    """Return the maximum over all spatial axes."""
    return op.ReduceMax(x, list(range(2, rank_of(x))), keepdims=1)


@rewrites("GroupNormalization")
def group_normalization(
    op: Any,
    x: ir.Value,
    scale: ir.Value,
    bias: ir.Value,
    *,
    num_groups: int,
    epsilon: float = EPSILON,
    **_: Any,
) -> Any:
    """Compute γ·(x − mean x)/√(var x + ε) + β per group of channels, by an InstanceNormalization."""
    ones = np.ones(num_groups, (x.dtype or scale.dtype or ir.DataType.FLOAT).numpy())
    groups = op.InstanceNormalization(op.Reshape(x, [0, num_groups, -1]), ones, 0 * ones, epsilon=epsilon)
    scale, bias = (op.Unsqueeze(v, [1]) for v in (scale, bias))
    channels = op.Reshape(groups, op.Concat([0], op.Shape(scale, end=1), [-1], axis=0))
    return op.Reshape(op.Add(op.Mul(channels, scale), bias), op.Shape(x))


@rewrites("Mean")
def mean(op: Any, *xs: ir.Value) -> Any:
    """Compute Σ x / n."""
    return op.Mul(op.Sum(*xs), 1.0 / len(xs))


@rewrites("Max")
def maximum(op: Any, *xs: ir.Value) -> Any:
    """Take the maximum pairwise, from the left."""
    return None if len(xs) == 2 else reduce(op.Max, xs)


@rewrites("Min")
def minimum(op: Any, *xs: ir.Value) -> Any:
    """Compute −max(−x)."""
    return xs[0] if len(xs) == 1 else op.Neg(reduce(op.Max, [op.Neg(x) for x in xs]))


@rewrites("ReduceMin")
def reduce_min(op: Any, x: ir.Value, axes: ir.Value | None = None, **attributes: int) -> Any:
    """Compute −max(−x) over the axes."""
    return op.Neg(op.ReduceMax(op.Neg(x), axes, **attributes))


@rewrites("Celu")
def celu(op: Any, x: ir.Value, *, alpha: float = 1.0) -> Any:
    """Compute α · elu(x/α)."""
    return op.Mul(op.Elu(op.Mul(x, 1.0 / alpha)), float(alpha))


@rewrites("MeanVarianceNormalization")
def mean_variance_normalization(op: Any, x: ir.Value, *, axes: Sequence[int] = (0, 2, 3)) -> Any:
    """Compute (x − mean x)/(√var x + 1e-9) over the axes."""
    deviation = op.Sub(x, op.ReduceMean(x, list(axes), keepdims=1))
    variance = op.ReduceMean(op.Mul(deviation, deviation), list(axes), keepdims=1)
    return op.Div(deviation, op.Add(op.Sqrt(variance), 1e-9))


@rewrites("LpPool")
def lp_pool(
    op: Any,
    x: ir.Value,
    *,
    kernel_shape: list[int],
    p: int = 2,
    ceil_mode: int = 0,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
    dilations: list[int] | None = None,
    auto_pad: str = "NOTSET",
) -> Any:
    """Compute (Σ|x|^p)^(1/p) over each window: a Conv of ones over |x|^p, channel by channel."""
    channels, n = length_of(x, 1), len(kernel_shape)
    strides, dilations = list(strides or [1] * n), list(dilations or [1] * n)
    pads = list(pads or [0] * 2 * n)
    if ceil_mode and auto_pad == "NOTSET":
        for i, size in enumerate(sizes_of(x, 2)):
            span = size + pads[i] + pads[n + i] - ((kernel_shape[i] - 1) * dilations[i] + 1)
            extra = -span % strides[i]
            if span + extra < size + pads[i]:  # no window begins behind the last value
                pads[n + i] += extra
    attributes: dict[str, Any] = {"strides": strides, "dilations": dilations, "group": channels}
    attributes |= {"pads": pads} if auto_pad == "NOTSET" else {"auto_pad": auto_pad}
    total = op.Conv(_power(op, x, p), _ones(x, [channels, 1, *kernel_shape]), **attributes)
    return _root(op, total, p)


@rewrites("CumProd")
def cumulative_product(op: Any, x: ir.Value, axis: ir.Value, *, exclusive: int = 0, reverse: int = 0) -> Any:
    """Compute Π x_j over j ≤ i, by products of neighbours 1, 2, 4 … apart."""
    if axis.const_value is None:
        raise UnsupportedModelError("CumProd along a computed axis")
    rank = rank_of(x)
    along = int(axis.const_value.numpy().reshape(-1)[0]) % rank
    count, step = length_of(x, along), 1
    if exclusive:
        x = _shift(op, x, along, 1, reverse, rank)
    while step < count:
        x = op.Mul(x, _shift(op, x, along, step, reverse, rank))
        step *= 2
    return x


def _shift(op: Any, x: ir.Value, along: int, by: int, back: int, rank: int) -> Any:
    """Shift x along an axis; ones fill the gap."""
    pads = np.zeros((2, rank), np.int64)
    pads[:, along] = (-by, by) if back else (by, -by)
    return op.Pad(x, pads.reshape(-1), 1.0)


@rewrites("PRelu")
def prelu(op: Any, x: ir.Value, slope: ir.Value) -> Any:
    """Compute x⁺ − slope·(−x)⁺ if the slope is computed."""
    return None if is_constant(slope) else op.Sub(op.Relu(x), op.Mul(slope, op.Relu(op.Neg(x))))


@rewrites("Clip")
def clip(op: Any, x: ir.Value, low: ir.Value | None = None, high: ir.Value | None = None) -> Any:
    """Compute min(max(x, low), high) if a bound is computed."""
    if is_constant(low) and is_constant(high):
        return None
    above = x if low is None else op.Max(x, low)
    return above if high is None else op.Min(above, high)


@rewrites("Pow")
def power(op: Any, x: ir.Value, n: ir.Value) -> Any:
    """Compute e^(n·ln x), for positive x, if the exponent is computed."""
    if is_constant(n):
        return None
    exponent = n if n.dtype == x.dtype else op.Cast(n, to=int(dtype_of(x)))
    return op.Exp(op.Mul(exponent, op.Log(x)))


@rewrites("Einsum")
def einsum(op: Any, *xs: ir.Value, equation: str) -> Any:
    """Contract two operands at a time, from the left, if more than two are computed."""
    if len(xs) <= 2 or sum(not is_constant(x) for x in xs) <= 2:
        return None
    parsed = parse_equation(equation, [rank_of(x) for x in xs])
    result, term = xs[0], parsed.inputs[0]
    for i, (x, other) in enumerate(zip(xs[1:], parsed.inputs[1:], strict=True), start=2):
        later = set(parsed.output).union(*parsed.inputs[i:])
        letters = [c for c in dict.fromkeys(term + other) if c in later]
        out = parsed.output if i == len(xs) else "".join(letters)
        result, term = op.Einsum(result, x, equation=f"{term},{other}->{out}"), out
    return result


@rewrites("LayerNormalization")
def layer_normalization(
    op: Any,
    x: ir.Value,
    scale: ir.Value,
    bias: ir.Value | None = None,
    *,
    axis: int = -1,
    epsilon: float = EPSILON,
    **_: Any,
) -> Any:
    """Compute γ·z + β with z standardised if γ or β is computed, or mean or deviation is an output."""
    used_outputs = [v for v in op.before.outputs[1:] if v.uses() or v.is_graph_output()]
    if not used_outputs and is_constant(scale) and is_constant(bias):
        return None
    axes = list(range(axis % rank_of(x), rank_of(x)))
    deviation = op.Sub(x, mean := op.ReduceMean(x, axes, keepdims=1))
    variance = op.ReduceMean(op.Mul(deviation, deviation), axes, keepdims=1)
    inverse = op.Reciprocal(op.Sqrt(op.Add(variance, epsilon)))
    y = op.Mul(op.Mul(deviation, inverse), scale)
    return (y if bias is None else op.Add(y, bias)), mean, inverse


@rewrites("RMSNormalization")
def rms_normalization(op: Any, x: ir.Value, scale: ir.Value, **attributes: Any) -> Any:
    """Compute γ·z with z standardised if γ is computed."""
    if is_constant(scale):
        return None
    axis = int(attributes.get("axis", -1)) % rank_of(x)
    return op.Mul(op.RMSNormalization(x, _ones(x, sizes_of(x, axis)), **attributes), scale)


@rewrites("InstanceNormalization")
def instance_normalization(op: Any, x: ir.Value, scale: ir.Value, bias: ir.Value, **attributes: Any) -> Any:
    """Compute γ·z + β with z standardised if γ or β is computed."""
    if is_constant(scale) and is_constant(bias):
        return None
    ones = _ones(x, [length_of(x, 1)])
    z = op.InstanceNormalization(x, ones, 0 * ones, **attributes)
    spatial = list(range(1, rank_of(x) - 1))
    return op.Add(op.Mul(z, op.Unsqueeze(scale, spatial)), op.Unsqueeze(bias, spatial))


@rewrites("BatchNormalization")
def batch_normalization(
    op: Any,
    x: ir.Value,
    scale: ir.Value,
    bias: ir.Value,
    mean: ir.Value,
    variance: ir.Value,
    *,
    epsilon: float = EPSILON,
    training_mode: int = 0,
    momentum: float = MOMENTUM,
    **_: Any,
) -> Any:
    """Compute γ·(x − mean)/√(variance + ε) + β if one of them is computed, or in training."""
    parts = (scale, bias, mean, variance)
    if training_mode:
        fixed = x.shape is not None and isinstance(x.shape[0], int)
        return _training_outputs(op, x, parts, epsilon, momentum) if fixed else None
    if all(is_constant(v) for v in parts):
        return None
    if rank_of(x) > 2:
        scale, bias, mean, variance = (op.Unsqueeze(v, list(range(1, rank_of(x) - 1))) for v in parts)
    standardised = op.Div(op.Sub(x, mean), op.Sqrt(op.Add(variance, epsilon)))
    return op.Add(op.Mul(standardised, scale), bias)


def _training_outputs(
    op: Any, x: ir.Value, parts: Sequence[ir.Value], epsilon: float, momentum: float
) -> Any:
    """Return the values of a BatchNormalization in training: y, running mean and running variance."""
    scale, bias, mean, variance = parts
    axes, spatial = [0, *range(2, rank_of(x))], list(range(1, rank_of(x) - 1))

    def spread(v: Any) -> Any:
        return op.Unsqueeze(v, spatial) if spatial else v

    def running(old: ir.Value, new: Any) -> Any:
        return op.Add(op.Mul(old, float(momentum)), op.Mul(new, 1 - float(momentum)))

    own_mean = op.ReduceMean(x, axes, keepdims=0)
    deviation = op.Sub(x, spread(own_mean))
    own_variance = op.ReduceMean(op.Mul(deviation, deviation), axes, keepdims=0)
    standardised = op.Div(deviation, op.Sqrt(op.Add(spread(own_variance), epsilon)))
    y = op.Add(op.Mul(standardised, spread(scale)), spread(bias))
    return y, running(mean, own_mean), running(variance, own_variance)
