"""Emitting ONNX nodes over rows that a rule never sees.

A rule is written for the model's own tensors: `m: [1, C, H, W]`. The combined graph needs it for every
row of the batch (N), every target (T), every reference (K) and every point of a path or draw of noise
(S) at once. As in JAX's vmap, a `Tensor` carries the axes it varies over beside the shape it has for one
row, and `Ops` lifts each operator:

- operators that broadcast run on *split* tensors, [N, T, K, S, *row], so that x [N, 1, 1, 1, …] meets
  r [1, 1, K, 1, …] without being tiled;
- all others run on *flat* tensors, [N·T·K·S·row[0], *row[1:]], which is the layout the model itself has
  with more rows.

Going from one form to the other is a Reshape, which moves no data. A multiplier that does not (yet)
depend on the reference simply has no K among its axes and costs one row.

This module and `lowering` are the only importers of onnx_ir and onnxscript.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from compiler.errors import UnsupportedModelError
from compiler.shapes import infer_outputs
from compiler.tensor import AXES, NONE, Lead, Tensor, broadcast_shape, broadcasts, result_dtype

Operand = Tensor | float | int | np.ndarray | Sequence[int] | None


class Ops:
    """`op.Conv(x, w, strides=[2, 2])` appends a lifted node to the graph and returns its `Tensor`.

    Operands may be tensors, Python numbers (of the dtype of the first tensor), lists of ints (int64)
    or arrays; None leaves an optional operand out.
    """

    def __init__(self, graph: ir.Graph, opset: int, sizes: Mapping[str, int], dtype: ir.DataType) -> None:
        self.graph = graph
        self.opset = opset
        self.dtype = dtype  # of numbers beside which no tensor says another
        self.sizes = dict(sizes)  # of T, K and S; N is known at run time only
        self.scope = "rationale"
        self._count = 0
        owned = [*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)]
        self._taken = {v.name for v in owned} | {n.name for n in graph}
        self._constants: dict[tuple[bytes, str, tuple[int, ...]], Tensor] = {}
        self._forms: dict[tuple[ir.Value, tuple[str, ...] | None], Tensor] = {}
        self._batch: Tensor | None = None
        self._batch_source: Tensor | None = None

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
    ) -> list[Tensor]:
        """Appends one node; see the class. Returns its outputs, flat or split as the operator needs."""
        given = [o for o in operands if isinstance(o, Tensor)]
        numeric = [t for t in given if t.dtype != ir.DataType.BOOL]
        first = next((t for t in numeric if t.dtype.is_floating_point()), numeric[0] if numeric else None)
        tensors = [self.tensor(o, first) for o in operands]
        while tensors and tensors[-1] is None:
            tensors.pop()
        if broadcasts(op_type, domain, tensors):
            return [self._emit_broadcasting(op_type, tensors, attributes)]
        return self._emit_rows(op_type, tensors, attributes, outputs, domain)

    # -- operands -----------------------------------------------------------------------------------

    def tensor(self, operand: Operand, like: Tensor | None = None) -> Tensor | None:
        if operand is None or isinstance(operand, Tensor):
            return operand
        if isinstance(operand, np.ndarray):
            return self.constant(operand)
        if isinstance(operand, (list, tuple)):
            return self.constant(np.asarray(operand, np.int64))
        dtype = self.dtype if like is None else like.dtype
        return self.constant(np.asarray(operand, dtype.numpy()))

    def array(self, numbers: Sequence[float], like: Tensor) -> Tensor:
        """A constant of `like`'s dtype."""
        return self.constant(np.asarray(numbers, like.dtype.numpy()))

    def row_constant(self, array: np.ndarray) -> Tensor:
        """A constant whose axis 0 is the batch's: the same for every row."""
        return replace(self.constant(array), rows=True)

    def constant(self, array: np.ndarray) -> Tensor:
        """An initializer; small equal ones are shared."""
        key = (array.tobytes(), str(array.dtype), array.shape) if array.size <= 64 else None
        if key is not None and key in self._constants:
            return self._constants[key]
        name = self._fresh("constant")
        value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
        value.dtype, value.shape = ir.DataType.from_numpy(array.dtype), ir.Shape(array.shape)
        self.graph.register_initializer(value)
        tensor = Tensor(value, array.shape, ir.DataType.from_numpy(array.dtype))
        if key is not None:
            self._constants[key] = tensor
        return tensor

    def bind_batch(self, x: Tensor) -> None:
        """Names the tensor [N·f, …] from which the batch size is read where an operator must know it."""
        self._batch_source = x

    def _batch_size(self) -> Tensor:
        """N, as an int64 tensor of shape [1]."""
        if self._batch is None:
            source = self._batch_source
            assert source is not None
            shape = self._node("Shape", [source.value], {"start": 0, "end": 1})[0]
            self._batch = Tensor(shape, (1,), ir.DataType.INT64)
            if source.shape[0] != 1:
                self._batch = self.Div(self._batch, [source.shape[0]])
        return self._batch

    # -- forms --------------------------------------------------------------------------------------

    def flat(self, x: Tensor) -> Tensor:
        """[lead·row[0], *row[1:]]."""
        if x.split is None:
            return x
        first = -1 if "N" in x.lead else self._count_rows(x.lead) * x.shape[0]
        return self._form(x, None, [first, *x.shape[1:]])

    def split(self, x: Tensor, axes: Iterable[str]) -> Tensor:
        """[*axes, *row], 1 on the axes over which `x` does not vary."""
        order = tuple(a for a in AXES if a in axes)
        if x.split == order or not x.rows:
            return x
        sizes = [(-1 if a == "N" else self.sizes[a]) if a in x.lead else 1 for a in order]
        return self._form(x, order, [*sizes, *x.shape])

    def _form(self, x: Tensor, axes: tuple[str, ...] | None, shape: list[int]) -> Tensor:
        key = (x.value, axes)
        if key not in self._forms:
            target = self.constant(np.asarray(shape, np.int64))
            value = self._node("Reshape", [x.value, target.value], {})[0]
            self._forms[key] = replace(x, value=value, split=axes)
        return self._forms[key]

    def _count_rows(self, lead: Lead) -> int:
        return math.prod(self.sizes[a] for a in lead)

    def vary(self, x: Tensor, lead: Lead) -> Tensor:
        """`x`, repeated over the axes of `lead` that it lacks: the one place where rows are copied."""
        if not x.rows or lead <= x.lead:
            return x
        order = tuple(a for a in AXES if a in lead | x.lead)
        sizes = [
            self._batch_size() if a == "N" else self.constant(np.asarray([self.sizes[a]])) for a in order
        ]
        row = self.constant(np.asarray(x.shape, np.int64))
        target = self._node("Concat", [s.value for s in [*sizes, row]], {"axis": 0})[0]
        value = self._node("Expand", [self.split(x, order).value, target], {})[0]
        return replace(x, value=value, lead=lead | x.lead, split=order)

    # -- emission -----------------------------------------------------------------------------------

    def _emit_broadcasting(
        self, op_type: str, tensors: Sequence[Tensor | None], attributes: Mapping[str, Any]
    ) -> Tensor:
        aligned, lead, axes = self._align([t for t in tensors if t is not None])
        queue = iter(aligned)
        values = [None if t is None else next(queue).value for t in tensors]
        value = self._node(op_type, values, attributes)[0]
        shape = broadcast_shape(op_type, aligned)
        rows = any(t.rows for t in aligned)
        return Tensor(value, shape, result_dtype(op_type, aligned, attributes), lead, rows, axes)

    def _align(self, tensors: list[Tensor]) -> tuple[list[Tensor], Lead, tuple[str, ...] | None]:
        """Brings operands to forms that broadcast against each other."""
        rowed = [t for t in tensors if t.rows]
        lead = NONE.union(*(t.lead for t in rowed))
        if any(t.rank > min((r.rank for r in rowed), default=t.rank) for t in tensors):
            names = ", ".join(f"{t.name} {list(t.shape)}" for t in tensors)
            raise UnsupportedModelError(f"broadcasting moves the batch axis: {names}")
        same = all(t.lead == lead for t in rowed)
        if same and len({t.split for t in rowed}) <= 1:
            return tensors, lead, rowed[0].split if rowed else None
        if same or all(t.lead == lead or (not t.lead and t.shape[0] == 1) for t in rowed):
            return [self.flat(t) for t in tensors], lead, None
        order = tuple(a for a in AXES if a in lead)
        return [self.split(t, order) for t in tensors], lead, order

    def _emit_rows(
        self,
        op_type: str,
        tensors: Sequence[Tensor | None],
        attributes: Mapping[str, Any],
        outputs: int,
        domain: str,
    ) -> list[Tensor]:
        present = [t for t in tensors if t is not None]
        lead = NONE.union(*(t.lead for t in present if t.rows))
        flat = [None if t is None else self.flat(self.vary(t, lead)) for t in tensors]
        rows = any(t.rows for t in present)
        values = self._node(
            op_type, [None if t is None else t.value for t in flat], attributes, outputs, domain
        )
        specs = infer_outputs(op_type, domain, self.opset, attributes, flat, outputs)
        return [
            Tensor(value, shape, dtype, lead if rows else NONE, rows)
            for value, (shape, dtype) in zip(values, specs, strict=True)
        ]

    def _node(
        self,
        op_type: str,
        values: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        outputs: int = 1,
        domain: str = "",
    ) -> Sequence[ir.Value]:
        name = self._fresh(op_type)
        used = {k: v for k, v in attributes.items() if v is not None}
        node = ir.node(op_type, values, used, domain=domain, num_outputs=outputs, name=name)
        for i, value in enumerate(node.outputs):
            value.name = name if i == 0 else f"{name}.{i}"
        self.graph.append(node)
        return node.outputs

    def _fresh(self, what: str) -> str:
        while True:
            self._count += 1
            name = f"{self.scope}/{what}_{self._count}"
            if name not in self._taken:
                return name

    # -- what rules and the walk share ----------------------------------------------------------------

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """`x` with the row shape `shape`."""
        if tuple(shape) == x.shape:
            return x
        x = self.flat(x)
        first = -1 if x.rows else shape[0]
        return self.Reshape(x, [first, *shape[1:]])

    def expand(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """`x` broadcast to the row shape `shape`; a no-op where it has it."""
        if tuple(shape) == x.shape:
            return x
        target = np.broadcast_shapes(x.shape, tuple(shape))
        return self.Expand(x, [1, *target[1:]] if x.rows else list(target))

    def sum_to(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """The adjoint of broadcasting a row of `shape` to `x`'s: sums what was repeated."""
        extra = x.rank - len(shape)
        aligned = (1,) * extra + tuple(shape)
        axes = [i for i, (a, b) in enumerate(zip(x.shape, aligned, strict=True)) if a != 1 and b == 1]
        if axes:
            x = self.ReduceSum(x, axes, keepdims=1)
        return self.reshape(x, shape) if extra else x

    def total(self, x: Tensor) -> Tensor:
        """The sum of all values of one row: row shape [1]."""
        if x.shape[0] != 1:
            raise UnsupportedModelError(f"{x.name} has {x.shape[0]} entries per row on its batch axis")
        if x.rank == 1:
            return x
        return self.ReduceSum(x, list(range(1, x.rank)), keepdims=0)

    def mean(self, x: Tensor, over: str, weights: np.ndarray | None = None) -> Tensor:
        """Σ w_i x_i over the axis K or S, weights summing to 1 (None: all equal); `x` where it lacks it."""
        if over not in x.lead:
            return x
        x = self.split(x, x.lead)
        assert x.split is not None
        axis, rest = x.split.index(over), tuple(a for a in x.split if a != over)
        if weights is None:
            value = self._node("ReduceMean", [x.value, self._ints([axis])], {"keepdims": 0})[0]
        else:
            shape = [len(weights), *(1 for _ in (*x.split[axis + 1 :], *x.shape))]
            w = self.constant(np.asarray(weights, x.dtype.numpy()).reshape(shape))
            product = self._node("Mul", [x.value, w.value], {})[0]
            value = self._node("ReduceSum", [product, self._ints([axis])], {"keepdims": 0})[0]
        mean = replace(x, value=value, lead=x.lead - {over}, split=rest or None)
        return mean if rest else replace(mean, split=None)

    def standard_error(self, x: Tensor, over: str, weights: np.ndarray | None, effective: float) -> Tensor:
        """The standard error of `mean(x, over, weights)`: √(Σ w_i (x_i − mean)² / (n − 1)).

        Args:
            effective: n = 1/Σ w², the number of independent values that the mean is worth; above 1.
        """
        off = self.Sub(x, self.mean(x, over, weights))
        variance = self.mean(self.Mul(off, off), over, weights)
        return self.Sqrt(self.Mul(variance, 1 / (effective - 1)))

    def along(self, array: np.ndarray, axis: str) -> Tensor:
        """A constant [size, *row] that varies over the axis K or S, the same for every row of the batch."""
        return replace(self.constant(array), shape=(1, *array.shape[1:]), lead=frozenset({axis}), rows=True)

    def _ints(self, numbers: Sequence[int]) -> ir.Value:
        return self.constant(np.asarray(numbers, np.int64)).value

    def attributions_output(self, x: Tensor, name: str) -> ir.Value:
        """The graph output [N, T, *x.shape[1:]] of a tensor that varies over rows and targets."""
        targets = self.sizes["T"]
        x = self.vary(x, frozenset({"N", "T"} if targets > 1 else {"N"}))
        return self._output(x, (targets, *x.shape[1:]), name)

    def rows_output(self, x: Tensor, name: str) -> ir.Value:
        """The graph output [N, *x.shape[1:]] of a tensor that varies over rows."""
        return self._output(self.vary(x, frozenset({"N"})), x.shape[1:], name)

    def _output(self, x: Tensor, shape: Sequence[int], name: str) -> ir.Value:
        value = self._node("Reshape", [x.value, self._ints([-1, *shape])], {})[0]
        value.name = name
        value.dtype, value.shape = x.dtype, ir.Shape(["N", *shape])
        return value
