"""Operators that read their input through windows, in terms of others."""

from typing import Any

import numpy as np
import onnx_ir as ir

from rationale.errors import UnsupportedModelError
from rationale.lowering.rewrites.engine import dtype_of, length_of, rewrites


@rewrites("STFT")
def stft(
    op: Any,
    signal: ir.Value,
    frame_step: ir.Value,
    window: ir.Value | None = None,
    frame_length: ir.Value | None = None,
    *,
    onesided: int = 1,
) -> Any:
    """Return the DFT of each frame of the signal, times the window."""
    step = frame_step.const_value
    length = frame_length.const_value if frame_length is not None else None
    if step is None or (frame_length is not None and length is None):
        raise UnsupportedModelError("STFT with a computed step or length")
    if length is not None:
        size = int(length.numpy().item())
    elif window is not None:
        size = length_of(window, 0)
    else:
        raise UnsupportedModelError("STFT needs a window or a frame length")
    stride, parts = int(step.numpy().item()), length_of(signal, 2)
    count = (length_of(signal, 1) - size) // stride + 1
    positions = np.arange(count)[:, None] * stride + np.arange(size)
    frames = op.Gather(signal, positions, axis=1)  # [N, frames, size, 1 or 2]
    if window is not None:
        frames = op.Mul(frames, op.Unsqueeze(window, [1]))
    return op.DFT(frames, None, np.asarray(2, np.int64), onesided=onesided if parts == 1 else 0)


def _as_grid(op: Any, positions: ir.Value, size: int) -> Any:
    """Return pixel positions in GridSample's coordinates, from −1 to 1 over all pixels of the axis."""
    return op.Add(op.Mul(positions, 2.0 / size), 1.0 / size - 1.0)


@rewrites("DeformConv")
def deform_conv(
    op: Any,
    x: ir.Value,
    w: ir.Value,
    offset: ir.Value,
    b: ir.Value | None = None,
    mask: ir.Value | None = None,
    *,
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    offset_group: int = 1,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Any:
    """Multiply the weights by the values that GridSample reads at each tap's position plus its offset."""
    channels, height, width = (length_of(x, axis) for axis in (1, 2, 3))
    filters = length_of(w, 0)
    kernel = kernel_shape or [length_of(w, axis) for axis in (2, 3)]
    out = [length_of(offset, axis) for axis in (2, 3)]
    taps, count = kernel[0] * kernel[1], out[0] * out[1]
    base = _tap_positions(kernel, out, strides or [1, 1], dilations or [1, 1], pads or [0] * 4)
    positions = op.Reshape(offset, [-1, taps, 2, *out])
    positions = op.Add(op.Transpose(positions, perm=[0, 1, 3, 4, 2]), base.astype(dtype_of(x).numpy()))
    rows, columns = (op.Gather(positions, [i], axis=4) for i in (0, 1))
    grid = op.Concat(_as_grid(op, columns, width), _as_grid(op, rows, height), axis=4)
    plane = op.Reshape(x, [-1, channels // offset_group, height, width])
    samples = op.GridSample(plane, op.Reshape(grid, [-1, taps * out[0], out[1], 2]), align_corners=0)
    if mask is not None:
        samples = op.Mul(samples, op.Reshape(mask, [-1, 1, taps * out[0], out[1]]))
    depth = channels // group * taps
    blocks = op.Reshape(samples, [-1, group, depth, count])
    y = op.MatMul(op.Reshape(w, [group, filters // group, depth]), blocks)
    y = op.Reshape(y, [-1, filters, *out])
    return y if b is None else op.Add(y, op.Reshape(b, [-1, 1, 1]))


def _tap_positions(
    kernel: list[int], out: list[int], strides: list[int], dilations: list[int], pads: list[int]
) -> np.ndarray:
    """Return the row and the column that each tap reads for each output: [1, taps, *out, 2]."""
    lines = [
        np.arange(k)[:, None] * d + np.arange(o) * s - p
        for k, o, s, d, p in zip(kernel, out, strides, dilations, pads[:2], strict=True)
    ]
    shape = (*kernel, *out)
    rows = np.broadcast_to(lines[0][:, None, :, None], shape)
    columns = np.broadcast_to(lines[1][None, :, None, :], shape)
    return np.stack([rows, columns], axis=-1).reshape(1, kernel[0] * kernel[1], *out, 2)


@rewrites("RoiAlign")
def roi_align(
    op: Any,
    x: ir.Value,
    rois: ir.Value,
    rows: ir.Value,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Any:
    """Return the mean, or the largest, of GridSample's samples in each part of each region."""
    if sampling_ratio <= 0:
        raise UnsupportedModelError(
            "RoiAlign with a number of samples that depends on the region: export with a fixed sampling_ratio"
        )
    aligned = coordinate_transformation_mode == "half_pixel"
    scaled = op.Mul(rois, float(spatial_scale))
    ends = op.Sub(scaled, 0.5) if aligned else scaled
    axes = []
    for i, axis, parts in ((1, 2, output_height), (0, 3, output_width)):
        begin, end = (op.Gather(ends, [j], axis=1) for j in (i, i + 2))
        length = op.Sub(end, begin) if aligned else op.Max(op.Sub(end, begin), 1.0)
        steps = (np.arange(parts * sampling_ratio)[None] + 0.5) / (parts * sampling_ratio)
        positions = op.Add(begin, op.Mul(length, steps.astype(dtype_of(x).numpy())))
        axes.append((positions, length_of(x, axis)))
    plane = op.Gather(x, rows, axis=0)
    return (_means if mode == "avg" else _largest)(op, plane, axes, sampling_ratio)


Axis = tuple[ir.Value, int]  # positions along it, and its length


def _inside(op: Any, axes: list[Axis]) -> Any:
    """Return 1 for places at most one pixel beyond the plane, else 0: [R, 1, height, width]."""
    factors = []
    for (positions, size), axis in zip(axes, (2, 1), strict=True):
        above, below = (op.Sign(v) for v in (op.Add(positions, 1.0), op.Sub(float(size), positions)))
        inside = op.Mul(*(op.Clip(op.Add(v, 1.0), 0.0, 1.0) for v in (above, below)))
        factors.append(op.Unsqueeze(inside, [1, axis + 1]))
    return op.Mul(*factors)


def _read(op: Any, plane: ir.Value, axes: list[Axis], mode: str) -> Any:
    """Read every row position crossed with every column position."""
    (rows, height), (columns, width) = axes
    scaled = [(_as_grid(op, columns, width), [1, 3]), (_as_grid(op, rows, height), [2, 3])]
    lines = [op.Unsqueeze(positions, new) for positions, new in scaled]
    nothing = [op.Mul(v, 0.0) for v in lines]
    grid = op.Concat(op.Add(lines[0], nothing[1]), op.Add(lines[1], nothing[0]), axis=3)
    return op.GridSample(plane, grid, padding_mode="border", mode=mode, align_corners=0)


def _means(op: Any, plane: ir.Value, axes: list[Axis], samples: int) -> Any:
    samples_read = op.Mul(_read(op, plane, axes, "linear"), _inside(op, axes))
    return op.AveragePool(samples_read, kernel_shape=[samples] * 2, strides=[samples] * 2)


def _largest(op: Any, plane: ir.Value, axes: list[Axis], samples: int) -> Any:
    """Return the largest of all products of a neighbour and its weight, as ONNX defines it."""
    corners = []
    for positions, size in axes:
        within = op.Clip(positions, 0.0, float(size - 1))
        first = op.Floor(within)
        second = op.Neg(op.Max(op.Neg(op.Add(first, 1.0)), float(1 - size)))
        fraction = op.Sub(within, first)
        corners.append([((first, size), op.Sub(1.0, fraction)), ((second, size), fraction)])
    products = []
    for row, height in corners[0]:
        for column, width in corners[1]:
            weight = op.Mul(op.Unsqueeze(height, [1, 3]), op.Unsqueeze(width, [1, 2]))
            value = op.Mul(_read(op, plane, [row, column], "nearest"), op.Mul(weight, _inside(op, axes)))
            products.append(op.MaxPool(value, kernel_shape=[samples] * 2, strides=[samples] * 2))
    return op.Max(op.Max(products[0], products[1]), op.Max(products[2], products[3]))
