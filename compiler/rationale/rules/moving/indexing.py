"""Gathers from known indices, and their adjoint, which adds values up at those indices."""

from collections.abc import Sequence

import numpy as np

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor

NOWHERE = -1  # index of a place that holds 0
_MOST_GATHERS = 4  # elements, at most, that a sum by Gather may read for each element of m


def is_run(index: Sequence[int]) -> bool:
    """Tell whether an index counts up by 1."""
    return len(index) > 0 and list(index) == list(range(index[0], index[0] + len(index)))


def take(op: Ops, x: Tensor, index: Sequence[int], axis: int) -> Tensor:
    """Return the slices of `x` at `index` of an axis; 0 for `NOWHERE`."""
    if NOWHERE in index:
        x, index = _with_zero(op, x, axis), [x.shape[axis] if i == NOWHERE else i for i in index]
    if is_run(index):
        return op.Slice(x, [index[0]], [index[0] + len(index)], [axis])
    return op.Gather(x, list(index), axis=axis)


def put_back(op: Ops, m: Tensor, index: Sequence[int], axis: int, size: int) -> Tensor:
    """Compute the adjoint of `take`: add the slices of `m` at `index` of an axis of `size` zeros."""
    if is_run(index):
        before, after = index[0], size - index[0] - len(index)
        return op.Pad(m, [before, after], None, [axis]) if before or after else m
    indices = np.asarray(index, np.int64)
    counts = np.bincount(indices[indices != NOWHERE], minlength=size)
    if counts.max(initial=0) * size <= _MOST_GATHERS * len(index):
        return _add_by_gather(op, m, indices, axis, counts)
    return _add_by_scatter(op, m, indices, axis, size)


def _with_zero(op: Ops, x: Tensor, axis: int) -> Tensor:
    return op.Pad(x, [0, 1], None, [axis])


def _add_by_gather(op: Ops, m: Tensor, indices: np.ndarray, axis: int, counts: np.ndarray) -> Tensor:
    """Add up by a Gather: each place reads the slices that were taken from it, and zeros to fill up."""
    used = np.flatnonzero(indices != NOWHERE)
    order = used[np.argsort(indices[used], kind="stable")]
    most = int(counts.max(initial=1))
    table = np.full((len(counts), most), len(indices), np.int64)
    table[np.arange(most) < counts[:, None]] = order
    source = _with_zero(op, m, axis) if (counts < most).any() else m
    if most == 1:
        return op.Gather(source, table[:, 0], axis=axis)
    return op.ReduceSum(op.Gather(source, table, axis=axis), [axis + 1], keepdims=0)


def _add_by_scatter(op: Ops, m: Tensor, indices: np.ndarray, axis: int, size: int) -> Tensor:
    used = np.flatnonzero(indices != NOWHERE)
    if len(used) < len(indices):
        m, indices = op.Gather(m, used, axis=axis), indices[used]
    shape = [*m.shape[:axis], size, *m.shape[axis + 1 :]]
    to = indices.reshape([-1, *(1 for _ in m.shape[axis + 1 :])])
    index = op.row_constant(np.broadcast_to(to, m.shape).copy())
    return op.ScatterElements(zeros(op, shape, m), index, m, axis=axis, reduction="add")


def zeros(op: Ops, shape: Sequence[int], like: Tensor) -> Tensor:
    """Return rows of zeros."""
    return op.row_constant(np.zeros(shape, like.dtype.numpy()))
