"""Pooling: averages are linear, maxima select."""

import math
from collections.abc import Sequence

import numpy as np

from compiler.graph import Ops
from compiler.rule import Evaluation, Kind, Selection, Trait, rule
from compiler.rules.conv import conv_transpose, explicit_pads
from compiler.tensor import Tensor


@rule("MaxPool", kind=Kind.SELECTION)
def max_pool(
    op: Ops,
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
) -> Evaluation:
    """y = the largest of each window. Windows may overlap: what they send back adds up."""
    strides = list(strides or [1] * len(kernel_shape))
    dilations = list(dilations or [1] * len(kernel_shape))
    window = [(k - 1) * d + 1 for k, d in zip(kernel_shape, dilations, strict=True)]
    pads = explicit_pads(auto_pad, pads, x.shape[2:], window, strides)
    attributes = {
        "kernel_shape": list(kernel_shape),
        "ceil_mode": ceil_mode,
        "dilations": dilations,
        "pads": pads,
        "strides": strides,
    }
    y, index = op.emit("MaxPool", (x,), attributes, outputs=2)
    rows, channels, *size = x.shape
    plane = math.prod(size)
    winners = op.reshape(op.Mod(index, plane), (rows, channels, math.prod(y.shape[2:])))

    def scatter(v: Tensor, to: Tensor) -> Tensor:
        zeros = op.row_constant(np.zeros((rows, channels, plane), x.dtype.numpy()))
        flat = op.reshape(v, (rows, channels, math.prod(v.shape[2:])))
        return op.reshape(op.ScatterElements(zeros, to, flat, axis=2, reduction="add"), x.shape)

    return y, Selection(winners, scatter)


@rule("AveragePool", kind=Kind.BILINEAR, traits=[Trait.AVERAGING])
def average_pool(
    op: Ops,
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Evaluation:
    """y = the mean of each window;  the adjoint spreads m/size evenly over the window."""
    n = len(kernel_shape)
    strides, dilations = list(strides or [1] * n), list(dilations or [1] * n)
    window = [(k - 1) * d + 1 for k, d in zip(kernel_shape, dilations, strict=True)]
    size, channels = x.shape[2:], x.shape[1]
    pads = explicit_pads(auto_pad, pads, size, window, strides)
    attributes = {
        "kernel_shape": list(kernel_shape),
        "ceil_mode": ceil_mode,
        "count_include_pad": count_include_pad,
        "dilations": dilations,
        "pads": pads,
        "strides": strides,
    }
    y = op.AveragePool(x, **attributes)

    def average_pool_pullback(m: Tensor) -> Tensor:
        dtype = x.dtype.numpy()
        weight = _mean_of_ones(op, attributes, size, y.shape[2:], dtype)
        kernel = np.ones((channels, 1, *kernel_shape), dtype)
        spread = op.Mul(m, weight)
        return conv_transpose(op, spread, op.constant(kernel), size, pads, strides, dilations, channels)

    return y, average_pool_pullback


def _mean_of_ones(
    op: Ops, attributes: dict[str, object], size: Sequence[int], out: Sequence[int], dtype: np.dtype
) -> Tensor:
    """1/(the number each window is divided by): the pool of ones over the number of ones in it."""
    ones = op.constant(np.ones((1, 1, *size), dtype))
    mean = op.AveragePool(ones, **attributes)
    valid = op.constant(_valid_counts(attributes, size, out, dtype))
    return op.Div(mean, valid)


def _valid_counts(
    attributes: dict[str, object], size: Sequence[int], out: Sequence[int], dtype: np.dtype
) -> np.ndarray:
    """How many inputs (padding left out) lie in each window: [1, 1, *out]."""
    counts = np.ones((1, 1), dtype)
    n = len(size)
    for i in range(n):
        kernel, stride, dilation, begin = (
            attributes[key][i]  # type: ignore[index]  # lists of ints, made above
            for key in ("kernel_shape", "strides", "dilations", "pads")
        )
        starts = np.arange(out[i]) * stride - begin
        taps = starts[:, None] + np.arange(kernel) * dilation
        valid = ((taps >= 0) & (taps < size[i])).sum(axis=1).astype(dtype)
        counts = counts[..., None] * valid
    return counts


@rule("GlobalAveragePool", kind=Kind.BILINEAR, traits=[Trait.AVERAGING])
def global_average_pool(op: Ops, x: Tensor) -> Evaluation:
    """y = the mean over all spatial positions."""

    def global_average_pool_pullback(m: Tensor) -> Tensor:
        return op.Mul(m, 1.0 / math.prod(x.shape[2:]))

    return op.GlobalAveragePool(x), global_average_pool_pullback
