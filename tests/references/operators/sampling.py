"""Operators that read a plane at places of their own, for the float64 interpreter, on torch."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

T = torch.Tensor


def deform_conv(
    x: T,
    w: T,
    offset: T,
    b: T | None = None,
    mask: T | None = None,
    *,
    dilations: Any = (1, 1),
    group: int = 1,
    kernel_shape: Any = None,
    offset_group: int = 1,
    pads: Any = (0, 0, 0, 0),
    strides: Any = (1, 1),
) -> T:
    """Filter by filter, channel by channel and tap by tap, all rows and places at once."""
    channels, filters = x.shape[1] // offset_group, w.shape[0] // group
    taps = [divmod(i, w.shape[3]) for i in range(w.shape[2] * w.shape[3])]
    apart = offset.reshape(len(x), offset_group, len(taps), 2, *offset.shape[2:])
    open_ = torch.ones_like(apart[:, :, :, 0]) if mask is None else mask.reshape(apart[:, :, :, 0].shape)
    y = x.new_zeros(len(x), w.shape[0], *offset.shape[2:])
    down, across = (
        torch.arange(n, dtype=x.dtype) * s - p for n, s, p in zip(y.shape[2:], strides, pads, strict=False)
    )
    for m, c, (t, (k, q)) in itertools.product(range(len(w)), range(w.shape[1]), enumerate(taps)):
        channel = m // filters * w.shape[1] + c
        g = channel // channels
        row = down[:, None] + k * dilations[0] + apart[:, g, t, 0]
        column = across + q * dilations[1] + apart[:, g, t, 1]
        y[:, m] += w[m, c, k, q] * open_[:, g, t] * _pixels(x[:, channel], row, column)
    return y if b is None else y + b.reshape(-1, 1, 1)


def _pixels(plane: T, row: T, column: T) -> T:
    """Of a plane [N, H, W] at places [N, h, w]: between four neighbours, 0 beyond the border."""
    n = torch.arange(len(plane))[:, None, None]
    total = torch.zeros_like(row)
    for a, b in itertools.product((0, 1), repeat=2):
        i, j = row.floor().long() + a, column.floor().long() + b
        inside = (i >= 0) & (i < plane.shape[1]) & (j >= 0) & (j < plane.shape[2])
        pixel = plane[n, i.clamp(0, plane.shape[1] - 1), j.clamp(0, plane.shape[2] - 1)]
        total += torch.where(inside, (1 - (row - i).abs()) * (1 - (column - j).abs()) * pixel, 0.0)
    return total


def grid_sample(
    x: T,
    grid: T,
    *,
    align_corners: int = 0,
    mode: bytes = b"linear",
    padding_mode: bytes = b"zeros",
) -> T:
    name = {b"linear": "bilinear", b"cubic": "bicubic"}.get(mode, mode.decode())
    return F.grid_sample(x, grid, name, padding_mode.decode(), bool(align_corners))


def one_hot(places: T, depth: T, values: T, *, axis: int = -1) -> T:
    every = torch.arange(int(depth))
    spread = places[..., None]  # floats are not rounded, as ONNX Runtime has it
    hot = torch.where((spread == every) | (spread == every - int(depth)), values[1], values[0])
    return hot.movedim(-1, axis)


def max_unpool(x: T, places: T, shape: T | None = None, *, kernel_shape: Any, strides: Any = None) -> T:
    """Windows without padding; places count through the whole output."""
    strides = strides or [1] * len(kernel_shape)
    out = [(n - 1) * s + k for n, s, k in zip(x.shape[2:], strides, kernel_shape, strict=True)]
    out = out if shape is None else [int(n) for n in shape[2:]]
    flat = x.new_zeros(math.prod((*x.shape[:2], *out)))
    flat[places.reshape(-1)] = x.reshape(-1)
    return flat.reshape(*x.shape[:2], *out)


SAMPLING: dict[str, Callable[..., Any]] = {
    "AffineGrid": lambda theta, size, align_corners=0: F.affine_grid(
        theta, [int(s) for s in size], align_corners=bool(align_corners)
    ),
    "DeformConv": deform_conv,
    "GridSample": grid_sample,
    "MaxUnpool": max_unpool,
    "OneHot": one_hot,
}
