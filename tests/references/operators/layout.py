"""What moves numbers and computes none, for the float64 interpreter, on torch."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from tests.references.by_onnx import by_onnx, wide
from tests.references.operators.windows import padded

T = torch.Tensor


def _constant(value: Any) -> T:
    """A Constant's one attribute: a tensor, a number, or a list of numbers."""
    return wide(numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value))


def scatter_elements(x: T, index: T, updates: T, *, axis: int = 0, reduction: bytes = b"none") -> T:
    index = torch.where(index < 0, index + x.shape[axis], index)
    if reduction == b"none":
        return x.scatter(axis, index, updates)
    names = {b"add": "sum", b"mul": "prod", b"max": "amax", b"min": "amin"}
    return x.scatter_reduce(axis, index, updates, names[reduction])


def slice_(x: T, starts: T, ends: T, axes: T | None = None, steps: T | None = None) -> T:
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        stop = None if int(step) < 0 and int(end) < -(2**30) else int(end)
        index = list(range(*slice(int(start), stop, int(step)).indices(x.shape[int(axis)])))
        x = x.index_select(int(axis), torch.tensor(index, dtype=torch.int64))
    return x


def reshape(x: T, shape: T, *, allowzero: int = 0) -> T:
    target = [x.shape[i] if s == 0 and not allowzero else int(s) for i, s in enumerate(shape.tolist())]
    return x.reshape(target)


def pad(x: T, pads: T, value: T | None = None, axes: T | None = None, *, mode: bytes = b"constant") -> T:
    chosen = [int(a) % x.ndim for a in axes] if axes is not None else list(range(x.ndim))
    pairs = [(0, 0)] * x.ndim
    for i, axis in enumerate(chosen):
        pairs[axis] = int(pads[i]), int(pads[len(chosen) + i])
    if mode != b"constant":
        inner = tuple(slice(max(-b, 0), n - max(-e, 0)) for n, (b, e) in zip(x.shape, pairs, strict=True))
        border = [(max(b, 0), max(e, 0)) for b, e in pairs]
        return torch.from_numpy(np.pad(x.numpy()[inner], border, mode=mode.decode()))
    return padded(x, pairs, 0.0 if value is None else float(value))


def split(x: T, sizes: T | None = None, *, axis: int = 0, num_outputs: int | None = None) -> tuple[T, ...]:
    if sizes is None:
        return torch.split(x, -(-x.shape[axis] // int(num_outputs or 1)), axis)
    return torch.split(x, [int(s) for s in sizes], axis)


def squeeze(x: T, axes: T | None = None) -> T:
    chosen = [i for i, n in enumerate(x.shape) if n == 1] if axes is None else [int(a) % x.ndim for a in axes]
    return x.reshape([n for i, n in enumerate(x.shape) if i not in chosen])


def unsqueeze(x: T, axes: T | list[int]) -> T:
    rank = x.ndim + len(axes)
    for axis in sorted(int(a) % rank for a in axes):
        x = x.unsqueeze(axis)
    return x


def gather(x: T, index: T, *, axis: int = 0) -> T:
    axis = axis % x.ndim
    index = torch.where(index < 0, index + x.shape[axis], index)
    elements = x.index_select(axis, index.reshape(-1))
    return elements.reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])


def depth_to_space(x: T, *, blocksize: int, mode: bytes = b"DCR") -> T:
    """Blocks of channels become blocks of the plane; DCR: the channel varies fastest."""
    n, c, h, w = x.shape
    b = blocksize
    if mode == b"CRD":
        blocks = x.reshape(n, c // b**2, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    else:
        blocks = x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(n, c // b**2, h * b, w * b)


def resize(x: T, *operands: T | None, **attributes: Any) -> T:
    """By whole factors, each value a block of its own; else as the onnx package defines it."""
    if "axes" in attributes:
        attributes["axes"] = [a % x.ndim for a in attributes["axes"]]
    if len(operands) == 1:  # before opset 11
        corners = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
        return resize(x, None, *operands, **attributes, **corners)
    plain = {"mode": b"nearest", "coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
    scales = operands[1] if len(operands) == 2 else None
    if attributes != plain or scales is None or any(float(s) != int(s) for s in scales):
        return by_onnx("Resize", x, *operands, **attributes)[0]
    for axis, times in enumerate(scales):
        x = x.repeat_interleave(int(times), axis)
    return x


LAYOUT: dict[str, Callable[..., Any]] = {
    "Concat": lambda *xs, axis: torch.cat(xs, axis),
    "Constant": lambda **value: _constant(*value.values()),
    "ConstantOfShape": lambda shape, value=None: (
        torch.zeros([int(n) for n in shape], dtype=torch.float64)
        if value is None
        else _constant(value).expand([int(n) for n in shape]).clone()
    ),
    "DepthToSpace": depth_to_space,
    "Dropout": lambda x, *_, **__: x,
    "Expand": lambda x, shape: x * torch.ones([int(s) for s in shape], dtype=x.dtype),
    "Flatten": lambda x, axis=1: x.reshape(math.prod(x.shape[:axis]), -1),
    "Gather": gather,
    "GatherElements": lambda x, index, axis=0: torch.gather(
        x, axis, torch.where(index < 0, index + x.shape[axis], index)
    ),
    "Identity": lambda x: x,
    "Pad": pad,
    "Range": lambda start, limit, delta: torch.arange(int(start), int(limit), int(delta)),
    "Reshape": reshape,
    "Resize": resize,
    "ScatterElements": scatter_elements,
    "Shape": lambda x, start=0, end=None: torch.tensor(list(x.shape)[start:end], dtype=torch.int64),
    "Slice": slice_,
    "Split": split,
    "Squeeze": squeeze,
    "Transpose": lambda x, perm=None: x.permute(list(perm) if perm else list(reversed(range(x.ndim)))),
    "Unsqueeze": unsqueeze,
    "Upsample": resize,
    "Where": torch.where,
}
