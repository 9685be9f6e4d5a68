"""Means and standard errors over the references' axis K or the points' axis S, whole or chunk by chunk."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from compiler.graph.chunk_markers import DOMAIN
from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor


def along(op: Ops, array: np.ndarray, axis: str, *, zeros: bool = False) -> Tensor:
    """Return an array [count, *row] that varies over the axis K or S, the same for every row of the batch.

    It is a constant, or the part of it that one chunk holds.

    Args:
        zeros: what fills up the last chunk, instead of copies of the last row.
    """
    if axis not in op.chunks:
        constant = op.constant(array)
        value, dtype = constant.value, constant.dtype
        op.chunks.whole[value] = axis
    else:
        dtype = ir.DataType.from_numpy(array.dtype)
        parts = op.chunks.axes[axis].cut(array, zeros=zeros)
        value = op._node("Chunk", [], op.chunks.enter(axis, parts), domain=DOMAIN)[0]
        value.dtype, value.shape = dtype, ir.Shape(parts.shape[1:])
    return Tensor(value, (1, *array.shape[1:]), dtype, frozenset({axis}), rows=True)


def open_rows(op: Ops, name: str, row: Sequence[int], axis: str, dtype: ir.DataType) -> Tensor:
    """Rows along an axis that come with each row of the batch: a new input of the graph, [N, count, *row]."""
    value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(["N", op.counts[axis], *row]))
    op.graph.inputs.append(value)
    flat = op._node("Reshape", [value, op._ints([-1, *row])], {})[0]
    return Tensor(flat, (1, *row), dtype, frozenset({"N", axis}), rows=True)


def open_weights(op: Ops, name: str, axis: str, dtype: ir.DataType) -> Tensor:
    """Weights [N, count] of such rows, a new input; brought to the sum 1."""
    given = open_rows(op, name, (), axis, dtype)
    return op.Div(given, _reduce(op, "ReduceSum", given, axis))


def rows_along(op: Ops, x: Tensor) -> np.ndarray:
    """Return the array [count, *row] that `along` was given for `x`."""
    if x.constant is not None:
        return x.constant
    producer = x.value.producer()
    assert producer is not None
    axis, parts = op.chunks.parts[producer.attributes["part"].as_int()]
    return parts.reshape(-1, *parts.shape[2:])[: op.counts[axis]]


def mean(op: Ops, x: Tensor, over: str, weights: np.ndarray | None = None) -> Tensor:
    """Σ w_i x_i over the axis K or S, weights summing to 1 (None: all equal); `x` where it lacks it."""
    if over not in x.lead:
        return x
    if over in op.weights:
        return _by_open_weights(op, x, over)
    if over not in op.chunks:
        return _reduce(op, "ReduceMean", x, over) if weights is None else _weighted_sum(op, x, over, weights)
    total = _leave(op, "Sum", over, _weighted_sum(op, x, over, weights))
    return _normalised(op, total, over, weights)


def standard_error(op: Ops, x: Tensor, over: str, weights: np.ndarray | None, effective: float) -> Tensor:
    """Compute the standard error of `mean(op, x, over, weights)`: √(Σ w_i (x_i − mean)² / (n − 1)).

    Args:
        effective: n = 1/Σ w², the number of independent values that the mean is worth; above 1.
    """
    if over in op.chunks:
        variance = _normalised(op, _squared_deviations(op, x, over, weights), over, weights)
    else:
        off = op.Sub(x, mean(op, x, over, weights))
        variance = mean(op, op.Mul(off, off), over, weights)
    return op.Sqrt(op.Mul(variance, 1 / (effective - 1)))


def typical_size(op: Ops, r: Tensor) -> Tensor:
    """Average the largest |r| of each reference over them: one number, known at compile time."""
    size = op.Abs(r)
    if r.rank > 1:
        size = op.ReduceMax(size, list(range(1, r.rank)), keepdims=1)
    return mean(op, size, "K")


def _squared_deviations(op: Ops, x: Tensor, over: str, weights: np.ndarray | None) -> Tensor:
    """Σ w_i (x_i − mean)² of all chunks, from the weight, mean and squared deviations of each."""
    weight = _reduce(op, "ReduceSum", _weights(op, x, over, weights), over)
    some = op.Max(weight, float(np.finfo(x.dtype.numpy()).tiny))  # a chunk may hold weights of 0 alone
    average = op.Div(_weighted_sum(op, x, over, weights), some)
    off = op.Sub(x, average)
    squares = _weighted_sum(op, op.Mul(off, off), over, weights)
    return _leave(op, "Moments", over, squares, average, weight)


def _weighted_sum(op: Ops, x: Tensor, over: str, weights: np.ndarray | None) -> Tensor:
    """Σ w_i x_i, the weights 1 where there are none."""
    full = (
        weights is None and over not in op.weights and (over not in op.chunks or op.chunks.axes[over].is_even)
    )
    return _reduce(op, "ReduceSum", x if full else op.Mul(x, _weights(op, x, over, weights)), over)


def _by_open_weights(op: Ops, x: Tensor, over: str) -> Tensor:
    """Σ w_i x_i; in a wider type, over Σ w_i, which is 1 as far as the narrower one holds it."""
    total = _weighted_sum(op, x, over, None)
    if x.dtype == op.weights[over].dtype:
        return total
    return op.Div(total, _reduce(op, "ReduceSum", _weights(op, x, over, None), over))


def _normalised(op: Ops, total: Tensor, over: str, weights: np.ndarray | None) -> Tensor:
    return op.Div(total, op.counts[over]) if weights is None else total


def _weights(op: Ops, x: Tensor, over: str, weights: np.ndarray | None) -> Tensor:
    """1 for each where there are none; 0 for what only fills up a chunk."""
    if over in op.weights:
        given = op.reshape(op.weights[over], (1,) * x.rank)
        return given if given.dtype == x.dtype else op.Cast(given, to=int(x.dtype))
    w = np.ones(op.counts[over]) if weights is None else weights
    array = np.asarray(w, x.dtype.numpy()).reshape(-1, *(1 for _ in x.shape[1:]))
    return along(op, array, over, zeros=True)


def _reduce(op: Ops, op_type: str, x: Tensor, over: str) -> Tensor:
    x = op.split(x, x.lead)
    assert x.split is not None
    axis, rest = x.split.index(over), tuple(a for a in x.split if a != over)
    axes = op.constant(np.asarray([axis], np.int64)).value
    value = op._node(op_type, [x.value, axes], {"keepdims": 0})[0]
    return replace(x, value=value, lead=x.lead - {over}, split=rest or None)


def _leave(op: Ops, op_type: str, over: str, *tensors: Tensor) -> Tensor:
    """Emit the pseudo-operator for what all chunks have together."""
    tensors = tuple(op.split(t, t.lead) if t.lead else t for t in tensors)
    for tensor in tensors:
        tensor.value.dtype = tensor.dtype  # a Scan says of what type its state is
    initial = [_zeros(op, t) for t in tensors]
    values = [t.value for t in tensors]
    value = op._node(op_type, [*values, *initial], {"axis": over}, domain=DOMAIN)[0]
    return replace(tensors[0], value=value)


def _zeros(op: Ops, x: Tensor) -> ir.Value:
    """Of the shape that `x` has in memory."""
    order = x.split or ()
    sizes = [op._batch_size() if a == "N" else op.constant(np.asarray([op.sizes[a]])) for a in order]
    row = op.constant(np.asarray(x.shape, np.int64))
    shape = op._node("Concat", [s.value for s in (*sizes, row)], {"axis": 0})[0]
    zero = ir.Tensor(np.zeros(1, x.dtype.numpy()))
    return op._node("ConstantOfShape", [shape], {"value": zero})[0]
