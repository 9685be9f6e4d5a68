"""Convolutions and pools, by windows: part of the float64 interpreter, on torch."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

T = torch.Tensor


def _pads(pads: Sequence[int] | None, n: int) -> list[tuple[int, int]]:
    p = list(pads or [0] * 2 * n)
    return list(zip(p[:n], p[n:], strict=True))


def padded(x: T, pads: Sequence[tuple[int, int]], value: float) -> T:
    return F.pad(x, [p for pair in reversed(pads) for p in pair], value=value)


def _auto_pads(
    auto_pad: bytes, pads: Any, size: Sequence[int], window: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    if auto_pad in (b"SAME_UPPER", b"SAME_LOWER"):
        totals = [max((-(-n // s) - 1) * s + w - n, 0) for n, w, s in zip(size, window, strides, strict=True)]
        pairs = [(t // 2, t - t // 2) for t in totals]
        return pairs if auto_pad == b"SAME_UPPER" else [(b, a) for a, b in pairs]
    return _pads(pads, len(size))


def conv(
    x: T,
    w: T,
    b: T | None = None,
    *,
    auto_pad: bytes = b"NOTSET",
    dilations: Any = None,
    group: int = 1,
    kernel_shape: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> T:
    n = x.ndim - 2
    strides, dilations = list(strides or [1] * n), list(dilations or [1] * n)
    window = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    x = padded(x, _auto_pads(auto_pad, pads, x.shape[2:], window, strides), 0.0)
    if group > 1 and w.shape[1] == 1:
        y = _conv_by_channel(x, w, strides, dilations)
        return y if b is None else y + b.reshape(-1, *[1] * n)
    return (F.conv1d, F.conv2d, F.conv3d)[n - 1](x, w, b, strides, 0, dilations, group)


def _conv_by_channel(x: T, w: T, strides: Sequence[int], dilations: Sequence[int]) -> T:
    """One input channel of x [N, C, …] for each output channel: torch calls a kernel for each in float64."""
    x = x.repeat_interleave(len(w) // x.shape[1], 1)
    window = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    lengths = [(n - k) // s + 1 for n, k, s in zip(x.shape[2:], window, strides, strict=True)]
    y = x.new_zeros(*x.shape[:2], *lengths)
    for place in itertools.product(*map(range, w.shape[2:])):
        starts = [i * d for i, d in zip(place, dilations, strict=True)]
        read = [slice(a, a + (n - 1) * s + 1, s) for a, n, s in zip(starts, lengths, strides, strict=True)]
        y += x[:, :, *read] * w[:, 0, *place].reshape(-1, *[1] * len(place))
    return y


def conv_transpose(
    x: T,
    w: T,
    b: T | None = None,
    *,
    auto_pad: bytes = b"NOTSET",
    dilations: Any = None,
    group: int = 1,
    kernel_shape: Any = None,
    output_padding: Any = None,
    output_shape: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> T:
    n = x.ndim - 2
    strides, dilations = list(strides or [1] * n), list(dilations or [1] * n)
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n - 1]
    full = function(x, w, None, strides, 0, 0, group, dilations)
    full = padded(full, [(0, e) for e in output_padding or [0] * n], 0.0)  # no window reaches there
    pairs = _pads(pads, n)
    if output_shape is not None or auto_pad.startswith(b"SAME"):
        sizes = output_shape or [i * s for i, s in zip(x.shape[2:], strides, strict=True)]
        cut = [a - b for a, b in zip(full.shape[2:], sizes, strict=True)]
        pairs = [(c // 2, c - c // 2) if auto_pad == b"SAME_UPPER" else (c - c // 2, c // 2) for c in cut]
    for i, (begin, end) in enumerate(pairs):
        full = full.narrow(2 + i, begin, full.shape[2 + i] - begin - end)
    return full if b is None else full + b.reshape([-1, *[1] * n])


def _windows(x: T, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> T:
    """[…, out…, k…] by indexing: the slow, obvious way."""
    for i, (k, s, d) in enumerate(zip(kernel, strides, dilations, strict=True)):
        axis = 2 + i
        out = (x.shape[axis] - (k - 1) * d - 1) // s + 1
        index = (torch.arange(out)[:, None] * s + torch.arange(k) * d).reshape(-1)
        x = x.index_select(axis, index).unflatten(axis, (out, k)).movedim(axis + 1, -1)
    return x


def _pool_geometry(
    x: T, kernel: Sequence[int], auto_pad: bytes, ceil_mode: int, dilations: Any, pads: Any, strides: Any
) -> tuple[list[int], list[int], list[tuple[int, int]], list[tuple[int, int]]]:
    """Strides, dilations, the paddings, and what ceil_mode adds behind them."""
    n = len(kernel)
    strides, dilations = list(strides or [1] * n), list(dilations or [1] * n)
    window = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pairs = _auto_pads(auto_pad, pads, x.shape[2:], window, strides)
    extra = []
    for size, w, s, (begin, end) in zip(x.shape[2:], window, strides, pairs, strict=True):
        free = size + begin + end - w
        out = -(-free // s) + 1 if ceil_mode else free // s + 1
        if ceil_mode and (out - 1) * s >= size + begin:
            out -= 1
        extra.append((0, max((out - 1) * s - free, 0)))
    return strides, dilations, pairs, extra


def max_pool(
    x: T,
    *,
    kernel_shape: Any,
    auto_pad: bytes = b"NOTSET",
    ceil_mode: int = 0,
    dilations: Any = None,
    pads: Any = None,
    storage_order: int = 0,
    strides: Any = None,
) -> tuple[T, T]:
    strides, dilations, pairs, extra = _pool_geometry(
        x, kernel_shape, auto_pad, ceil_mode, dilations, pads, strides
    )
    flat = torch.arange(x.numel()).reshape(x.shape)
    n = len(kernel_shape)
    framed = padded(padded(x, pairs, -math.inf), extra, -math.inf)
    numbers = _windows(framed, kernel_shape, strides, dilations).flatten(-n)
    places = _windows(padded(padded(flat, pairs, -1), extra, -1), kernel_shape, strides, dilations).flatten(
        -n
    )
    best = numbers.amax(-1)
    first = (numbers == best[..., None]).to(torch.int8).argmax(-1, keepdim=True)
    return best, places.gather(-1, first)[..., 0]


def average_pool(
    x: T,
    *,
    kernel_shape: Any,
    auto_pad: bytes = b"NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> T:
    strides, dilations, pairs, extra = _pool_geometry(
        x, kernel_shape, auto_pad, ceil_mode, dilations, pads, strides
    )
    ones = torch.ones_like(x)
    n = len(kernel_shape)
    counted = padded(padded(ones, pairs, float(count_include_pad)), extra, 0.0)
    framed = padded(padded(x, pairs, 0.0), extra, 0.0)
    total = _windows(framed, kernel_shape, strides, dilations).flatten(-n).sum(-1)
    return total / _windows(counted, kernel_shape, strides, dilations).flatten(-n).sum(-1)


def lp_pool(
    x: T,
    *,
    kernel_shape: Any,
    p: int = 2,
    auto_pad: bytes = b"NOTSET",
    ceil_mode: int = 0,
    dilations: Any = None,
    pads: Any = None,
    strides: Any = None,
) -> T:
    strides, dilations, pairs, extra = _pool_geometry(
        x, kernel_shape, auto_pad, ceil_mode, dilations, pads, strides
    )
    framed = padded(padded(x, pairs, 0.0), extra, 0.0).abs() ** p
    return _windows(framed, kernel_shape, strides, dilations).flatten(-len(kernel_shape)).sum(-1) ** (1 / p)


WINDOWS: dict[str, Callable[..., Any]] = {
    "AveragePool": average_pool,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "GlobalAveragePool": lambda x: x.mean(list(range(2, x.ndim)), keepdim=True),
    "GlobalMaxPool": lambda x: x.amax(list(range(2, x.ndim)), keepdim=True),
    "LpPool": lp_pool,
    "MaxPool": max_pool,
}
