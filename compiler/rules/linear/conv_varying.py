"""Convolutions whose weights vary too: products of two tensors, block by block of the plane."""

import math
from collections.abc import Callable, Sequence

from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.rules.linear.conv_adjoint import Geometry
from compiler.rules.moving.gather import block_places
from compiler.rules.moving.indexing import put_back, take
from compiler.rules.rule import Evaluation

Sent = Callable[[Tensor], Tensor]


def _turned(op: Ops, x: Tensor) -> Tensor:
    """The last two axes the other way round."""
    n = x.rank
    return op.Transpose(x, perm=[*range(n - 2), n - 1, n - 2])


def _places(g: Geometry, plane: Sequence[int], blocks: Sequence[int]) -> list[int]:
    return block_places(plane, g.kernel, g.strides, g.dilations, g.pads, blocks)


def conv_of_rows(op: Ops, x: Tensor, w: Tensor, b: Tensor | None, g: Geometry) -> Evaluation:
    """y = W·blocks(x) + b, W [g, M/g, C/g·k] and blocks [g, C/g·k, places]."""
    places, count = _places(g, g.size, g.out), math.prod(g.out)
    depth = g.channels // g.group * math.prod(g.kernel)
    rows, weight = x.shape[0], op.reshape(w, (g.group, g.filters // g.group, depth))
    plane = op.reshape(x, (rows, g.channels, math.prod(g.size)))
    blocks = op.reshape(take(op, plane, places, 2), (rows, g.group, depth, count))

    def grouped(m: Tensor) -> Tensor:
        return op.reshape(m, (rows, g.group, g.filters // g.group, count))

    def conv_pullback(m: Tensor) -> Tensor:
        sent = op.reshape(op.MatMul(_turned(op, weight), grouped(m)), (rows, g.channels, len(places)))
        return op.reshape(put_back(op, sent, places, 2, math.prod(g.size)), x.shape)

    def conv_pullback_w(m: Tensor) -> Tensor:
        each = op.MatMul(grouped(m), _turned(op, blocks))
        return op.reshape(op.ReduceSum(each, [0], keepdims=0), w.shape)

    y = op.reshape(op.MatMul(weight, blocks), (rows, g.filters, *g.out))
    return _with_bias(op, y, b), (conv_pullback, conv_pullback_w, _to_bias(op, b))


def conv_transpose_of_rows(op: Ops, x: Tensor, w: Tensor, b: Tensor | None, g: Geometry) -> Evaluation:
    """y = Wᵀ·x, added up where blocks overlap, + b; W [g, C/g, M/g·k].  `g` is that of y."""
    places, count = _places(g, g.out, g.size), math.prod(g.size)
    depth = g.filters // g.group * math.prod(g.kernel)
    rows, weight = x.shape[0], op.reshape(w, (g.group, g.channels // g.group, depth))
    flat = op.reshape(x, (rows, g.group, g.channels // g.group, count))

    def blocks(m: Tensor) -> Tensor:
        plane = op.reshape(m, (rows, g.filters, math.prod(g.out)))
        return op.reshape(take(op, plane, places, 2), (rows, g.group, depth, count))

    def conv_transpose_pullback(m: Tensor) -> Tensor:
        return op.reshape(op.MatMul(weight, blocks(m)), x.shape)

    def conv_transpose_pullback_w(m: Tensor) -> Tensor:
        each = op.MatMul(flat, _turned(op, blocks(m)))
        return op.reshape(op.ReduceSum(each, [0], keepdims=0), w.shape)

    sent = op.reshape(op.MatMul(_turned(op, weight), flat), (rows, g.filters, len(places)))
    y = op.reshape(put_back(op, sent, places, 2, math.prod(g.out)), (rows, g.filters, *g.out))
    return _with_bias(op, y, b), (conv_transpose_pullback, conv_transpose_pullback_w, _to_bias(op, b))


def _with_bias(op: Ops, y: Tensor, b: Tensor | None) -> Tensor:
    return y if b is None else op.Add(y, op.reshape(b, (b.shape[0], *(1 for _ in y.shape[2:]))))


def _to_bias(op: Ops, b: Tensor | None) -> Sent | None:
    if b is None:
        return None

    def conv_pullback_b(m: Tensor) -> Tensor:
        return op.ReduceSum(m, [0, *range(2, m.rank)], keepdims=0)

    return conv_pullback_b
