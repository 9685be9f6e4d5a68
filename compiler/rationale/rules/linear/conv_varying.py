"""Convolutions with varying weights: products of two tensors, block by block of the plane."""

import math
from collections.abc import Callable
from functools import lru_cache

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules.linear.conv_adjoint import Geometry
from rationale.rules.linear.products import swap_last_axes
from rationale.rules.moving.gather import block_indices
from rationale.rules.moving.indexing import put_back, take
from rationale.rules.rule import Evaluation

Adjoint = Callable[[Tensor], Tensor]


def conv_of_rows(op: Ops, x: Tensor, w: Tensor, b: Tensor | None, g: Geometry) -> Evaluation:
    """Compute y = W·blocks(x) + b."""
    forward, back, to_weight = _by_blocks(op, x.shape[0], w, g)

    def conv_pullback_w(m: Tensor) -> Tensor:
        return to_weight(x, m)

    return _with_bias(op, forward(x), b), (back, conv_pullback_w, _to_bias(op, b))


def conv_transpose_of_rows(op: Ops, x: Tensor, w: Tensor, b: Tensor | None, g: Geometry) -> Evaluation:
    """Compute y = Wᵀ·x, summed where blocks overlap, + b.  `g` is that of the convolution from y to x."""
    forward, back, to_weight = _by_blocks(op, x.shape[0], w, g)

    def conv_transpose_pullback_w(m: Tensor) -> Tensor:
        return to_weight(m, x)

    return _with_bias(op, back(x), b), (forward, conv_transpose_pullback_w, _to_bias(op, b))


def _by_blocks(
    op: Ops, rows: int, w: Tensor, g: Geometry
) -> tuple[Adjoint, Adjoint, Callable[[Tensor, Tensor], Tensor]]:
    """Return z = W·blocks(x), W [g, M/g, C/g·k], blocks [g, C/g·k, positions], and adjoints in x and W."""
    indices, count = block_indices(g.size, g.kernel, g.strides, g.dilations, g.pads, g.out), math.prod(g.out)
    depth = g.channels // g.group * math.prod(g.kernel)
    weight = op.reshape(w, (g.group, g.filters // g.group, depth))

    @lru_cache(1)
    def blocks(x: Tensor) -> Tensor:
        plane = op.reshape(x, (rows, g.channels, math.prod(g.size)))
        return op.reshape(take(op, plane, indices, 2), (rows, g.group, depth, count))

    def grouped(z: Tensor) -> Tensor:
        return op.reshape(z, (rows, g.group, g.filters // g.group, count))

    def forward(x: Tensor) -> Tensor:
        return op.reshape(op.MatMul(weight, blocks(x)), (rows, g.filters, *g.out))

    def back(z: Tensor) -> Tensor:
        columns = op.reshape(
            op.MatMul(swap_last_axes(op, weight), grouped(z)), (rows, g.channels, len(indices))
        )
        return op.reshape(put_back(op, columns, indices, 2, math.prod(g.size)), (rows, g.channels, *g.size))

    def to_weight(x: Tensor, z: Tensor) -> Tensor:
        products = op.MatMul(grouped(z), swap_last_axes(op, blocks(x)))
        return op.reshape(op.ReduceSum(products, [0], keepdims=0), w.shape)

    return forward, back, to_weight


def _with_bias(op: Ops, y: Tensor, b: Tensor | None) -> Tensor:
    return y if b is None else op.Add(y, op.reshape(b, (b.shape[0], *(1 for _ in y.shape[2:]))))


def _to_bias(op: Ops, b: Tensor | None) -> Adjoint | None:
    if b is None:
        return None

    def conv_pullback_b(m: Tensor) -> Tensor:
        return op.ReduceSum(m, [0, *range(2, m.rank)], keepdims=0)

    return conv_pullback_b
