"""Values of a combined graph: their batch axes, their layout in memory, and the builder of nodes.

If an axis (the references' K, or the points' S) is walked in chunks, the graph is built for the rows of
one chunk. Three pseudo-operators mark where that region begins and ends; `scan` replaces them:

- `Chunk()` is a chunk's part of an array that runs along the axis;
- `Sum(x, zeros)` is the sum of x over all chunks;
- `Moments(squares, mean, weight, zeros, zeros, zeros)` merges the chunks' weighted moments into the sum
  of squared deviations of all (Chan, Golub and LeVeque, "Updating Formulae …", 1979, equation 2.1).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

AXES = ("N", "T", "C", "K", "S")
STACKED = ("M",)  # instead of the axes of `Tensor.split`: all of them as one
BatchAxes = frozenset[str]
NONE: BatchAxes = frozenset()


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value of the combined graph.

    Attributes:
        shape: the shape for one row (at batch 1, one target, one reference).
        batch_axes: the axes over which it varies: rows N, targets T, concepts C, references K, points S.
        rows: whether it belongs to rows, even if it is equal for all of them; False for weights.
        split: the batch axes in front of `shape` in memory; None if it is flat.
    """

    value: ir.Value
    shape: tuple[int, ...]
    dtype: ir.DataType
    batch_axes: BatchAxes = NONE
    rows: bool = False
    split: tuple[str, ...] | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def name(self) -> str:
        return self.value.name or "?"

    @property
    def constant(self) -> np.ndarray | None:
        """The array of an initializer; None for computed values."""
        return None if self.value.const_value is None else self.value.const_value.numpy()


DOMAIN = "rationale.chunks"  # domain of the pseudo-operators; finished graphs contain none


@dataclass(frozen=True)
class Axis:
    """An axis of `count` rows, walked `size` at a time; rows of weight 0 fill up the last chunk."""

    count: int
    size: int

    @property
    def chunks(self) -> int:
        return -(-self.count // self.size)

    @property
    def is_even(self) -> bool:
        """True if the last chunk is full."""
        return self.count % self.size == 0

    def cut(self, array: np.ndarray, *, zeros: bool = False) -> np.ndarray:
        """Cut [count, …] into [chunks, size, …], filled up with copies of the last row, or with zeros."""
        surplus = self.chunks * self.size - self.count
        if surplus:
            last = np.zeros_like(array[-1:]) if zeros else array[-1:]
            array = np.concatenate([array, *[last] * surplus])
        return array.reshape(self.chunks, self.size, *array.shape[1:])


@dataclass
class Chunks:
    """The chunked axes by name, and the arrays that enter their regions.

    Attributes:
        parts: axis and array [chunks, …] of each Chunk node, by its `part` attribute.
        whole: the constants that run along an axis that is walked as a whole.
    """

    axes: Mapping[str, Axis] = field(default_factory=dict)
    parts: list[tuple[str, np.ndarray]] = field(default_factory=list)
    whole: dict[ir.Value, str] = field(default_factory=dict)

    def __contains__(self, axis: str) -> bool:
        return axis in self.axes

    def enter(self, axis: str, parts: np.ndarray) -> dict[str, str | int]:
        """Store an array [chunks, …]; return the attributes of its Chunk node."""
        self.parts.append((axis, parts))
        return {"axis": axis, "part": len(self.parts) - 1}


Operand = Tensor | float | int | np.ndarray | Sequence[int] | None


class Emitter:
    """A graph under construction: fresh names, shared constants, plain nodes."""

    def __init__(self, graph: ir.Graph, opset: int, dtype: ir.DataType) -> None:
        self.graph = graph
        self.opset = opset
        self.dtype = dtype  # of numbers, unless a tensor beside them has another type
        self.scope = "rationale"
        self._count = 0
        owned = [*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)]
        self._taken = {v.name for v in owned} | {n.name for n in graph}
        self._constants: dict[tuple[bytes, str, tuple[int, ...]], Tensor] = {}

    def tensor(self, operand: Operand, like: Tensor | None = None) -> Tensor | None:
        if operand is None or isinstance(operand, Tensor):
            return operand
        if isinstance(operand, np.ndarray):
            return self.constant(operand)
        if isinstance(operand, (list, tuple)):
            return self.constant(np.asarray(operand, np.int64))
        dtype = self.dtype if like is None else like.dtype
        return self.constant(np.asarray(operand, dtype.numpy()))

    def array(self, numbers: npt.ArrayLike, like: Tensor) -> Tensor:
        """Return a constant of `like`'s dtype."""
        return self.constant(np.asarray(numbers, like.dtype.numpy()))

    def row_constant(self, array: np.ndarray) -> Tensor:
        """Return a constant with a batch axis 0: it is the same for every row."""
        return replace(self.constant(array), rows=True)

    def constant(self, array: np.ndarray) -> Tensor:
        """Return an initializer; small equal ones are shared."""
        key = (array.tobytes(), str(array.dtype), array.shape) if array.size <= 64 else None
        if key is not None and key in self._constants:
            return self._constants[key]
        name = self._fresh("constant")
        value = ir.Value(name=name, const_value=ir.Tensor(array, name=name))
        value.dtype, value.shape = ir.DataType.from_numpy(array.dtype), ir.Shape(array.shape)
        self.graph.register_initializer(value)
        tensor = Tensor(value, array.shape, ir.DataType.from_numpy(array.dtype))
        if key is not None:
            self._constants[key] = tensor
        return tensor

    def _node(
        self,
        op_type: str,
        values: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        outputs: int = 1,
        domain: str = "",
    ) -> Sequence[ir.Value]:
        """Append a node without lifting, on values as they lie in memory."""
        name = self._fresh(op_type)
        used = {k: v for k, v in attributes.items() if v is not None}
        node = ir.node(op_type, values, used, domain=domain, num_outputs=outputs, name=name)
        for i, value in enumerate(node.outputs):
            value.name = name if i == 0 else f"{name}.{i}"
        self.graph.append(node)
        return node.outputs

    def _fresh(self, kind: str) -> str:
        while True:
            self._count += 1
            name = f"{self.scope}/{kind}_{self._count}"
            if name not in self._taken:
                return name

    def _ints(self, numbers: Sequence[int]) -> ir.Value:
        return self.constant(np.asarray(numbers, np.int64)).value


class Layouts(Emitter):
    """A builder that brings tensors into an operator's layout; all layouts are the same bytes."""

    def __init__(
        self,
        graph: ir.Graph,
        opset: int,
        sizes: Mapping[str, int],
        dtype: ir.DataType,
        chunks: Chunks | None = None,
    ) -> None:
        super().__init__(graph, opset, dtype)
        self.counts = dict(sizes)  # lengths of T, K and S; N is known only at run time
        self.chunks = chunks or Chunks()
        self.sizes = self.counts | {name: axis.size for name, axis in self.chunks.axes.items()}
        self._layouts: dict[tuple[ir.Value, tuple[str, ...] | None, tuple[int, ...]], Tensor] = {}
        self._batch: Tensor | None = None
        self._batch_source: Tensor | None = None

    def bind_batch(self, x: Tensor) -> None:
        """Set the tensor [N·f, …] from which operators read the batch size if they need it."""
        self._batch_source = x

    def _batch_size(self) -> Tensor:
        """Return N, as an int64 tensor of shape [1]."""
        if self._batch is None:
            source = self._batch_source
            assert source is not None
            shape = self._node("Shape", [source.value], {"start": 0, "end": 1})[0]
            self._batch = Tensor(shape, (1,), ir.DataType.INT64)
            if source.shape[0] != 1:
                each = self._ints([source.shape[0]])
                count = self._node("Div", [shape, each], {})[0]
                self._batch = replace(self._batch, value=count)
        return self._batch

    def flat(self, x: Tensor) -> Tensor:
        """Return `x` flat: [batch axes·row[0], *row[1:]]; for a row that is one number, [batch axes]."""
        if x.split is None:
            return x
        if not x.shape:
            return self.stacked(x)
        return self.in_layout(x, None, x.shape)

    def split(self, x: Tensor, axes: Iterable[str]) -> Tensor:
        """Return `x` split: [*axes, *row], with length 1 on axes over which it does not vary."""
        order = tuple(a for a in AXES if a in axes)
        if x.split == order or not x.rows:
            return x
        return self.in_layout(x, order, x.shape)

    def stacked(self, x: Tensor) -> Tensor:
        """Return `x` stacked: [batch axes, *row]."""
        if x.split == STACKED:
            return x
        if x.split is not None and len(x.split) == 1 and x.batch_axes == set(x.split):
            return replace(x, split=STACKED)
        return self.in_layout(x, STACKED, x.shape)

    def plain(self, x: Tensor) -> Tensor:
        """Return `x` as *row, if it is the same in all rows."""
        assert not x.batch_axes
        if x.split is None:
            return x
        return self.in_layout(x, None, x.shape)

    def in_columns(self, x: Tensor) -> Tensor:
        """Return `x` with the references' axis K last in its row, of length 1 if all references share `x`.

        A tensor with few elements per row is then broadcast over long pieces of memory.
        """
        if "K" not in x.batch_axes:
            return self.in_layout(x, x.split, (*x.shape, 1))
        axes = tuple(a for a in AXES if a in x.batch_axes)
        k, last = axes.index("K"), len(axes) + x.rank
        order = [*range(k), *range(k + 1, last), k]
        value = self._node("Transpose", [self.split(x, axes).value], {"perm": order})[0]
        batch_axes, other_axes = x.batch_axes - {"K"}, tuple(a for a in axes if a != "K")
        return replace(
            x, value=value, shape=(*x.shape, self.sizes["K"]), batch_axes=batch_axes, split=other_axes or None
        )

    def from_columns(self, x: Tensor) -> Tensor:
        """Undo `in_columns` for a tensor that differs between references."""
        axes = tuple(a for a in AXES if a in x.batch_axes | {"K"})
        k, last = axes.index("K"), len(axes) + x.rank - 2
        order = [*range(k), last, *range(k, last)]
        value = self._node("Transpose", [self.split(x, x.batch_axes).value], {"perm": order})[0]
        return replace(x, value=value, shape=x.shape[:-1], batch_axes=frozenset(axes), split=axes)

    def in_layout(self, x: Tensor, split: tuple[str, ...] | None, shape: tuple[int, ...]) -> Tensor:
        """Return `x` with the layout `split` and a row shape `shape` of equally many elements."""
        if x.split == split and x.shape == shape:
            return x
        key = (x.value, split, shape)
        if key not in self._layouts:
            value = self._in_shape(x.value, self._lengths(x.batch_axes, split, shape))
            self._layouts[key] = replace(x, value=value, split=split, shape=shape)
        return self._layouts[key]

    def _in_shape(self, value: ir.Value, lengths: Sequence[int]) -> ir.Value:
        """Reshape a value; if it comes from a Reshape, reshape that one's input."""
        producer = value.producer()
        while producer is not None and (producer.domain, producer.op_type) == ("", "Reshape"):
            source = producer.inputs[0]
            assert source is not None
            value, producer = source, source.producer()
        return self._node("Reshape", [value, self._ints(lengths)], {})[0]

    def _lengths(
        self, batch_axes: BatchAxes, split: tuple[str, ...] | None, shape: tuple[int, ...]
    ) -> list[int]:
        """Return the lengths in memory, with −1 if N is among the axes."""
        if split is None:
            first = [-1 if "N" in batch_axes else self._count_rows(batch_axes) * shape[0]] if shape else []
            return [*first, *shape[1:]]
        if split == STACKED:
            return [-1 if "N" in batch_axes else self._count_rows(batch_axes), *shape]
        return [*((-1 if a == "N" else self.sizes[a]) if a in batch_axes else 1 for a in split), *shape]

    def _count_rows(self, batch_axes: BatchAxes) -> int:
        return math.prod(self.sizes[a] for a in batch_axes)

    def vary(self, x: Tensor, batch_axes: BatchAxes) -> Tensor:
        """Return `x` repeated over the `batch_axes` that it lacks; only this method copies rows."""
        if not x.rows or batch_axes <= x.batch_axes:
            return x
        order = tuple(a for a in AXES if a in batch_axes | x.batch_axes)
        sizes = [
            self._batch_size() if a == "N" else self.constant(np.asarray([self.sizes[a]])) for a in order
        ]
        row = self.constant(np.asarray(x.shape, np.int64))
        target = self._node("Concat", [s.value for s in [*sizes, row]], {"axis": 0})[0]
        value = self._node("Expand", [self.split(x, order).value, target], {})[0]
        return replace(x, value=value, batch_axes=batch_axes | x.batch_axes, split=order)

    def _lies_as(self, x: Tensor, shape: Sequence[int]) -> bool:
        """Tell whether `x` lies in memory as [N, *shape]."""
        if x.split is None:
            return x.batch_axes == {"N"} and x.shape == (1, *shape)
        if x.split == STACKED:
            return x.batch_axes == {"N"} and x.shape == tuple(shape)
        sizes = [self.sizes[a] if a in x.batch_axes else 1 for a in x.split[1:]]
        return x.split[0] == "N" and "N" in x.batch_axes and (*sizes, *x.shape) == tuple(shape)

    def attributions_output(self, x: Tensor, name: str, axes: Sequence[str] = "T") -> ir.Value:
        """Return the graph output [N, T, *x.shape[1:]] of a tensor that varies over rows and targets.

        Args:
            axes: "TC" for a tensor that also varies over concepts: [N, T, C, …].
        """
        sizes = [self.sizes[a] for a in axes]
        x = self.vary(x, frozenset({"N", *(a for a, n in zip(axes, sizes, strict=True) if n > 1)}))
        return self._output(x, (*sizes, *x.shape[1:]), name)

    def along(self, x: Tensor, axis: str) -> Tensor:
        """Turn axis 1 of the row [1, n, …] into the batch axis `axis`: n rows [1, …], one after the other."""
        order = tuple(a for a in AXES if a in x.batch_axes)
        assert AXES.index(axis) > max(map(AXES.index, order), default=-1)
        x = self.in_layout(x, order, (x.shape[1], 1, *x.shape[2:]))
        return replace(x, shape=x.shape[1:], batch_axes=x.batch_axes | {axis}, split=(*order, axis))

    def beside(self, x: Tensor, axis: str) -> Tensor:
        """Turn the last batch axis into axis 1 of the row, [1, n, …]: the inverse of `along`."""
        assert axis == max(x.batch_axes, key=AXES.index)
        shape, other_axes = (1, self.sizes[axis], *x.shape[1:]), x.batch_axes - {axis}
        value = self._in_shape(x.value, self._lengths(other_axes, None, shape))
        return replace(x, value=value, shape=shape, batch_axes=other_axes, split=None)

    def rows_output(self, x: Tensor, name: str) -> ir.Value:
        """Return the graph output [N, *x.shape[1:]] of a tensor that varies over rows."""
        return self._output(self.vary(x, frozenset({"N"})), x.shape[1:], name)

    def _output(self, x: Tensor, shape: Sequence[int], name: str) -> ir.Value:
        value = x.value
        if not self._lies_as(x, shape):
            value = self._in_shape(value, [-1, *shape])
        elif value in self.graph.outputs or value.producer() is None or value.name in self._taken:
            value = self._node("Identity", [value], {})[0]
        value.name = name
        value.dtype, value.shape = x.dtype, ir.Shape(["N", *shape])
        return value
