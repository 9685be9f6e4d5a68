"""Resampling on a known grid: linear in x, a product with a matrix along each axis."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rationale.errors import UnsupportedModelError
from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules.moving.shape import ints
from rationale.rules.rule import Evaluation, Kind, rule

CROP = "tf_crop_and_resize"


@dataclass(frozen=True)
class Resampling:
    """The parameters of a Resize along its axes: sizes, or scales.

    Attributes:
        roi: the part of each axis that is resampled, from 0 to 1; used only with `CROP`.
        aspect: whether all axes share one scale, which then depends on all of their sizes.
    """

    axes: tuple[int, ...]
    sizes: tuple[int, ...] | None
    scales: tuple[float, ...] | None
    roi: tuple[tuple[float, float], ...]
    aspect: bool

    def select(self, indices: Sequence[int]) -> "Resampling":
        """Return the parameters of some of its axes."""
        return Resampling(
            axes=tuple(self.axes[i] for i in indices),
            sizes=None if self.sizes is None else tuple(self.sizes[i] for i in indices),
            scales=None if self.scales is None else tuple(self.scales[i] for i in indices),
            roi=tuple(self.roi[i] for i in indices),
            aspect=False,
        )


@rule("Resize", kind=Kind.BILINEAR)
def resize(
    op: Ops,
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
    *,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    keep_aspect_ratio_policy: str = "stretch",
    **attributes: Any,
) -> Evaluation:
    """Compute y = x resampled, in any mode: a product with a known matrix along each axis."""
    attributes |= {"coordinate_transformation_mode": coordinate_transformation_mode}
    if keep_aspect_ratio_policy != "stretch":
        attributes["keep_aspect_ratio_policy"] = keep_aspect_ratio_policy
    resized_axes = [a % x.rank for a in axes] if axes is not None else list(range(x.rank))
    resampling = _resampling(x, roi, scales, sizes, resized_axes, "keep_aspect_ratio_policy" in attributes)
    if not resampling.aspect:
        resampling = _changing(x, resampling, coordinate_transformation_mode)
    y = _resample(op, x, resampling, attributes) if resampling.axes else op.Identity(x)

    def resize_pullback(m: Tensor) -> Tensor:
        for i, axis in enumerate(resampling.axes):
            m = _along(op, m, axis, _matrix(op, x, resampling, i, attributes))
        return m

    return y, (resize_pullback, None, None, None)


def _resampling(
    x: Tensor,
    roi: Tensor | None,
    scales: Tensor | None,
    sizes: Tensor | None,
    axes: Sequence[int],
    aspect: bool,
) -> Resampling:
    by_scale = scales is not None and math.prod(scales.shape) > 0
    if by_scale and (scales is None or scales.constant is None):
        raise UnsupportedModelError("Resize by computed scales")
    n = len(axes)
    parts = tuple((0.0, 1.0) for _ in axes)
    if roi is not None and roi.constant is not None and roi.constant.size:
        ends = [float(v) for v in roi.constant.reshape(-1)]
        parts = tuple(zip(ends[:n], ends[n:], strict=True))
    return Resampling(
        axes=tuple(axes),
        sizes=None if by_scale else tuple(ints(sizes, "Resize sizes")),
        scales=tuple(float(s) for s in scales.constant.reshape(-1)) if by_scale else None,  # type: ignore[union-attr]
        roi=parts,
        aspect=aspect and not by_scale,
    )


def _changing(x: Tensor, resampling: Resampling, mode: str) -> Resampling:
    """Return the parameters without axes that do not change, such as the batch's."""
    unchanged = [s == x.shape[a] for a, s in zip(resampling.axes, resampling.sizes or (), strict=False)]
    unchanged = [s == 1.0 for s in resampling.scales] if resampling.scales is not None else unchanged
    crops = [mode == CROP and part != (0.0, 1.0) for part in resampling.roi]
    return resampling.select([i for i, s in enumerate(unchanged) if not s or crops[i]])


def _resample(op: Ops, x: Tensor, resampling: Resampling, attributes: Mapping[str, Any]) -> Tensor:
    """Resample by scales of every axis: ONNX Runtime moves a Transpose past a Resize as if it had no `axes`.

    If no scales are equivalent to the sizes, resample by the matrices.
    """
    scales = _scales(x, resampling)
    if scales is not None:
        parts = dict(zip(resampling.axes, resampling.roi, strict=True))
        roi = tuple(parts.get(a, (0.0, 1.0)) for a in range(x.rank))
        return _resize(op, x, Resampling(tuple(range(x.rank)), None, scales, roi, aspect=False), attributes)
    y = x
    for i, axis in enumerate(resampling.axes):
        y = _along(op, y, axis, op.Transpose(_matrix(op, x, resampling, i, attributes), perm=[1, 0]))
    if attributes["coordinate_transformation_mode"] != CROP:
        return y
    zeros = op.constant(np.zeros(x.shape, x.dtype.numpy()))  # values outside of the crop are constant
    return op.Add(y, _resize(op, zeros, resampling, attributes))


def _scales(x: Tensor, resampling: Resampling) -> tuple[float, ...] | None:
    """Return the scale of every axis; None if they round to other sizes or places, or depend on all sizes.

    ONNX's scales are float32: places in float64 are right only for scales that float32 holds exactly.
    """
    if resampling.aspect:
        return None
    lengths = np.asarray([x.shape[a] for a in resampling.axes], np.promote_types(x.dtype.numpy(), np.float32))
    if resampling.sizes is None:
        factors = np.asarray(resampling.scales, np.float32)
    else:
        exact = np.asarray(resampling.sizes, lengths.dtype) / lengths
        factors = exact.astype(np.float32)
        if (factors != exact).any() or tuple((factors * lengths).astype(int)) != resampling.sizes:
            return None
    scales = np.ones(x.rank, np.float32)
    scales[list(resampling.axes)] = factors
    return tuple(float(s) for s in scales)


def _resize(op: Ops, x: Tensor, resampling: Resampling, attributes: Mapping[str, Any]) -> Tensor:
    cropped = attributes["coordinate_transformation_mode"] == CROP
    ends = [begin for begin, _ in resampling.roi] + [end for _, end in resampling.roi]
    roi = op.constant(np.asarray(ends, np.float32)) if cropped else None
    scales = None if resampling.scales is None else op.constant(np.asarray(resampling.scales, np.float32))
    sizes = None if resampling.sizes is None else list(resampling.sizes)
    axes = list(resampling.axes) if len(resampling.axes) < x.rank else None
    return op.Resize(x, roi, scales, sizes, axes=axes, **attributes)


def _matrix(op: Ops, x: Tensor, resampling: Resampling, i: int, attributes: Mapping[str, Any]) -> Tensor:
    """Return the resampled unit vectors of the i-th axis, [size, resampled size], a constant."""
    axis = resampling.axes[i]
    n = x.shape[axis]
    eye = np.eye(n, dtype=x.dtype.numpy())
    if not resampling.aspect:
        basis = op.constant(eye.reshape(n, 1, n, 1))
        resampled = _resize(
            op, basis, replace(resampling.select([i]), axes=(2,)), {**attributes, "extrapolation_value": 0.0}
        )
        return op.reshape(resampled, (n, resampled.shape[2]))
    shape = [n, *(n if a == axis else x.shape[a] if a in resampling.axes else 1 for a in range(x.rank))]
    unit = eye.reshape(n, *(n if a == axis else 1 for a in range(x.rank)))
    basis = op.constant(np.broadcast_to(unit, shape).copy())
    shifted = Resampling(
        tuple(a + 1 for a in resampling.axes), resampling.sizes, None, resampling.roi, aspect=True
    )
    resampled = _resize(op, basis, shifted, attributes)
    other_axes = [a + 1 for a in range(x.rank) if a != axis]
    count = len(other_axes)
    first = op.Slice(resampled, [0] * count, [1] * count, other_axes)  # equal all along the other axes
    return op.reshape(first, (n, first.shape[axis + 1]))


def _along(op: Ops, m: Tensor, axis: int, matrix: Tensor) -> Tensor:
    """Multiply each line of `m` along an axis by the transpose of a matrix [size, m's size]."""
    before, after = m.shape[:axis], m.shape[axis + 1 :]
    if not after:
        return op.MatMul(m, op.Transpose(matrix, perm=[1, 0]))
    planes = op.reshape(m, (math.prod(before), m.shape[axis], math.prod(after)))
    return op.reshape(op.MatMul(matrix, planes), (*before, matrix.shape[0], *after))
