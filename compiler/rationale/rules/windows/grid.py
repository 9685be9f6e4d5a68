"""Sampling at computed positions: a grid of them, and the values of a plane there."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules.moving.indexing import zeros
from rationale.rules.moving.shape import ints
from rationale.rules.rule import Evaluation, Kind, Trait, rule


@rule("AffineGrid", kind=Kind.BILINEAR)
def affine_grid(op: Ops, theta: Tensor, size: Tensor, *, align_corners: int = 0) -> Evaluation:
    """Compute y = θ·(position, 1) for each position of a plane or a volume."""
    lengths = ints(size, "AffineGrid sizes")[2:]
    positions = op.constant(_positions(lengths, bool(align_corners)).astype(theta.dtype.numpy()))
    n, d, _ = theta.shape

    def affine_grid_pullback(m: Tensor) -> Tensor:
        flat = op.reshape(m, (n, math.prod(lengths), d))
        return op.MatMul(op.Transpose(flat, perm=[0, 2, 1]), positions)

    flat = op.MatMul(positions, op.Transpose(theta, perm=[0, 2, 1]))
    return op.reshape(flat, (n, *lengths, d)), (affine_grid_pullback, None)


def _positions(lengths: list[int], align_corners: bool) -> np.ndarray:
    """Return x, y (, z) and 1 for each position, from −1 to 1: [positions, d + 1]."""
    axes = []
    for length in lengths:
        steps = np.arange(length)
        ends = 2 * steps / max(length - 1, 1) - 1 if length > 1 else np.zeros(1)
        axes.append(ends if align_corners else (2 * steps + 1) / length - 1)
    grid = np.meshgrid(*axes, indexing="ij")
    return np.stack([*(g.reshape(-1) for g in reversed(grid)), np.ones(grid[0].size)], axis=1)


@dataclass(frozen=True)
class Sampling:
    """The way in which GridSample reads a plane (or volume) of `size` at positions from −1 to 1."""

    size: tuple[int, ...]
    mode: str
    padding: str
    corners: bool

    @property
    def taps(self) -> tuple[int, ...]:
        """The neighbours to read along an axis, counted from the one at or before the position."""
        return {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}[self.mode]

    def scale(self, axis: int) -> float:
        """Return the pixels per unit of the grid."""
        return (self.size[axis] - 1 if self.corners else self.size[axis]) / 2

    def offset(self, axis: int) -> float:
        """Return the pixel at position 0."""
        return (self.size[axis] - 1) / 2


@dataclass(frozen=True)
class Taps:
    """The neighbours of P positions on an axis: pixels, weights and slopes of each tap, [B, P]."""

    pixels: list[Tensor]
    weights: list[Tensor]
    slopes: list[Tensor]


@rule("GridSample", kind=Kind.LOCAL, traits=[Trait.LINEAR_IN_FIRST])
def grid_sample(
    op: Ops,
    x: Tensor,
    grid: Tensor,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Evaluation:
    """Compute y = Σ w(grid)·x over the neighbours of each position; linear in x."""
    sampling = _sampling(x, mode, padding_mode, align_corners)

    def grid_sample_pullback(m: Tensor) -> Tensor:
        return _spread(op, m, _all_taps(op, grid, sampling), x.shape)

    def grid_sample_pullback_grid(m: Tensor) -> Tensor:
        return op.reshape(_slope(op, m, x, _all_taps(op, grid, sampling), sampling), grid.shape)

    y = op.GridSample(x, grid, align_corners=align_corners, mode=mode, padding_mode=padding_mode)
    return y, (grid_sample_pullback, grid_sample_pullback_grid)


_ROUNDINGS = 16  # relative to the largest value: rounding of places, weights and sums


@grid_sample.deeplift
def grid_sample_multiplier(
    op: Ops, m: Tensor, xs: list[Tensor], rs: list[Tensor], y: Tensor, y_r: Tensor, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Return multipliers: values at both grids in equal parts, coordinates by Shapley values.

    y is linear in x: the grid contributes m·(S(x̄, grid) − S(x̄, grid_r)) with the mean x̄ of x and r, at
    each place a function of two or three coordinates.
    """
    (x, grid), (r, grid_r) = xs, rs
    sampling = _sampling(x, **options)
    to_x = _spread(op, m, _all_taps(op, grid, sampling), x.shape)
    if grid.value is grid_r.value:
        return to_x, None
    to_r = _spread(op, m, _all_taps(op, grid_r, sampling), x.shape)
    middle = op.Mul(op.Add(x, r), 0.5)
    slope = op.reshape(_slope(op, m, middle, _all_taps(op, grid, sampling), sampling), grid.shape)

    def summed(answer: Tensor) -> Tensor:
        return op.reshape(op.ReduceSum(answer, [1], keepdims=0), (*grid.shape[:-1], 1))

    def sample(positions: Tensor) -> Tensor:
        return summed(op.Mul(m, op.GridSample(middle, positions, **options)))

    contribution = _shapley(op, sample, grid, grid_r)
    largest = op.ReduceMax(op.Abs(middle), list(range(2, middle.rank)), keepdims=1)
    size = summed(op.Mul(op.Abs(m), largest))
    return op.Mul(op.Add(to_x, to_r), 0.5), _quotient(op, contribution, op.Sub(grid, grid_r), slope, size)


def _quotient(op: Ops, contribution: Tensor, d: Tensor, slope: Tensor, size: Tensor) -> Tensor:
    """Return contribution/d; the slope if slope·d equals the contribution within rounding, as at d = 0."""
    rounding = op.Mul(size, _ROUNDINGS * float(np.finfo(d.dtype.numpy()).eps))
    near = op.LessOrEqual(op.Abs(op.Sub(contribution, op.Mul(slope, d))), rounding)
    return op.Where(near, slope, op.Div(contribution, op.Where(near, 1.0, d)))


def _shapley(op: Ops, sample: Callable[[Tensor], Tensor], grid: Tensor, grid_r: Tensor) -> Tensor:
    """Return each coordinate's contribution to `sample`, averaged over the orders in which they change."""
    axis, n = grid.rank - 1, grid.shape[-1]
    parts = [[op.Slice(g, [j], [j + 1], [axis]) for j in range(n)] for g in (grid_r, grid)]
    values = {
        choice: sample(op.Concat(*(parts[c][j] for j, c in enumerate(choice)), axis=axis))
        for choice in itertools.product((0, 1), repeat=n)
    }
    shares = []
    for j in range(n):
        share = None
        for chosen, value in values.items():
            if not chosen[j]:
                continue
            without = tuple(0 if i == j else c for i, c in enumerate(chosen))
            before = sum(without)
            weight = math.factorial(before) * math.factorial(n - before - 1) / math.factorial(n)
            added = op.Mul(op.Sub(value, values[without]), weight)
            share = added if share is None else op.Add(share, added)
        shares.append(share)
    return op.Concat(*shares, axis=axis)


def _sampling(
    x: Tensor, mode: str = "linear", padding_mode: str = "zeros", align_corners: int = 0
) -> Sampling:
    names = {"bilinear": "linear", "bicubic": "cubic"}
    return Sampling(x.shape[2:], names.get(mode, mode), padding_mode, bool(align_corners))


def _all_taps(op: Ops, grid: Tensor, sampling: Sampling) -> list[Taps]:
    """Return the taps of each axis of the plane; the grid's last coordinate belongs to the first axis."""
    n, count = len(sampling.size), math.prod(grid.shape[1:-1])
    flat = op.reshape(grid, (grid.shape[0], count, n))
    return [_taps(op, flat, axis, n - 1 - axis, sampling) for axis in range(n)]


def _taps(op: Ops, grid: Tensor, axis: int, coordinate: int, sampling: Sampling) -> Taps:
    values = op.Slice(grid, [coordinate], [coordinate + 1], [2])
    position = op.Add(
        op.Mul(op.reshape(values, values.shape[:2]), sampling.scale(axis)), sampling.offset(axis)
    )
    first = op.Round(position) if sampling.mode == "nearest" else op.Floor(position)
    t = op.Sub(position, first)
    pixels, weights, slopes = [], [], []
    for tap in sampling.taps:
        pixel = op.Cast(op.Add(first, float(tap)), to=onnx.TensorProto.INT64)
        inside, pixel = _pad_pixels(op, pixel, sampling.size[axis], sampling)
        weight, slope = _weight(op, t, tap, sampling.mode)
        if inside is not None:
            weight, slope = (op.Where(inside, v, 0.0) for v in (weight, slope))
        pixels.append(pixel)
        weights.append(weight)
        slopes.append(op.Mul(slope, sampling.scale(axis)))
    return Taps(pixels, weights, slopes)


def _pad_pixels(op: Ops, pixel: Tensor, size: int, sampling: Sampling) -> tuple[Tensor | None, Tensor]:
    """Return the pixels to read for pixels beyond the border; with zero padding, a mask of those inside."""
    zero, last = (op.constant(np.asarray(i, np.int64)) for i in (0, size - 1))
    if sampling.padding == "reflection" and size > 1:
        period = 2 * (size - 1) if sampling.corners else 2 * size
        turn = op.constant(np.asarray(period if sampling.corners else period - 1, np.int64))
        folded = op.Mod(pixel, op.constant(np.asarray(period, np.int64)))
        return None, op.Min(folded, op.Sub(turn, folded))
    within = op.Min(op.Max(pixel, zero), last)
    return (op.Equal(pixel, within) if sampling.padding == "zeros" else None), within


_SHARPNESS = -0.75  # of Keys' cubic convolution, as in ONNX


def _weight(op: Ops, t: Tensor, tap: int, mode: str) -> tuple[Tensor, Tensor]:
    """Return the weight of a neighbour at t − tap, and its slope in t."""
    if mode == "nearest":
        return op.Add(op.Mul(t, 0.0), 1.0), op.Mul(t, 0.0)
    if mode == "linear":
        ones = op.Add(op.Mul(t, 0.0), 1.0)
        return (t, ones) if tap else (op.Sub(1.0, t), op.Neg(ones))
    a, sign = _SHARPNESS, -1.0 if tap > 0 else 1.0
    d = op.Mul(op.Sub(t, float(tap)), sign)  # the distance
    cubic = (a + 2, -(a + 3), 0.0, 1.0) if tap in (0, 1) else (a, -5 * a, 8 * a, -4 * a)
    slope = (3 * cubic[0], 2 * cubic[1], cubic[2])
    return _polynomial(op, d, cubic), op.Mul(_polynomial(op, d, slope), sign)


def _polynomial(op: Ops, d: Tensor, factors: Sequence[float]) -> Tensor:
    """Evaluate a polynomial by Horner's method, highest power first."""
    value = op.Mul(d, factors[0])
    for factor in factors[1:-1]:
        value = op.Mul(op.Add(value, factor), d)
    return op.Add(value, factors[-1])


def _combine_taps(
    op: Ops, taps: list[Taps], size: Sequence[int], slope_of: int | None
) -> tuple[Tensor, Tensor]:
    """Return indices and weights of all choices of a tap per axis, concatenated: [B, 1, taps·P]."""
    indices, weights = [], []
    for choice in itertools.product(*(range(len(t.pixels)) for t in taps)):
        index, weight = taps[0].pixels[choice[0]], _factor(taps, choice, 0, slope_of)
        for axis in range(1, len(taps)):
            length = op.constant(np.asarray(size[axis], np.int64))
            index = op.Add(op.Mul(index, length), taps[axis].pixels[choice[axis]])
            weight = op.Mul(weight, _factor(taps, choice, axis, slope_of))
        indices.append(index)
        weights.append(weight)
    joined = [op.Concat(*parts, axis=1) if len(parts) > 1 else parts[0] for parts in (indices, weights)]
    return op.reshape(joined[0], _in_line(joined[0])), op.reshape(joined[1], _in_line(joined[1]))


def _factor(taps: list[Taps], choice: tuple[int, ...], axis: int, slope_of: int | None) -> Tensor:
    return (taps[axis].slopes if axis == slope_of else taps[axis].weights)[choice[axis]]


def _in_line(x: Tensor) -> tuple[int, int, int]:
    return x.shape[0], 1, x.shape[1]


def _spread(op: Ops, m: Tensor, taps: list[Taps], shape: tuple[int, ...]) -> Tensor:
    """Compute the adjoint in x: send each position's m to its neighbours, by their weights."""
    b, channels, *size = shape
    index, weight = _combine_taps(op, taps, size, None)
    flat_m = op.reshape(m, (b, channels, math.prod(m.shape[2:])))
    copies = index.shape[2] // flat_m.shape[2]
    repeated_m = op.Concat(*[flat_m] * copies, axis=2) if copies > 1 else flat_m
    weighted = op.Mul(repeated_m, weight)
    positions = op.expand(index, weighted.shape)
    plane = zeros(op, (b, channels, math.prod(size)), m)
    return op.reshape(op.ScatterElements(plane, positions, weighted, axis=2, reduction="add"), shape)


def _slope(op: Ops, m: Tensor, x: Tensor, taps: list[Taps], sampling: Sampling) -> Tensor:
    """Return m·dy/d(grid), summed over the channels: [B, P, axes]."""
    b, channels, *size = x.shape
    count = math.prod(m.shape[2:])
    flat_m = op.reshape(m, (b, channels, count))
    plane = op.reshape(x, (b, channels, math.prod(size)))
    parts = []
    for axis in reversed(range(len(size))):
        index, weight = _combine_taps(op, taps, size, axis)
        neighbours = op.GatherElements(plane, op.expand(index, (b, channels, index.shape[2])), axis=2)
        copies = index.shape[2] // count
        by_tap = op.reshape(op.Mul(neighbours, weight), (b, channels, copies, count))
        slope = op.Mul(op.ReduceSum(by_tap, [2], keepdims=0), flat_m)
        parts.append(op.reshape(op.ReduceSum(slope, [1], keepdims=0), (b, count, 1)))
    return op.Concat(*parts, axis=2)
