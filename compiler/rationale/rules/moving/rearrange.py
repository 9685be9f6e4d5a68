"""Operators that repeat, reverse, or rearrange their input."""

import numpy as np

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules.moving.shape import ints
from rationale.rules.rule import Evaluation, Kind, Trait, rule

BILINEAR = Kind.BILINEAR
MOVING = Trait.MOVING


@rule("Tile", kind=BILINEAR, traits=[MOVING])
def tile(op: Ops, x: Tensor, repeats: Tensor) -> Evaluation:
    """Compute y = x, side by side with itself; the adjoint adds the copies up."""
    times = ints(repeats, "Tile repeats")

    def tile_pullback(m: Tensor) -> Tensor:
        for axis, count in enumerate(times):
            if count > 1:
                before, after = m.shape[:axis], m.shape[axis + 1 :]
                copies = op.reshape(m, (*before, count, x.shape[axis], *after))
                m = op.ReduceSum(copies, [axis], keepdims=0)
        return m

    return op.Tile(x, repeats), (tile_pullback, None)


@rule("Trilu", kind=BILINEAR)
def trilu(op: Ops, x: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Evaluation:
    """Compute y = x above (or below) a diagonal, else 0."""
    diagonal = 0 if k is None else ints(k, "Trilu diagonals")[0]
    rows, columns = x.shape[-2:]
    below = np.tri(rows, columns, k=diagonal - upper, dtype=bool)
    mask = op.constant((~below if upper else below).astype(x.dtype.numpy()))

    def trilu_pullback(m: Tensor) -> Tensor:
        return op.Mul(m, mask)

    return op.Trilu(x, k, upper=upper), (trilu_pullback, None)


@rule("DepthToSpace", kind=BILINEAR, traits=[MOVING])
def depth_to_space(op: Ops, x: Tensor, *, blocksize: int, mode: str = "DCR") -> Evaluation:
    """Compute y = blocks of channels as blocks of the plane."""
    n, c, h, w = x.shape
    b = blocksize

    def depth_to_space_pullback(m: Tensor) -> Tensor:
        blocks = op.reshape(m, (n, c // b**2, h, b, w, b))
        order = [0, 1, 3, 5, 2, 4] if mode == "CRD" else [0, 3, 5, 1, 2, 4]
        return op.reshape(op.Transpose(blocks, perm=order), x.shape)

    return op.DepthToSpace(x, blocksize=b, mode=mode), depth_to_space_pullback


@rule("SpaceToDepth", kind=BILINEAR, traits=[MOVING])
def space_to_depth(op: Ops, x: Tensor, *, blocksize: int, mode: str = "DCR") -> Evaluation:
    """Compute y = blocks of the plane as blocks of channels."""
    n, c, h, w = x.shape
    b = blocksize
    order = [0, 1, 3, 5, 2, 4] if mode == "CRD" else [0, 3, 5, 1, 2, 4]
    block_shape = (n, c, h // b, b, w // b, b)
    dealt = tuple(block_shape[i] for i in order)

    def space_to_depth_pullback(m: Tensor) -> Tensor:
        back = [order.index(i) for i in range(len(order))]
        return op.reshape(op.Transpose(op.reshape(m, dealt), perm=back), x.shape)

    y = op.Transpose(op.reshape(x, block_shape), perm=order)
    return op.reshape(y, (n, c * b * b, h // b, w // b)), space_to_depth_pullback


@rule("ReverseSequence", kind=BILINEAR, traits=[MOVING])
def reverse_sequence(
    op: Ops, x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0
) -> Evaluation:
    """Compute y = x with the first steps of each sequence backwards; it is its own adjoint."""
    order = [batch_axis, time_axis, *(a for a in range(x.rank) if a not in (batch_axis, time_axis))]
    back = [order.index(a) for a in range(x.rank)]

    def reverse_sequence_pullback(m: Tensor) -> Tensor:
        first = op.Transpose(m, perm=order) if batch_axis else m
        reversed_ = op.ReverseSequence(first, lengths, batch_axis=0, time_axis=1)
        return op.Transpose(reversed_, perm=back) if batch_axis else reversed_

    return reverse_sequence_pullback(x), (reverse_sequence_pullback, None)
