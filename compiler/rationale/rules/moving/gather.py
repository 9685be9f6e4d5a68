"""Gathers from indices, and scatters to them; the indices are constant, another input's, or computed.

Indices that depend on explained inputs carry no attribution; the values get the difference that the indices
make between x and its reference: see `methods.deepshap`.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx

from rationale.errors import UnsupportedModelError
from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules.moving.indexing import NOWHERE, put_back, take, zeros
from rationale.rules.moving.shape import ints
from rationale.rules.rule import Evaluation, Kind, Trait, rule

BILINEAR = Kind.BILINEAR


@rule("Gather", kind=BILINEAR, traits=[Trait.MOVING])
def gather(op: Ops, x: Tensor, indices: Tensor, *, axis: int = 0) -> Evaluation:
    """Compute y = slices of x at given indices; the adjoint adds them up at those indices."""
    axis = axis % x.rank
    if indices.constant is None:
        return _gather_computed(op, x, indices, axis)
    index = [int(i) % x.shape[axis] for i in indices.constant.reshape(-1)]

    def gather_pullback(m: Tensor) -> Tensor:
        m = op.reshape(m, [*x.shape[:axis], len(index), *x.shape[axis + 1 :]])
        return put_back(op, m, index, axis, x.shape[axis])

    return op.Gather(x, indices, axis=axis), (gather_pullback, None)


def _gather_computed(op: Ops, x: Tensor, indices: Tensor, axis: int) -> Evaluation:
    """Gather element by element, since each row may have indices of its own."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    count = math.prod(indices.shape)
    shape = (*before, count, *after)
    flat_indices = op.reshape(_as_rows(op, indices), (*(1 for _ in before), count, *(1 for _ in after)))
    elements, pullback = _elements(op, x, op.expand(flat_indices, shape), axis)

    def gather_pullback(m: Tensor) -> Tensor:
        return pullback(op.reshape(m, shape))

    return op.reshape(elements, (*before, *indices.shape, *after)), (gather_pullback, None)


def _as_rows(op: Ops, indices: Tensor) -> Tensor:
    """Cast indices to int64, which all operators on indices take."""
    if int(indices.dtype) == onnx.TensorProto.INT64:
        return indices
    return op.Cast(indices, to=onnx.TensorProto.INT64)


def _elements(op: Ops, x: Tensor, indices: Tensor, axis: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return GatherElements and its pullback."""

    def gather_elements_pullback(m: Tensor) -> Tensor:
        return op.ScatterElements(zeros(op, x.shape, m), indices, m, axis=axis, reduction="add")

    return op.GatherElements(x, indices, axis=axis), gather_elements_pullback


@rule("GatherElements", kind=BILINEAR, traits=[Trait.MOVING])
def gather_elements(op: Ops, x: Tensor, indices: Tensor, *, axis: int = 0) -> Evaluation:
    """Compute y = elements of x at given indices along an axis; the adjoint adds them up at those indices."""
    y, pullback = _elements(op, x, _as_rows(op, indices), axis % x.rank)
    return y, (pullback, None)


@rule("GatherND", kind=BILINEAR, traits=[Trait.MOVING])
def gather_nd(op: Ops, x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Evaluation:
    """Compute y = slices of x at tuples of indices; the adjoint adds them up at those tuples."""
    b, depth = batch_dims, indices.shape[-1]
    batch, slice_shape = x.shape[:b], x.shape[b + depth :]
    joined = (math.prod(batch), math.prod(x.shape[b : b + depth]), math.prod(slice_shape))
    flat_indices = _flat_indices(op, _as_rows(op, indices), x.shape[b : b + depth])
    count = math.prod(indices.shape[b:-1])
    flat_indices = op.expand(op.reshape(flat_indices, (joined[0], count, 1)), (joined[0], count, joined[2]))
    elements, pullback = _elements(op, op.reshape(x, joined), flat_indices, 1)

    def gather_nd_pullback(m: Tensor) -> Tensor:
        return op.reshape(pullback(op.reshape(m, (joined[0], count, joined[2]))), x.shape)

    return op.reshape(elements, (*indices.shape[:-1], *slice_shape)), (gather_nd_pullback, None)


def _flat_indices(op: Ops, indices: Tensor, sizes: Sequence[int]) -> Tensor:
    """Turn tuples [..., depth] of indices on axes of these sizes into indices [..., 1] on the joined axes."""
    strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    size = np.asarray(sizes, np.int64)
    positive = op.Where(
        op.Less(indices, op.constant(np.asarray(0, np.int64))), op.Add(indices, size), indices
    )
    return op.ReduceSum(op.Mul(positive, np.asarray(strides, np.int64)), [-1], keepdims=1)


@rule("ScatterElements", kind=BILINEAR)
def scatter_elements(
    op: Ops, x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Evaluation:
    """Compute y = x with elements replaced by, or added to, the updates; linear in both."""
    return _scatter(op, x, _as_rows(op, indices), updates, axis % x.rank, reduction)


def _scatter(
    op: Ops, x: Tensor, indices: Tensor, updates: Tensor, axis: int, reduction: str
) -> tuple[Tensor, tuple[Callable[[Tensor], Tensor], None, Callable[[Tensor], Tensor]]]:
    if reduction not in ("none", "add"):
        raise UnsupportedModelError(f"a scatter with reduction {reduction!r} at computed indices")

    def scatter_pullback(m: Tensor) -> Tensor:
        if reduction == "add":
            return m
        return op.ScatterElements(m, indices, zeros(op, indices.shape, m), axis=axis)

    def scatter_pullback_updates(m: Tensor) -> Tensor:
        return op.GatherElements(m, indices, axis=axis)

    y = op.ScatterElements(x, indices, updates, axis=axis, reduction=reduction)
    return y, (scatter_pullback, None, scatter_pullback_updates)


@rule("ScatterND", kind=BILINEAR)
def scatter_nd(
    op: Ops, x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none"
) -> Evaluation:
    """Compute y = x with slices replaced by, or added to, the updates; linear in both."""
    depth = indices.shape[-1]
    slice_size = math.prod(x.shape[depth:])
    joined = (1, math.prod(x.shape[:depth]), slice_size)
    count = math.prod(indices.shape[:-1])
    flat_indices = _flat_indices(op, _as_rows(op, indices), x.shape[:depth])
    flat_indices = op.expand(op.reshape(flat_indices, (1, count, 1)), (1, count, slice_size))
    flat, (back, _, back_updates) = _scatter(
        op, op.reshape(x, joined), flat_indices, op.reshape(updates, (1, count, slice_size)), 1, reduction
    )

    def scatter_nd_pullback(m: Tensor) -> Tensor:
        return op.reshape(back(op.reshape(m, joined)), x.shape)

    def scatter_nd_pullback_updates(m: Tensor) -> Tensor:
        return op.reshape(back_updates(op.reshape(m, joined)), updates.shape)

    return op.reshape(flat, x.shape), (scatter_nd_pullback, None, scatter_nd_pullback_updates)


@rule("Col2Im", kind=BILINEAR)
def col2im(
    op: Ops,
    x: Tensor,
    image_shape: Tensor,
    block_shape: Tensor,
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Evaluation:
    """Compute y = blocks of an image, added up where they overlap; the adjoint extracts them."""
    size, block = ints(image_shape, "Col2Im sizes"), ints(block_shape, "Col2Im sizes")
    n = len(size)
    indices = block_indices(
        size, block, list(strides or [1] * n), list(dilations or [1] * n), list(pads or [0] * 2 * n)
    )
    channels = x.shape[1] // math.prod(block)

    def col2im_pullback(m: Tensor) -> Tensor:
        plane = op.reshape(m, (x.shape[0], channels, math.prod(size)))
        return op.reshape(take(op, plane, indices, 2), x.shape)

    blocks = op.reshape(x, (x.shape[0], channels, len(indices)))
    image = put_back(op, blocks, indices, 2, math.prod(size))
    return op.reshape(image, (x.shape[0], channels, *size)), (col2im_pullback, None, None)


def block_indices(
    size: Sequence[int],
    block: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    counts: Sequence[int] | None = None,
) -> list[int]:
    """Return each block element's index in the plane, [*block, *counts]; `NOWHERE` in the padding.

    Args:
        counts: number of blocks along each axis; by default as many as fit the plane.
    """
    n = len(size)
    flat, outside = np.zeros((1,) * (2 * n), np.int64), np.zeros((1,) * (2 * n), bool)
    for i in range(n):
        length = size[i] + pads[i] + pads[n + i]
        fit = (length - (block[i] - 1) * dilations[i] - 1) // strides[i] + 1
        count = fit if counts is None else counts[i]
        along = np.arange(block[i])[:, None] * dilations[i] + np.arange(count) * strides[i] - pads[i]
        shape = [1] * (2 * n)
        shape[i], shape[n + i] = along.shape
        along = along.reshape(shape)
        flat = flat * size[i] + along
        outside = outside | (along < 0) | (along >= size[i])
    return [int(i) for i in np.where(outside, NOWHERE, flat).reshape(-1)]
