"""ONNX nodes over batch axes that rules never see.

A rule is written for one row: `m: [1, C, H, W]`. The combined graph needs it for every row of the batch (N),
every target (T), concept (C), reference (K) and point of a path or draw of noise (S) at once. As in JAX's
vmap, a `Tensor` carries the axes it varies over beside the shape it has for one row, and `Ops` lifts each
operator:

- operators that broadcast run on *split* tensors, [N, T, K, S, *row], so that x [N, 1, 1, 1, …] meets
  r [1, 1, K, 1, …] without being tiled;
- most others run on *flat* tensors, [N·T·K·S·row[0], *row[1:]], which is the model's own layout
  with more rows;
- operators that work along axis 0 of a row run on *stacked* tensors, [N·T·K·S, *row]: see `lift`.

A change of layout is a Reshape, which moves no data. A multiplier that does not (yet) depend on the
reference has no K among its axes and costs one row.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from rationale.errors import UnsupportedModelError
from rationale.graph.batching import Lifted, Node, is_elementwise, lifting_of
from rationale.graph.scan_fallback import row_by_row
from rationale.graph.shapes import Spec, infer_outputs, result_dtype, rows_dim
from rationale.graph.tensor import AXES, DOMAIN, NONE, STACKED, BatchAxes, Chunks, Layouts, Operand, Tensor
from rationale.graph.variants import VariantChoices
from rationale.schema.machine import HERE

_RESHAPING = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_MEASURING = frozenset({"Shape", "Size"})


class Ops(Layouts):
    """A builder: `op.Conv(x, w, strides=[2, 2])` appends a lifted node and returns its `Tensor`.

    Operands may be tensors, Python numbers (of the dtype of the first tensor), lists of ints (int64)
    or arrays; None leaves an optional operand out.
    """

    def __init__(
        self,
        graph: ir.Graph,
        opset: int,
        sizes: Mapping[str, int],
        dtype: ir.DataType,
        variants: VariantChoices | None = None,
        chunks: Chunks | None = None,
    ) -> None:
        super().__init__(graph, opset, sizes, dtype, chunks)
        self.variants = variants or VariantChoices(HERE)
        self.weights: dict[str, Tensor] = {}  # per axis whose rows come with a request; their sum is 1
        self._one_hot: dict[ir.Value, Tensor] = {}  # index of the 1, by the value of a one-hot row

    def __getattr__(self, op_type: str) -> Callable[..., Tensor]:
        if not op_type[:1].isupper():
            raise AttributeError(op_type)
        return functools.partial(self._single, op_type)

    def _single(self, op_type: str, *operands: Operand, domain: str = "", **attributes: Any) -> Tensor:
        return self.emit(op_type, operands, attributes, domain=domain)[0]

    def emit(
        self,
        op_type: str,
        operands: Sequence[Operand],
        attributes: Mapping[str, Any],
        *,
        outputs: int = 1,
        domain: str = "",
        specs: Sequence[Spec] | None = None,
    ) -> list[Tensor]:
        """Append one node; see the class. Return its outputs, flat or split as the operator needs.

        Args:
            specs: row shape and type of each output, if ONNX cannot infer them.
        """
        given_tensors = [o for o in operands if isinstance(o, Tensor)]
        numeric = [t for t in given_tensors if t.dtype != ir.DataType.BOOL]
        first = next((t for t in numeric if t.dtype.is_floating_point()), numeric[0] if numeric else None)
        tensors = [self.tensor(o, first) for o in operands]
        while tensors and tensors[-1] is None:
            tensors.pop()
        if is_elementwise(op_type, domain):
            return [self._emit_broadcasting(op_type, tensors, attributes, domain)]
        x = tensors[0] if tensors and not domain else None
        if x is not None and op_type == "MatMul":
            return [self._emit_matmul(x, tensors[1])]
        if x is not None and x.rows and op_type in _MEASURING:
            return [self._measure(op_type, x, attributes)]
        specs = specs or infer_outputs(op_type, domain, self.opset, attributes, tensors, outputs)
        if x is not None and x.rows and op_type in _RESHAPING:
            return [self._reshaped(x, specs[0][0])]
        if x is not None and x.rows and op_type == "Expand":
            y = self.expand(x, specs[0][0])
            return [self.Identity(y) if y.value is x.value else y]
        return self._emit_rows(op_type, tensors, attributes, outputs, domain, specs)

    # -- emission -----------------------------------------------------------------------------------

    def _emit_broadcasting(
        self, op_type: str, tensors: Sequence[Tensor | None], attributes: Mapping[str, Any], domain: str
    ) -> Tensor:
        aligned, batch_axes, axes = self._align([t for t in tensors if t is not None])
        if axes and op_type != "Clip":
            aligned = [self._with_rank(t, len(axes) + max(t.rank for t in aligned)) for t in aligned]
        queue = iter(aligned)
        values = [None if t is None else next(queue).value for t in tensors]
        value = self._node(op_type, values, attributes, domain=domain)[0]
        shape = np.broadcast_shapes(*(t.shape for t in aligned))
        rows = any(t.rows for t in aligned)
        dtype = result_dtype(op_type, domain, self.opset, tensors, attributes)
        return Tensor(value, shape, dtype, batch_axes, rows, axes)

    def _with_rank(self, x: Tensor, rank: int) -> Tensor:
        """Give a constant number `rank` axes: with fewer, ONNX Runtime goes through a tensor row by row."""
        number = x.constant
        if number is None or number.size != 1 or x.batch_axes:
            return x
        return replace(x, value=self.constant(number.reshape((1,) * rank)).value)

    def _align(
        self, tensors: Sequence[Tensor], least: int = 1
    ) -> tuple[list[Tensor], BatchAxes, tuple[str, ...] | None]:
        """Bring operands to layouts that broadcast together: flat if they share at least `least` row axes."""
        batch_axes = NONE.union(*(t.batch_axes for t in tensors))
        rank = max(t.rank for t in tensors)
        leading = [t for t in tensors if t.batch_axes]
        same = all(t.batch_axes == batch_axes and t.rank == rank for t in leading)
        layouts = {t.split for t in leading}
        if same and len(layouts) == 1 and None not in layouts:
            return [t if t.batch_axes else self.plain(t) for t in tensors], batch_axes, leading[0].split
        fixed = [t for t in tensors if not t.batch_axes]
        along = len({t.shape[:1] for t in leading}) == 1  # equal lengths on axis 0
        if same and along and rank >= least and all(t.rank < rank or t.shape[:1] == (1,) for t in fixed):
            return [self.flat(t) if t.batch_axes else self.plain(t) for t in tensors], batch_axes, None
        order = tuple(a for a in AXES if a in batch_axes)
        shapes = [(1,) * (rank - t.rank) + t.shape for t in tensors]
        split = [
            self.in_layout(t, order, shape) if t.batch_axes else self.plain(t)
            for t, shape in zip(tensors, shapes, strict=True)
        ]
        return split, batch_axes, order if batch_axes else None

    def _emit_matmul(self, a: Tensor, b: Tensor | None) -> Tensor:
        """Multiply over the last two axes of each row; a vector temporarily gets one more axis.

        The product of a one-hot row and a matrix gathers the row at the 1, and reads nothing else.
        """
        assert b is not None
        index = self._one_hot.get(a.value)
        if index is not None and b.rank == 2 and not b.batch_axes:
            return self.reshape(self.Gather(replace(b, rows=False), index), (1, b.shape[1]))
        if a.rank == 1 or b.rank == 1:
            first = self.reshape(a, (1, *a.shape)) if a.rank == 1 else a
            second = self.reshape(b, (*b.shape, 1)) if b.rank == 1 else b
            y = self._emit_matmul(first, second)
            shape = y.shape[: -2 if a.rank == 1 else -1] + (() if b.rank == 1 else y.shape[-1:])
            return self._reshaped(y, shape)
        shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
        # one product, however many axes stand before the last
        if a.batch_axes and not b.batch_axes and b.rank == 2:
            (first, second), batch_axes, split = (a, self.plain(b)), a.batch_axes, a.split
        else:
            (first, second), batch_axes, split = self._align([a, b], least=3)
        value = self._node("MatMul", [first.value, second.value], {})[0]
        return Tensor(value, shape, a.dtype, batch_axes, a.rows or b.rows, split)

    def _measure(self, op_type: str, x: Tensor, attributes: Mapping[str, Any]) -> Tensor:
        """Return the Shape or Size of one row."""
        shape = np.asarray(x.shape, np.int64)
        if op_type == "Size":
            return self.constant(np.asarray(shape.prod(), np.int64))
        return self.constant(shape[attributes.get("start") : attributes.get("end")])

    def _emit_rows(
        self,
        op_type: str,
        tensors: Sequence[Tensor | None],
        attributes: Mapping[str, Any],
        outputs: int,
        domain: str,
        specs: Sequence[Spec] | None = None,
    ) -> list[Tensor]:
        present = [t for t in tensors if t is not None]
        batch_axes = NONE.union(*(t.batch_axes for t in present))
        specs = specs or infer_outputs(op_type, domain, self.opset, attributes, tensors, outputs)
        how = lifting_of(Node(op_type, tensors, attributes), domain) if batch_axes else None
        if batch_axes and how is None:
            return row_by_row(self, Node(op_type, tensors, attributes), domain, batch_axes, specs)
        how = how or Lifted(stacked=False, attributes=attributes, data=())
        operands = self._lifted_operands(tensors, how, batch_axes)
        values = self._node(op_type, operands, how.attributes, outputs, domain)
        rows, split = any(t.rows for t in present), STACKED if how.stacked else None
        return [
            Tensor(value, shape, dtype, batch_axes, rows, split)
            for value, (shape, dtype) in zip(values, specs, strict=True)
        ]

    def _lifted_operands(
        self, tensors: Sequence[Tensor | None], lifting: Lifted, batch_axes: BatchAxes
    ) -> list[ir.Value | None]:
        to_layout = self.stacked if lifting.stacked else self.flat
        data = range(len(tensors)) if lifting.data is None else lifting.data
        values: list[ir.Value | None] = []
        for i in range(max(len(tensors), 1 + max(lifting.operands, default=0))):
            operand = tensors[i] if i < len(tensors) else None
            if i in lifting.operands:
                operand = self.tensor(lifting.operands[i])
            elif operand is not None:
                varied = self.vary(replace(operand, rows=True), batch_axes) if i in data else operand
                operand = to_layout(varied) if i in data else self.plain(operand)
            values.append(None if operand is None else operand.value)
        while values and values[-1] is None:
            values.pop()
        return values

    # -- shared by rules and the walk ------------------------------------------------------------------

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Return `x` with the row shape `shape`."""
        return x if tuple(shape) == x.shape else self._reshaped(x, tuple(shape))

    def _reshaped(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        split = STACKED if x.batch_axes and not shape else None
        value = self._in_shape(x.value, self._lengths(x.batch_axes, split, shape))
        return replace(x, value=value, split=split, shape=shape)

    def expand(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Return `x` broadcast to the row shape `shape`, or `x` itself if it has that shape."""
        target = np.broadcast_shapes(x.shape, tuple(shape))
        x = self.reshape(x, (1,) * (len(target) - x.rank) + x.shape)
        if target == x.shape:
            return x
        return self._emit_rows("Expand", [x, self.tensor(_expand_shape(x, target))], {}, 1, "")[0]

    def one_hot(self, index: Tensor, size: int, dtype: ir.DataType) -> Tensor:
        """Return a one-hot row [1, size], with its 1 at `index` [1, 1]."""
        row = self.Cast(self.Equal(index, np.arange(size, dtype=np.int64)), to=int(dtype))
        self._one_hot[row.value] = index
        return row

    def is_one_hot(self, x: Tensor) -> bool:
        """Tell whether a product of `x` with a matrix selects a row of the matrix."""
        return x.value in self._one_hot

    def sum_to(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Compute the adjoint of broadcasting a row of `shape` to `x`'s: sum over the repetitions."""
        extra = x.rank - len(shape)
        aligned = (1,) * extra + tuple(shape)
        axes = [i for i, (a, b) in enumerate(zip(x.shape, aligned, strict=True)) if a != 1 and b == 1]
        if axes:
            x = self.ReduceSum(x, axes, keepdims=1)
        return self.reshape(x, shape) if extra else x

    def total(self, x: Tensor) -> Tensor:
        """Return the sum of all values of one row: row shape [1]."""
        if x.shape[0] != 1:
            raise UnsupportedModelError(f"{x.name} has {x.shape[0]} entries per row on its batch axis")
        if x.rank == 1:
            return x
        return self.ReduceSum(x, list(range(1, x.rank)), keepdims=0)

    def take(self, numbers: Tensor, indices: Tensor) -> Tensor:
        """Return the elements of a constant vector at each row's indices, in the shape of these.

        It is one GatherElements for all rows: in ONNX Runtime a Gather is ten times slower.
        """
        index = self._in_shape(indices.value, [-1])
        gathered = self._node("GatherElements", [numbers.value, index], {"axis": 0})[0]
        value = self._in_shape(gathered, self._lengths(indices.batch_axes, indices.split, indices.shape))
        return replace(indices, value=value, dtype=numbers.dtype)

    def row_numbers(self, x: Tensor) -> Tensor:
        """Return 0, 1, … for the rows in which `x` lies in memory, int64: row shape [1]."""
        x = self.flat(x)
        count = self._node("Shape", [x.value], {"start": 0, "end": 1})[0]
        scalar = self._node("Squeeze", [count, self._ints([0])], {})[0]
        start, step = (self.constant(np.asarray(n, np.int64)).value for n in (0, 1))
        value = self._node("Range", [start, scalar, step], {})[0]
        value.dtype = ir.DataType.INT64
        value.shape = ir.Shape(
            [rows_dim(self._count_rows(x.batch_axes - {"N"}) * x.shape[0]) if "N" in x.batch_axes else None]
        )
        return Tensor(value, (1,), ir.DataType.INT64, x.batch_axes, rows=True)


def _expand_shape(x: Tensor, target: Sequence[int]) -> list[int]:
    """Return the shape for Expand: 1 on axis 0 if that axis stays."""
    return [1, *target[1:]] if x.rows and x.shape[0] == target[0] else list(target)


def along(op: Ops, array: np.ndarray, axis: str, *, zeros: bool = False) -> Tensor:
    """Return an array [count, *row] that varies over the axis K or S, the same for every row of the batch.

    It is a constant, or the part that one chunk holds.

    Args:
        zeros: fill up the last chunk with zeros instead of copies of the last row.
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
    """Return rows along an axis from a new graph input [N, count, *row], with its own for each row."""
    value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(["N", op.counts[axis], *row]))
    op.graph.inputs.append(value)
    flat = op._node("Reshape", [value, op._ints([-1, *row])], {})[0]
    return Tensor(flat, (1, *row), dtype, frozenset({"N", axis}), rows=True)


def open_weights(
    op: Ops, name: str, axis: str, dtype: ir.DataType, total: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Return weights [N, count] of such rows from a new graph input, normalised to the sum 1.

    Args:
        total: function that sums the weights of a row; the default is one node, whose order of summation may
            depend on the batch.
    """
    weight_rows = open_rows(op, name, (), axis, dtype)
    summed = total(weight_rows) if total else _reduce(op, "ReduceSum", weight_rows, axis)
    return op.Div(weight_rows, summed)


def rows_along(op: Ops, x: Tensor) -> np.ndarray:
    """Return the array [count, *row] from which `along` made `x`."""
    if x.constant is not None:
        return x.constant
    producer = x.value.producer()
    assert producer is not None
    axis, parts = op.chunks.parts[producer.attributes["part"].as_int()]
    return parts.reshape(-1, *parts.shape[2:])[: op.counts[axis]]


def mean(op: Ops, x: Tensor, over: str, weights: np.ndarray | None = None) -> Tensor:
    """Return Σ w_i x_i over the axis K or S, weights of sum 1 (None: equal); `x` if it lacks that axis."""
    if over not in x.batch_axes:
        return x
    if over in op.weights:
        return _by_open_weights(op, x, over)
    if over not in op.chunks:
        return _reduce(op, "ReduceMean", x, over) if weights is None else _weighted_sum(op, x, over, weights)
    total = _leave_chunks(op, "Sum", over, _weighted_sum(op, x, over, weights))
    return _normalised(op, total, over, weights)


def standard_error(op: Ops, x: Tensor, over: str, weights: np.ndarray | None, effective: float) -> Tensor:
    """Compute the standard error of `mean(op, x, over, weights)`: √(Σ w_i (x_i − mean)² / (n − 1)).

    Args:
        effective: n = 1/Σ w², the mean's number of independent values; above 1.
    """
    if over in op.chunks:
        variance = _normalised(op, _squared_deviations(op, x, over, weights), over, weights)
    else:
        off = op.Sub(x, mean(op, x, over, weights))
        variance = mean(op, op.Mul(off, off), over, weights)
    return op.Sqrt(op.Mul(variance, 1 / (effective - 1)))


def typical_size(op: Ops, r: Tensor) -> Tensor:
    """Average the largest |r| of each reference over the references: one number, known at compile time."""
    size = op.Abs(r)
    if r.rank > 1:
        size = op.ReduceMax(size, list(range(1, r.rank)), keepdims=1)
    return mean(op, size, "K")


def _squared_deviations(op: Ops, x: Tensor, over: str, weights: np.ndarray | None) -> Tensor:
    """Return Σ w_i (x_i − mean)² of all chunks, from each chunk's weight, mean and squared deviations."""
    weight = _reduce(op, "ReduceSum", _weights(op, x, over, weights), over)
    some = op.Max(weight, float(np.finfo(x.dtype.numpy()).tiny))  # all weights of a chunk may be 0
    average = op.Div(_weighted_sum(op, x, over, weights), some)
    off = op.Sub(x, average)
    squares = _weighted_sum(op, op.Mul(off, off), over, weights)
    return _leave_chunks(op, "Moments", over, squares, average, weight)


def _weighted_sum(op: Ops, x: Tensor, over: str, weights: np.ndarray | None) -> Tensor:
    """Return Σ w_i x_i, with weights 1 by default."""
    full = (
        weights is None and over not in op.weights and (over not in op.chunks or op.chunks.axes[over].is_even)
    )
    return _reduce(op, "ReduceSum", x if full else op.Mul(x, _weights(op, x, over, weights)), over)


def _by_open_weights(op: Ops, x: Tensor, over: str) -> Tensor:
    """Return Σ w_i x_i; in a type wider than the weights', divide by Σ w_i, which is 1 only to rounding."""
    total = _weighted_sum(op, x, over, None)
    if x.dtype == op.weights[over].dtype:
        return total
    return op.Div(total, _reduce(op, "ReduceSum", _weights(op, x, over, None), over))


def _normalised(op: Ops, total: Tensor, over: str, weights: np.ndarray | None) -> Tensor:
    return op.Div(total, op.counts[over]) if weights is None else total


def _weights(op: Ops, x: Tensor, over: str, weights: np.ndarray | None) -> Tensor:
    """Return the weights, 1 by default; 0 for rows that only fill up a chunk."""
    if over in op.weights:
        weight_rows = op.reshape(op.weights[over], (1,) * x.rank)
        return weight_rows if weight_rows.dtype == x.dtype else op.Cast(weight_rows, to=int(x.dtype))
    row_weights = np.ones(op.counts[over]) if weights is None else weights
    array = np.asarray(row_weights, x.dtype.numpy()).reshape(-1, *(1 for _ in x.shape[1:]))
    return along(op, array, over, zeros=True)


def _reduce(op: Ops, op_type: str, x: Tensor, over: str) -> Tensor:
    x = op.split(x, x.batch_axes)
    assert x.split is not None
    axis, other_axes = x.split.index(over), tuple(a for a in x.split if a != over)
    axes = op.constant(np.asarray([axis], np.int64)).value
    value = op._node(op_type, [x.value, axes], {"keepdims": 0})[0]
    return replace(x, value=value, batch_axes=x.batch_axes - {over}, split=other_axes or None)


def _leave_chunks(op: Ops, op_type: str, over: str, *tensors: Tensor) -> Tensor:
    """Emit the pseudo-operator for a value that all chunks share."""
    tensors = tuple(op.split(t, t.batch_axes) if t.batch_axes else t for t in tensors)
    for tensor in tensors:
        tensor.value.dtype = tensor.dtype  # a Scan declares its states' types
    initial = [_zeros(op, t) for t in tensors]
    values = [t.value for t in tensors]
    value = op._node(op_type, [*values, *initial], {"axis": over}, domain=DOMAIN)[0]
    return replace(tensors[0], value=value)


def _zeros(op: Ops, x: Tensor) -> ir.Value:
    """Return zeros in the shape that `x` has in memory."""
    order = x.split or ()
    sizes = [op._batch_size() if a == "N" else op.constant(np.asarray([op.sizes[a]])) for a in order]
    row = op.constant(np.asarray(x.shape, np.int64))
    shape = op._node("Concat", [s.value for s in (*sizes, row)], {"axis": 0})[0]
    zero = ir.Tensor(np.zeros(1, x.dtype.numpy()))
    return op._node("ConstantOfShape", [shape], {"value": zero})[0]
