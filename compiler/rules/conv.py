"""Convolution and its adjoint."""

import math
from collections.abc import Sequence
from typing import Any

from compiler.errors import UnsupportedModelError
from compiler.graph import Ops
from compiler.rule import Evaluation, Kind, Weights, rule
from compiler.tensor import Tensor


def explicit_pads(
    auto_pad: str,
    pads: Sequence[int] | None,
    size: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
) -> list[int]:
    """ONNX's [begin…, end…] paddings for an input of spatial `size` and a (dilated) `window`."""
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
    """y = W ∗ x + b;  the adjoint correlates m with the flipped kernel."""
    kernel, size = w.shape[2:], x.shape[2:]
    strides = list(strides or [1] * len(kernel))
    dilations = list(dilations or [1] * len(kernel))
    window = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = explicit_pads(auto_pad, pads, size, window, strides)
    if w.rows:
        raise UnsupportedModelError("Conv whose weights vary from row to row")

    def conv_pullback(m: Tensor) -> Tensor:
        if all(s == 1 for s in strides) and all(p < n for p, n in zip(pads, window * 2, strict=True)):
            back = [n - 1 - p for p, n in zip(pads, window * 2, strict=True)]
            return op.Conv(m, flipped(op, w, group), dilations=dilations, group=group, pads=back)
        return conv_transpose(op, m, w, size, pads, strides, dilations, group)

    y = op.Conv(x, w, b, dilations=dilations, group=group, pads=pads, strides=strides)
    return y, (conv_pullback, None, None)


@conv.layer
def conv_layer(op: Ops, w: Tensor, b: Tensor | None, *, group: int = 1, **_: Any) -> Weights:
    """W [M, C/g, *k]."""
    ones = [1] * (w.rank - 2)
    bias = None if b is None else op.Reshape(b, [-1, *ones])
    return Weights(w, bias, axis=1, inputs=(1, -1, *ones) if group == 1 else None, outputs=(-1, 1, *ones))


def flipped(op: Ops, w: Tensor, group: int) -> Tensor:
    """W [M, C/g, *k] → [C, M/g, *k], spatially reversed: the kernel of the adjoint at stride 1."""
    outputs, inputs, *kernel = w.shape
    axes = list(range(2, w.rank))
    if group > 1:
        w = op.Reshape(w, [group, outputs // group, inputs, *kernel])
        w = op.Transpose(w, perm=[0, 2, 1, *range(3, w.rank)])
        w = op.Reshape(w, [group * inputs, outputs // group, *kernel])
    else:
        w = op.Transpose(w, perm=[1, 0, *axes])
    if all(k == 1 for k in kernel):
        return w
    return op.Slice(w, [-1] * len(axes), [-(2**31)] * len(axes), axes, [-1] * len(axes))


def conv_transpose(
    op: Ops,
    m: Tensor,
    w: Tensor,
    size: Sequence[int],
    pads: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    group: int,
) -> Tensor:
    """The adjoint for any stride: [R, M, *out] → [R, C, *size]."""
    n = len(size)
    reach = [
        (o - 1) * s + (k - 1) * d + 1 - pads[i] - pads[n + i]
        for i, (o, s, k, d) in enumerate(zip(m.shape[2:], strides, w.shape[2:], dilations, strict=True))
    ]
    beyond = [want - have for want, have in zip(size, reach, strict=True)]
    crop = [max(-extra, 0) for extra in beyond]  # windows that ceil_mode let reach past the padding
    end = [pads[n + i] + crop[i] for i in range(n)]
    return op.ConvTranspose(
        m,
        w,
        dilations=list(dilations),
        group=group,
        pads=[*pads[:n], *end],
        strides=list(strides),
        output_padding=[max(extra, 0) for extra in beyond],
    )


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
    """y = Wᵀ ∗ x + b;  its adjoint is a convolution."""
    if auto_pad != "NOTSET" or output_shape is not None:
        raise UnsupportedModelError("ConvTranspose with auto_pad or output_shape")
    n = x.rank - 2
    strides, dilations = list(strides or [1] * n), list(dilations or [1] * n)
    pads = list(pads or [0] * (2 * n))

    def conv_transpose_pullback(m: Tensor) -> Tensor:
        return op.Conv(m, w, dilations=dilations, group=group, pads=pads, strides=strides)

    y = op.ConvTranspose(
        x,
        w,
        b,
        dilations=dilations,
        group=group,
        output_padding=list(output_padding) if output_padding else None,
        pads=pads,
        strides=strides,
    )
    return y, (conv_transpose_pullback, None, None)


@conv_transpose_rule.layer
def conv_transpose_layer(op: Ops, w: Tensor, b: Tensor | None, *, group: int = 1, **_: Any) -> Weights:
    """W [C, M/g, *k]."""
    ones = [1] * (w.rank - 2)
    bias = None if b is None else op.Reshape(b, [-1, *ones])
    return Weights(w, bias, axis=1, inputs=(-1, 1, *ones), outputs=(1, -1, *ones) if group == 1 else None)
