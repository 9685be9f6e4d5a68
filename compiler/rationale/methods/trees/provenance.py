"""The raw elements from which each element of an inner tensor is computed, found operator by operator.

Each operator is examined for one row. An operator that moves values runs on numbers that stand for sets of
players. An elementwise operator joins its operands' sets. For any other operator, each result depends on
everything that the operator reads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from rationale.errors import UnsupportedModelError
from rationale.graph.batching import is_elementwise
from rationale.graph.nodes import values_read
from rationale.graph.runtime.session import Runner
from rationale.lowering import Lowered
from rationale.methods.target import SIZE_OPERATORS

_MOVES = frozenset(
    "Expand Flatten Gather GatherElements GatherND Identity Reshape Slice Split Squeeze Tile Transpose "
    "Unsqueeze".split()
)
_ML = "ai.onnx.ml"
_EACH = frozenset(
    {("", name) for name in "And Equal Greater GreaterOrEqual Less LessOrEqual Not Or Where Xor".split()}
    | {(_ML, name) for name in "Binarizer CategoryMapper Imputer LabelEncoder Scaler".split()}
)  # elementwise operators beside those with rules
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True)
class ElementOrigins:
    """The players on which one row of a tensor depends.

    Attributes:
        players_of: for each element of the flat row, its players.
        joined: for a set of several players, the operator that first joined them.
    """

    players_of: tuple[frozenset[int], ...]
    joined: Mapping[frozenset[int], str]


def element_origins(
    lowered: Lowered, nodes: Sequence[ir.Node], players: Mapping[str, np.ndarray], tensor: str
) -> ElementOrigins:
    """Return the players on which one row of a tensor depends.

    Args:
        nodes: the nodes that compute the tensor from those of the players, in order.
        players: the player of each element of a row, by tensor, in the row's shape [1, …].

    Raises:
        UnsupportedModelError: if an operator on several players has a result of unknown shape.
    """
    tracker = _track(lowered, nodes, players)
    return ElementOrigins(tracker.players_of(tensor), tracker.joined)


def all_origins(
    lowered: Lowered, nodes: Sequence[ir.Node], players: Mapping[str, np.ndarray]
) -> dict[str, tuple[frozenset[int], ...]]:
    """Return `element_origins` for every tensor that depends on players, by name."""
    tracker = _track(lowered, nodes, players)
    return {name: tracker.players_of(name) for name in tracker.numbers_of}


def copied_elements(
    lowered: Lowered, nodes: Sequence[ir.Node], places: Mapping[str, np.ndarray], tensor: str
) -> tuple[int | None, ...]:
    """Return the place that each element of a tensor's row copies; None if the element is computed.

    Args:
        nodes, places: like those of `element_origins`.
    """
    tracker = _OriginTracker(lowered)
    keep = [node for node in nodes if tracker.keeps_numbers(node)]
    return tuple(
        min(p) if len(p) == 1 else None for p in element_origins(lowered, keep, places, tensor).players_of
    )


def _track(lowered: Lowered, nodes: Sequence[ir.Node], players: Mapping[str, np.ndarray]) -> "_OriginTracker":
    tracker = _OriginTracker(lowered)
    for name, array in players.items():
        tracker.numbers_of[name] = tracker.numbers([frozenset({int(p)}) for p in array.flat], array.shape)
    for node in nodes:
        tracker.record(node)
    return tracker


@dataclass
class _OriginTracker:
    """The players of every element: each set of players has a number, and each value an array of numbers."""

    lowered: Lowered
    numbers_of: dict[str, np.ndarray] = field(default_factory=dict)
    sets: list[frozenset[int]] = field(default_factory=lambda: [_NOTHING])  # by their numbers
    numbered: dict[frozenset[int], int] = field(default_factory=lambda: {_NOTHING: 0})
    joined: dict[frozenset[int], str] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)  # values without missing numbers

    def numbers(self, sets: Sequence[frozenset[int]], shape: tuple[int, ...]) -> np.ndarray:
        return np.asarray([self._number(s) for s in sets], np.int64).reshape(shape)

    def _number(self, players: frozenset[int]) -> int:
        if players not in self.numbered:
            self.numbered[players] = len(self.sets)
            self.sets.append(players)
        return self.numbered[players]

    def players_of(self, name: str) -> tuple[frozenset[int], ...]:
        """Return the players of each element of a tensor; empty sets if it depends on no player."""
        numbers = self.numbers_of[name] if name in self.numbers_of else np.zeros(self.shape(name), np.int64)
        return tuple(self.sets[i] for i in numbers.flat)

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self.lowered.specs:
            raise UnsupportedModelError(
                f"the shape of {name!r} is not known before the model runs, nor the inputs that it depends "
                "on: export it with static feature sizes."
            )
        return self.lowered.specs[name][0]

    def record(self, node: ir.Node) -> None:
        """Record the players of a node's outputs."""
        operands = [v for v in values_read(node) if v.name in self.numbers_of]
        if not operands or node.op_type in SIZE_OPERATORS:
            return
        if self._has_no_missing(node):
            self.whole.add(str(node.outputs[0].name))
        if self._is_zero(node):
            numbers = [np.zeros(self.shape(str(node.outputs[0].name)), np.int64)]
        elif self._moves(node):
            numbers = self._moved(node)
        elif (position := _looks_up(node)) is not None:
            numbers = [self._repeat_over_rows(node, position)]
        elif is_elementwise(node.op_type, node.domain) or (node.domain, node.op_type) in _EACH:
            numbers = [self._broadcast(node)]
        else:
            every = self._union(
                node, np.concatenate([self.numbers_of[str(v.name)].reshape(-1) for v in operands])
            )
            numbers = [np.full(self.shape(str(v.name)), every) for v in node.outputs if v.name]
        self.numbers_of.update(zip((str(v.name) for v in node.outputs if v.name), numbers, strict=False))

    def keeps_numbers(self, node: ir.Node) -> bool:
        """Tell whether a node keeps numbers, apart from rounding to another float type."""
        return self._moves(node) or (node.op_type == "Cast" and node.attributes["to"].as_int() in _FLOATS)

    def _has_no_missing(self, node: ir.Node) -> bool:
        """Tell whether a node's output has no missing numbers: an Imputer's Where, or its moved result."""
        if node.op_type == "Where":
            test = node.inputs[0].producer() if node.inputs[0] is not None else None
            return test is not None and test.op_type == "IsNaN" and test.inputs[0] is node.inputs[2]
        moves = self._moves(node) or node.op_type == "Cast"
        return moves and all(v is None or v.is_initializer() or v.name in self.whole for v in node.inputs)

    def _is_zero(self, node: ir.Node) -> bool:
        """Tell whether a node multiplies numbers by 0; skl2onnx does this to count the rows of a column."""
        constants = [v.const_value for v in node.inputs if v is not None and v.const_value is not None]
        computed = [v for v in node.inputs if v is not None and v.const_value is None]
        zero = node.op_type == "Mul" and any(not c.numpy().any() for c in constants)
        return zero and all(v.name in self.whole for v in computed)

    def _moves(self, node: ir.Node) -> bool:
        """Tell whether a node moves elements by indices that do not depend on a row."""
        if node.domain or node.op_type == "Concat":
            return not node.domain
        first, *indices = node.inputs
        fixed = all(v is None or v.is_initializer() or v.name in self.lowered.constants for v in indices)
        return node.op_type in _MOVES and fixed and first is not None and not first.is_initializer()

    def _moved(self, node: ir.Node) -> list[np.ndarray]:
        """Return the numbers after a node has moved them."""
        operands: list[ir.Value | None] = []
        data, constants = dict[str, np.ndarray](), list[ir.Value]()
        for i, value in enumerate(node.inputs):
            if value is None:
                operands.append(None)
            elif i and node.op_type != "Concat":
                constant = value.const_value
                array = self.lowered.constants[str(value.name)] if constant is None else constant.numpy()
                # A new tensor: it gets the value's name, and the original tensor belongs to the user.
                constants.append(ir.Value(name=f"place{i}", const_value=ir.Tensor(array)))
                operands.append(constants[-1])
            else:
                data[f"data{i}"] = self._operand_numbers(node, i)
                operands.append(_integers(f"data{i}", data[f"data{i}"].shape))
        copy = ir.Node(
            "", node.op_type, operands, list(node.attributes.values()), num_outputs=len(node.outputs)
        )
        for i, value in enumerate(copy.outputs):
            value.name, value.type = f"moved{i}", ir.TensorType(ir.DataType.INT64)
        graph = ir.Graph(
            [v for v in operands if v is not None and v.name in data],
            copy.outputs,
            nodes=[copy],
            initializers=constants,
            opset_imports=self.lowered.model.graph.opset_imports,
            name="moves",
        )
        model = ir.Model(graph, ir_version=self.lowered.model.ir_version)
        return list(Runner(model, optimise=False, users_model=True)(data).values())

    def _operand_numbers(self, node: ir.Node, position: int) -> np.ndarray:
        """Return the players of an operand; a constant has none."""
        value = node.inputs[position]
        assert value is not None
        if str(value.name) in self.numbers_of:
            return self.numbers_of[str(value.name)]
        constant = value.const_value
        return np.zeros(self.shape(str(value.name)) if constant is None else constant.numpy().shape, np.int64)

    def _repeat_over_rows(self, node: ir.Node, position: int) -> np.ndarray:
        """Repeat each element's number along the axes of the table row that it looks up."""
        by, shape = self._operand_numbers(node, position), self.shape(str(node.outputs[0].name))
        return np.broadcast_to(by.reshape(*by.shape, *(1 for _ in shape[by.ndim :])), shape)

    def _broadcast(self, node: ir.Node) -> np.ndarray:
        arrays = [self._operand_numbers(node, i) for i, v in enumerate(node.inputs) if v is not None]
        shape, nonzero = np.broadcast_shapes(*(a.shape for a in arrays)), [a for a in arrays if a.any()]
        if len(nonzero) < 2:
            return np.broadcast_to(nonzero[0] if nonzero else arrays[0], shape)
        together = np.stack([a.reshape(-1) for a in np.broadcast_arrays(*nonzero)])
        columns, inverse = np.unique(together, axis=1, return_inverse=True)
        joined = np.asarray([self._union(node, column) for column in columns.T], np.int64)
        numbers = joined[inverse.reshape(-1)].reshape(np.broadcast_shapes(*(a.shape for a in nonzero)))
        return np.broadcast_to(numbers, shape)

    def _union(self, node: ir.Node, numbers: np.ndarray) -> int:
        whole = _NOTHING.union(*(self.sets[i] for i in np.unique(numbers)))
        if whole not in self.numbered and len(whole) > 1:
            self.joined[whole] = f"{node.op_type} node {node.name or node.outputs[0].name!r}"
        return self._number(whole)


def _looks_up(node: ir.Node) -> int | None:
    """Return the operand whose elements each look up a row of a table, or None."""
    if (node.domain, node.op_type) == (_ML, "OneHotEncoder"):
        return 0
    table = node.inputs[0] if (node.domain, node.op_type) == ("", "Gather") else None
    looks_up = table is not None and table.is_initializer() and not node.attributes.get_int("axis", 0)
    return 1 if looks_up else None


def _integers(name: str, shape: Sequence[int]) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(shape))
