"""Operators that move values, in terms of others that do."""

from typing import Any

import numpy as np
import onnx_ir as ir

from rationale.errors import UnsupportedModelError
from rationale.lowering.rewrites.engine import (
    dtype_of,
    idiom,
    is_constant,
    length_of,
    rank_of,
    rewrites,
    sizes_of,
)


@rewrites("CastLike")
def cast_like(op: Any, x: ir.Value, like: ir.Value, **attributes: Any) -> Any:
    """Cast to the type of another tensor."""
    if like.dtype is None:
        raise UnsupportedModelError(f"CastLike: the type of {like.name!r} is not known before the model runs")
    return op.Cast(x, to=int(like.dtype), **attributes)


@rewrites("Compress")
def compress(op: Any, x: ir.Value, condition: ir.Value, *, axis: int | None = None) -> Any:
    """Gather the slices of x, or without an axis its elements, for which a condition is true."""
    if condition.const_value is None:
        raise UnsupportedModelError(
            "Compress with a computed condition: the size of its output is known only when the model runs"
        )
    indices = np.flatnonzero(condition.const_value.numpy())
    if axis is None:
        return op.Gather(op.Reshape(x, [-1]), indices, axis=0)
    return op.Gather(x, indices, axis=axis)


@idiom("Gather")
def gather_turned(op: Any, table: ir.Value, ids: ir.Value, *, axis: int = 0) -> Any:
    """Swap the lookup of rows and the Transpose of their ids, so that the batch stays on axis 0."""
    turn = ids.producer()
    original_ids = turn.inputs[0] if turn is not None and turn.op_type == "Transpose" else None
    if turn is None or original_ids is None or axis or table.const_value is None or ids.shape is None:
        return None
    count, width = rank_of(ids), rank_of(table) - 1
    order = turn.attributes["perm"].as_ints() if "perm" in turn.attributes else range(count)[::-1]
    return op.Transpose(op.Gather(table, original_ids, axis=0), perm=[*order, *range(count, count + width)])


@rewrites("GatherND")
def gather_nd(op: Any, x: ir.Value, indices: ir.Value, *, batch_dims: int = 0) -> Any:
    """Replace slices at computed indices of axis 0 by a Gather: torch.export writes `table[ids]` so."""
    if batch_dims or is_constant(indices) or indices.shape is None or indices.shape[-1] != 1:
        return None
    return op.Gather(x, op.Squeeze(indices, [-1]), axis=0)


@rewrites("OneHot")
def one_hot(op: Any, indices: ir.Value, depth: ir.Value, values: ir.Value, *, axis: int = -1) -> Any:
    """Compute off + (on − off)·[the place equals the index]; a float must equal it exactly."""
    count = depth.const_value
    if count is None:
        raise UnsupportedModelError("OneHot with a computed depth: export with static feature sizes")
    rank = rank_of(indices)
    along = axis % (rank + 1)
    places = np.arange(int(count.numpy().item())).reshape([-1, *(1 for _ in range(rank - along))])
    off, on = (op.Gather(values, [i], axis=0) for i in (0, 1))
    spread = op.Unsqueeze(indices, [along])
    if indices.dtype is None or not indices.dtype.is_floating_point():
        spread = op.Cast(spread, to=int(ir.DataType.INT64))
        is_hit = op.Or(op.Equal(spread, places), op.Equal(spread, places - len(places)))
        return op.Where(is_hit, on, off)
    places = places.astype(indices.dtype.numpy())
    near = [op.Sub(1.0, op.Abs(op.Sign(op.Sub(spread, v)))) for v in (places, places - len(places))]
    return op.Add(off, op.Mul(op.Add(*near), op.Sub(on, off)))


@rewrites("TensorScatter")
def tensor_scatter(
    op: Any,
    past: ir.Value,
    update: ir.Value,
    begins: ir.Value | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Any:
    """Update a cache from each row's own index on, by a ScatterElements."""
    rank, length, size = rank_of(update), length_of(update, axis), length_of(past, axis)
    along = axis % rank
    steps = np.arange(length).reshape([-1, *(1 for _ in range(rank - along - 1))])
    if begins is None:
        indices = op.Add(np.zeros(1, np.int64), steps)
    else:
        indices = op.Add(op.Unsqueeze(begins, list(range(1, rank))), steps)
    if mode == "circular":
        indices = op.Mod(indices, np.asarray(size, np.int64))
    return op.ScatterElements(past, op.Expand(indices, op.Shape(update)), update, axis=along)


@rewrites("ScatterElements")
def scatter_elements(
    op: Any, x: ir.Value, indices: ir.Value, updates: ir.Value, *, axis: int = 0, reduction: str = "none"
) -> Any:
    """Combine by products or extremes in rounds without repeated places: gather, combine, scatter."""
    if reduction in ("none", "add"):
        return None
    for i in range(length_of(indices, axis)):  # along an axis, indices may repeat; across it they cannot
        places, values = (op.Slice(v, [i], [i + 1], [axis]) for v in (indices, updates))
        combined = _combine(op, reduction, op.GatherElements(x, places, axis=axis), values)
        x = op.ScatterElements(x, places, combined, axis=axis)
    return x


def _combine(op: Any, reduction: str, a: ir.Value, b: ir.Value) -> Any:
    return {"mul": op.Mul, "max": op.Max, "min": op.Min}[reduction](a, b)


@rewrites("ScatterND")
def scatter_nd(op: Any, x: ir.Value, indices: ir.Value, updates: ir.Value, *, reduction: str = "none") -> Any:
    """Combine by products or extremes in rounds without repeated places: gather, combine, scatter."""
    if reduction in ("none", "add"):
        return None
    dims = sizes_of(indices)
    count = int(np.prod(dims[:-1]))
    slice_shape = op.Shape(updates, start=len(dims) - 1)
    flat_indices = op.Reshape(indices, [count, dims[-1]])
    flat_updates = op.Reshape(updates, op.Concat([count], slice_shape, axis=0))
    for group in _groups_without_repetition(indices, count, x.shape):
        places, values = (op.Gather(v, group, axis=0) for v in (flat_indices, flat_updates))
        x = op.ScatterND(x, places, _combine(op, reduction, op.GatherND(x, places), values))
    return x


def _groups_without_repetition(indices: ir.Value, count: int, shape: ir.Shape | None) -> list[list[int]]:
    """Group the tuples so that no index occurs twice in a group; one by one if they are computed."""
    if indices.const_value is None:
        return [[i] for i in range(count)]
    index = indices.const_value.numpy().reshape(count, -1)
    sizes = [] if shape is None else list(shape)[: index.shape[1]]
    fixed = [n for n in sizes if isinstance(n, int)]
    if len(fixed) == index.shape[1]:
        index = np.where(index < 0, index + fixed, index)
    elif (index < 0).any():
        return [[i] for i in range(count)]
    tuples = [tuple(row) for row in index]
    groups: list[list[int]] = []
    for i, row in enumerate(tuples):
        before = tuples[:i].count(row)
        groups += [[] for _ in range(before + 1 - len(groups))]
        groups[before].append(i)
    return groups


@rewrites("MaxUnpool")
def max_unpool(
    op: Any, x: ir.Value, indices: ir.Value, output_shape: ir.Value | None = None, **_: Any
) -> Any:
    """Scatter into a row of zeros, if the shape is given."""
    if output_shape is None or output_shape.const_value is None:
        return None
    shape = output_shape.const_value.numpy()
    zeros = np.zeros(int(shape.prod()), dtype_of(x).numpy())
    flat_x, flat_indices = (op.Reshape(v, [-1]) for v in (x, indices))
    return op.Reshape(op.ScatterElements(zeros, flat_indices, flat_x, axis=0), shape)


@idiom("Slice")
def whole_slice(_op: Any, x: ir.Value, *bounds: ir.Value | None) -> Any:
    """Replace x[:] of scripted modules by x, on the batch's axis too."""
    constants = [None if v is None or v.const_value is None else v.const_value.numpy() for v in bounds]
    if len(constants) < 2 or constants[0] is None or constants[1] is None:
        return None
    if len(bounds) > 3 and bounds[3] is not None and (constants[3] is None or (constants[3] != 1).any()):
        return None
    return x if not constants[0].any() and (constants[1] >= np.iinfo(np.int32).max).all() else None
