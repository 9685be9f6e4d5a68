"""Convolution and its adjoint."""

import math
from collections.abc import Sequence
from typing import Any

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules.linear.conv_adjoint import Geometry, adjoint
from rationale.rules.linear.conv_varying import conv_of_rows, conv_transpose_of_rows
from rationale.rules.rule import Evaluation, Kind, Weights, rule


def explicit_pads(
    auto_pad: str,
    pads: Sequence[int] | None,
    size: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
) -> list[int]:
    """Return ONNX's [begin…, end…] paddings for an input of spatial `size` and a (dilated) `window`."""
    if auto_pad in ("NOTSET", ""):
        return list(pads) if pads is not None else [0] * (2 * len(size))
    if auto_pad == "VALID":
        return [0] * (2 * len(size))
    totals = [
        max((math.ceil(n / s) - 1) * s + w - n, 0) for n, w, s in zip(size, window, strides, strict=True)
    ]
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return small + large if auto_pad == "SAME_UPPER" else large + small


@rule("Conv", kind=Kind.BILINEAR)
def conv(
    op: Ops,
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Evaluation:
    """Compute y = W ∗ x + b;  the adjoint correlates m with the flipped kernel."""
    kernel, size = w.shape[2:], x.shape[2:]
    strides = list(strides or [1] * len(kernel))
    dilations = list(dilations or [1] * len(kernel))
    window = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = explicit_pads(auto_pad, pads, size, window, strides)
    out = [
        (n + pads[i] + pads[len(kernel) + i] - k) // s + 1
        for i, (n, k, s) in enumerate(zip(size, window, strides, strict=True))
    ]
    geometry = Geometry(
        size=tuple(size),
        out=tuple(out),
        kernel=tuple(kernel),
        strides=tuple(strides),
        dilations=tuple(dilations),
        pads=tuple(pads),
        group=group,
        channels=x.shape[1],
        filters=w.shape[0],
    )
    if w.rows or (b is not None and b.rows):
        return conv_of_rows(op, x, w, b, geometry)

    def conv_pullback(m: Tensor) -> Tensor:
        return adjoint(op, m, w, geometry=geometry)

    y = op.Conv(x, w, b, dilations=dilations, group=group, pads=pads, strides=strides)
    return y, (conv_pullback, None, None)


@conv.layer
def conv_layer(
    op: Ops,
    w: Tensor,
    b: Tensor | None,
    *,
    group: int = 1,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    **_: Any,
) -> Weights:
    """Return W [M, C/g, *k]; it is placewise if it is 1×1 and applied everywhere."""
    ones = [1] * (w.rank - 2)
    bias = None if b is None else op.Reshape(b, [-1, *ones])
    inputs = (1, -1, *ones) if group == 1 else None
    placewise = list(w.shape[2:]) == ones and all(s == 1 for s in strides or ()) and not any(pads or ())
    return Weights(w, bias, axis=1, inputs=inputs, outputs=(-1, 1, *ones), placewise=placewise)


def _transposed_pads(
    auto_pad: str, full: Sequence[int], target_sizes: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the paddings that cut `full` to `target_sizes`, and the lengths to add if it is smaller."""
    totals = [max(a - b, 0) for a, b in zip(full, target_sizes[-len(full) :], strict=True)]
    missing = [max(b - a, 0) for a, b in zip(full, target_sizes[-len(full) :], strict=True)]
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return (small + large if auto_pad == "SAME_UPPER" else large + small), missing


@rule("ConvTranspose", kind=Kind.BILINEAR)
def conv_transpose_rule(
    op: Ops,
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Evaluation:
    """Compute y = Wᵀ ∗ x + b;  its adjoint is a convolution."""
    n = x.rank - 2
    strides, dilations = list(strides or [1] * n), list(dilations or [1] * n)
    added = list(output_padding or [0] * n)
    window = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    full = [(i - 1) * s + k + a for i, s, k, a in zip(x.shape[2:], strides, window, added, strict=True)]
    missing = [0] * n
    if output_shape is not None or auto_pad.startswith("SAME"):
        scaled_sizes = [i * s for i, s in zip(x.shape[2:], strides, strict=True)]
        pads, missing = _transposed_pads(auto_pad, full, list(output_shape or scaled_sizes))
        added = [a + b for a, b in zip(added, missing, strict=True)]
    pads = list(pads or [0] * (2 * n)) if auto_pad != "VALID" or output_shape is not None else [0] * (2 * n)

    if w.rows or (b is not None and b.rows):
        size = (t - pads[i] - pads[n + i] + a for i, (t, a) in enumerate(zip(full, missing, strict=True)))
        geometry = Geometry(
            size=tuple(size),
            out=x.shape[2:],
            kernel=w.shape[2:],
            strides=tuple(strides),
            dilations=tuple(dilations),
            pads=tuple(pads),
            group=group,
            channels=w.shape[1] * group,
            filters=x.shape[1],
        )
        return conv_transpose_of_rows(op, x, w, b, geometry)

    def conv_transpose_pullback(m: Tensor) -> Tensor:
        return op.Conv(m, w, dilations=dilations, group=group, pads=pads, strides=strides)

    y = op.ConvTranspose(
        x,
        w,
        b,
        dilations=dilations,
        group=group,
        output_padding=added if any(added) else None,
        pads=pads,
        strides=strides,
    )
    return y, (conv_transpose_pullback, None, None)


@conv_transpose_rule.layer
def conv_transpose_layer(op: Ops, w: Tensor, b: Tensor | None, *, group: int = 1, **_: Any) -> Weights:
    """Return W [C, M/g, *k]."""
    ones = [1] * (w.rank - 2)
    bias = None if b is None else op.Reshape(b, [-1, *ones])
    return Weights(w, bias, axis=1, inputs=(-1, 1, *ones), outputs=(1, -1, *ones) if group == 1 else None)
