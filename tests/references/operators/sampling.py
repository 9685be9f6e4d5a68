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
    """Tap by tap; all channels, rows and places at once."""
    taps = [divmod(i, w.shape[3]) for i in range(w.shape[2] * w.shape[3])]
    apart = offset.reshape(len(x), offset_group, len(taps), 2, *offset.shape[2:])
    open_ = torch.ones_like(apart[:, :, :, 0]) if mask is None else mask.reshape(apart[:, :, :, 0].shape)
    y = x.new_zeros(len(x), group, len(w) // group, *offset.shape[2:])
    planes = x.reshape(len(x), offset_group, -1, *x.shape[2:])
    down, across = (
        torch.arange(n, dtype=x.dtype) * s - p for n, s, p in zip(y.shape[3:], strides, pads, strict=False)
    )
    for t, (k, q) in enumerate(taps):
        row = down[:, None] + k * dilations[0] + apart[:, :, t, 0]
        column = across + q * dilations[1] + apart[:, :, t, 1]
        pixels = open_[:, :, None, t] * _pixels(planes, row, column)
        weights = w[:, :, k, q].reshape(group, -1, w.shape[1])
        y += torch.einsum(
            "gmc,ngchw->ngmhw", weights, pixels.reshape(len(x), group, w.shape[1], *y.shape[3:])
        )
    y = y.flatten(1, 2)
    return y if b is None else y + b.reshape(-1, 1, 1)


def _pixels(planes: T, row: T, column: T) -> T:
    """Return planes [N, G, C, H, W] at the points [N, G, h, w]: bilinear between four pixels, 0 outside."""
    n, g = torch.arange(len(planes))[:, None, None, None], torch.arange(planes.shape[1])[:, None, None]
    total: T | float = 0.0
    for a, b in itertools.product((0, 1), repeat=2):
        i, j = row.floor().long() + a, column.floor().long() + b
        inside = (i >= 0) & (i < planes.shape[3]) & (j >= 0) & (j < planes.shape[4])
        pixel = planes[n, g, :, i.clamp(0, planes.shape[3] - 1), j.clamp(0, planes.shape[4] - 1)]
        weight = torch.where(inside, (1 - (row - i).abs()) * (1 - (column - j).abs()), 0.0)
        total += weight[:, :, None] * pixel.movedim(-1, 2)
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
