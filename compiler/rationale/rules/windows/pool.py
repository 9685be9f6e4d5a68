"""Pooling: averages are linear, maxima select."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from rationale.errors import UnsupportedModelError
from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.graph.variants import Site, Task
from rationale.rules.linear.conv import explicit_pads
from rationale.rules.linear.conv_adjoint import Geometry, adjoint, repeat_blocks
from rationale.rules.rule import Evaluation, Kind, Selection, Trait, rule


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
    """Compute y = the largest of each window. Windows may overlap: their multipliers are added."""
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
    plane = math.prod(x.shape[2:])
    winners = op.Cast(op.Mod(index, plane), to=onnx.TensorProto.INT32)  # half the memory, a third of the time
    covered = tuple(o * s for o, s in zip(y.shape[2:], strides, strict=True))
    disjoint = all(s >= w for s, w in zip(strides, window, strict=True)) and not any(pads)
    planes = x.shape[0] * x.shape[1]
    tiles = disjoint and covered == x.shape[2:]
    geometry = PoolGeometry((planes, *x.shape[2:]), y.shape[2:], tuple(strides), tiles)

    def scatter(v: Tensor, to: Tensor) -> Tensor:
        merged = (op.reshape(t, (1, planes, *y.shape[2:])) for t in (v, to))
        return op.reshape(send_back(op, *merged, geometry=geometry), x.shape)

    return y, Selection(winners, scatter)


@dataclass(frozen=True)
class PoolGeometry:
    """Shapes of a pool x [C, *size] (`shape`) → y [C, *out]; `tiles`: windows cover x without overlap."""

    shape: tuple[int, ...]
    out: tuple[int, ...]
    strides: tuple[int, ...]
    tiles: bool


send_back = Task("values to a pool's winners")


@send_back.variant("scattered", cost=lambda _: 3.0)
def scatter_planes(op: Ops, v: Tensor, to: Tensor, g: PoolGeometry) -> Tensor:
    """Scatter each plane separately; values of overlapping windows are added."""
    channels, *size = g.shape
    zeros = op.row_constant(np.zeros((1, channels, math.prod(size)), v.dtype.numpy()))
    flat = [op.reshape(t, (1, channels, math.prod(g.out))) for t in (v, to)]
    plane = op.ScatterElements(zeros, flat[1], flat[0], axis=2, reduction="add")
    return op.reshape(plane, (1, *g.shape))


def _unpool_cost(site: Site) -> float:
    # Neither OpenVINO nor TensorRT has MaxUnpool, and ONNX Runtime has it on the CPU only.
    return math.inf if site.deployment.is_portable or site.deployment.provider != "cpu" else 1.0


@send_back.variant("unpooled", fits=lambda g: g.tiles, cost=_unpool_cost)
def unpool(op: Ops, v: Tensor, to: Tensor, g: PoolGeometry) -> Tensor:
    """Scatter by a MaxUnpool, which counts indices through all planes of all rows."""
    channels, *size = g.shape
    plane = math.prod(size)
    v = op.vary(v, to.batch_axes)  # one row of v for each row of winners
    starts = np.arange(channels, dtype=np.int64).reshape(1, channels, *(1 for _ in size)) * plane
    rows = op.Mul(op.row_numbers(v), channels * plane)
    offsets = op.Add(op.reshape(rows, (1, *(1 for _ in g.shape))), op.constant(starts))
    indices = op.Add(op.Cast(to, to=onnx.TensorProto.INT64), offsets)
    return op.MaxUnpool(v, indices, kernel_shape=list(g.strides), strides=list(g.strides))


@rule("AveragePool", kind=Kind.BILINEAR, traits=[Trait.AVERAGING, Trait.SPATIAL_MEAN])
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
    """Compute y = the mean of each window;  the adjoint spreads m/size evenly over the window."""
    n = len(kernel_shape)
    strides, dilations = list(strides or [1] * n), list(dilations or [1] * n)
    window = [(k - 1) * d + 1 for k, d in zip(kernel_shape, dilations, strict=True)]
    size, channels = x.shape[2:], x.shape[1]
    pads = explicit_pads(auto_pad, pads, size, window, strides)
    attributes: dict[str, Any] = {
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
        weight = 1 / np.maximum(_counts(attributes, size, y.shape[2:]), 1)
        kernel = np.ones((channels, 1, *kernel_shape), dtype)
        spread = op.Mul(m, op.constant(weight.astype(dtype)))
        covered = tuple(k * o for k, o in zip(strides, m.shape[2:], strict=True))
        if list(kernel_shape) == strides and covered == size and not any(pads):
            return repeat_blocks(op, spread, strides)
        geometry = Geometry(
            size=tuple(size),
            out=m.shape[2:],
            kernel=tuple(kernel_shape),
            strides=tuple(strides),
            dilations=tuple(dilations),
            pads=tuple(pads),
            group=channels,
            channels=channels,
            filters=channels,
        )
        return adjoint(op, spread, op.constant(kernel), geometry=geometry)

    return y, average_pool_pullback


def _counts(attributes: Mapping[str, Any], size: Sequence[int], out: Sequence[int]) -> np.ndarray:
    """Return each window's divisor: the number of values in it, with padding if that counts."""
    counts, n = np.ones((1, 1)), len(size)
    for i in range(n):
        kernel, stride, dilation, before = (
            attributes[key][i] for key in ("kernel_shape", "strides", "dilations", "pads")
        )
        after = attributes["pads"][n + i]
        low, high = (-before, size[i] + after) if attributes["count_include_pad"] else (0, size[i])
        taps = (np.arange(out[i]) * stride - before)[:, None] + np.arange(kernel) * dilation
        counts = counts[..., None] * ((taps >= low) & (taps < high)).sum(axis=1)
    return counts


@rule("GlobalAveragePool", kind=Kind.BILINEAR, traits=[Trait.AVERAGING, Trait.SPATIAL_MEAN])
def global_average_pool(op: Ops, x: Tensor) -> Evaluation:
    """Compute y = the mean over all spatial positions."""

    def global_average_pool_pullback(m: Tensor) -> Tensor:
        return op.Mul(m, 1.0 / math.prod(x.shape[2:]))

    return op.GlobalAveragePool(x), global_average_pool_pullback


@rule("MaxUnpool", kind=Kind.BILINEAR, traits=[Trait.MOVING])
def max_unpool(
    op: Ops,
    x: Tensor,
    indices: Tensor,
    output_shape: Tensor | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Evaluation:
    """Compute y = zeros with x at the indices of MaxPool's winners, which count through the whole row."""
    n = len(kernel_shape)
    strides, pads = list(strides or [1] * n), list(pads or [0] * 2 * n)
    size = [
        (length - 1) * s - pads[i] - pads[n + i] + k
        for i, (length, s, k) in enumerate(zip(x.shape[2:], strides, kernel_shape, strict=True))
    ]
    if output_shape is not None:
        raise UnsupportedModelError("MaxUnpool to a computed shape")
    shape = (*x.shape[:2], *size)
    count, total = math.prod(x.shape), math.prod(shape)
    flat = op.Mod(op.reshape(indices, (1, count)), op.constant(np.asarray(total, np.int64)))  # within its row

    def max_unpool_pullback(m: Tensor) -> Tensor:
        return op.reshape(op.GatherElements(op.reshape(m, (1, total)), flat, axis=1), x.shape)

    zeros = op.row_constant(np.zeros((1, total), x.dtype.numpy()))
    y = op.ScatterElements(zeros, flat, op.reshape(x, (1, count)), axis=1)
    return op.reshape(y, shape), (max_unpool_pullback, None, None)
