"""The engine of rewrites, which replace a node of an operator by nodes that have rules.

The lowering defines the method: Softmax with and without its max shift are both complete, yet their
attributions differ. The documentation of each method refers to these definitions.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rationale.errors import UnsupportedModelError
from rationale.graph.nodes import NodeBuilder, take_place_of
from rationale.lowering.bodies import detach_bodies
from rationale.lowering.inference import note_shapes

Rewrite = Callable[..., Any]
_REWRITES: dict[tuple[str, str], Rewrite] = {}
_IDIOMS: dict[tuple[str, str], list[Rewrite]] = {}
DEEPEST = 8  # rounds of rewrites of a rewrite's own nodes


RELEVANCE = "rationale.relevance"
"""Metadata of a node: the way in which relevance propagation reads a quantised operator's result."""
UNCHANGED = "unchanged"  # y is x in another code: all relevance goes to the first input, unchanged
HELD = "held"  # a scale or zero point computed from a row's values: relevance propagation holds it constant


def mark(x: ir.Value, reading: str) -> ir.Value:
    """Mark the node that computes a value for relevance propagation; return the value."""
    node = x.producer()
    assert node is not None
    node.metadata_props[RELEVANCE] = reading
    return x


class Rewriting(NodeBuilder):
    """A builder of the nodes that replace one node; numbers among operands get its result's type."""

    def __init__(self, graph: ir.Graph, before: ir.Node) -> None:
        self.result = next((v for v in before.outputs if v.name), before.outputs[0])
        name = str(before.name)  # begins with the result's name if another rewrite emitted the node
        super().__init__(
            graph, name if name.startswith(f"{self.result.name}/") else str(self.result.name), before
        )
        self.emitted: set[ir.Node | None] = set()
        self.constants: list[ir.Value] = []

    def insert(self, nodes: Sequence[ir.Node]) -> None:
        super().insert(nodes)
        self.emitted.update(nodes)

    def split(self, x: ir.Value, sizes: list[int] | None, *, axis: int) -> list[ir.Value]:
        """Split `x` into parts of these sizes, or into two halves."""
        if sizes is not None and len(sizes) == 1:
            return [x]
        operands, attributes = ([x], {"num_outputs": 2}) if sizes is None else ([x, self.constant(sizes)], {})
        name = self.fresh("Split")
        parts = 2 if sizes is None else len(sizes)
        node = ir.node("Split", operands, {"axis": axis, **attributes}, name=name, num_outputs=parts)
        for i, value in enumerate(node.outputs):
            value.name = f"{name}.{i}"
        self.insert([node])
        return list(node.outputs)

    def concat(self, parts: list[ir.Value], *, axis: int) -> ir.Value:
        """Concatenate the parts; return a single part unchanged."""
        return parts[0] if len(parts) == 1 else self._emit("Concat", *parts, axis=axis)

    def plus(self, x: ir.Value, y: ir.Value | None) -> ir.Value:
        """Return x + y, or x if y is None."""
        return x if y is None else self._emit("Add", x, y)

    def transpose(self, x: ir.Value, perm: list[int]) -> ir.Value:
        """Transpose `x`; if a Transpose just before did the opposite, return that one's input."""
        before = x.producer()
        if before is not None and before.op_type == "Transpose" and "perm" in before.attributes:
            old = before.attributes["perm"].as_ints()
            if [old[p] for p in perm] == sorted(perm):
                (original,) = before.inputs
                assert original is not None
                return original
        return x if perm == sorted(perm) else self._emit("Transpose", x, perm=perm)

    @property
    def dtype(self) -> ir.DataType:
        """The dtype of the node's result, or of the graph's first float input if that is unknown."""
        return self.result.dtype or _usual_dtype(self.graph)

    def constant(self, operand: Any) -> ir.Value:
        if not isinstance(operand, list | np.ndarray):
            operand = np.asarray(operand, self.dtype.numpy())
        self.constants.append(super().constant(operand))
        return self.constants[-1]

    def withdraw(self) -> None:
        """Remove the inserted nodes and constants from the graph."""
        for node in filter(None, self.emitted):
            detach_bodies(node)
        self.graph.remove(reversed([n for n in self.graph if n in self.emitted]), safe=True)
        for value in self.constants:
            self.graph.initializers.pop(str(value.name))


def _usual_dtype(graph: ir.Graph) -> ir.DataType:
    """Return the dtype of the first input that holds floats."""
    kinds = (v.dtype for v in graph.inputs)
    return next((k for k in kinds if k is not None and k.is_floating_point()), ir.DataType.FLOAT)


def rewrites(op_type: str, domain: str = "") -> Callable[[Rewrite], Rewrite]:
    """Declare the definition of an operator by others."""

    def declare(function: Rewrite) -> Rewrite:
        _REWRITES[domain, op_type] = function
        return function

    return declare


def idiom(op_type: str) -> Callable[[Rewrite], Rewrite]:
    """Declare the meaning of a pattern of nodes in exporters' graphs that ends in an `op_type`."""

    def declare(function: Rewrite) -> Rewrite:
        _IDIOMS.setdefault(("", op_type), []).append(function)
        return function

    return declare


def rewritten_operators() -> dict[tuple[str, str], Rewrite]:
    """Return the rewrites by domain and operator."""
    return dict(sorted(_REWRITES.items()))


def is_rewritten(op_type: str, domain: str) -> bool:
    return (domain, op_type) in _REWRITES


def rewrite(model: ir.Model, only: Collection[str] | None = None) -> None:
    """Replace, in place, every node of an operator that has a rewrite; outputs keep their names.

    A function that returns None keeps its node; one that returns a tuple replaces as many outputs, None for
    outputs that must not be read. The nodes of a rewrite are rewritten in turn. A rewrite that lacks a size
    waits until the nodes before it are rewritten: ONNX infers no shape for some operators.
    """
    nodes = [n for n in model.graph if only is None or n.op_type in only]
    for _ in range(DEEPEST if nodes else 0):
        note_shapes(model)
        before = set(model.graph)
        postponed = [node for node in nodes if not _rewrite(model.graph, node)]
        emitted = [n for n in model.graph if n not in before and is_rewritten(n.op_type, n.domain)]
        if postponed and before == set(model.graph):
            _rewrite(model.graph, postponed[0], last=True)
        nodes = [*postponed, *emitted]
        if not nodes:
            return
    for node in nodes:
        _rewrite(model.graph, node, last=True)


def rewrite_domain(model: ir.Model, domain: str) -> None:
    """Replace, in place, every node of a domain that ONNX does not know, in chains of any length.

    Raises:
        UnsupportedModelError: if a node cannot be rewritten.
    """
    nodes = [n for n in model.graph if n.domain == domain and is_rewritten(n.op_type, domain)]
    while nodes:
        note_shapes(model)
        postponed = [node for node in nodes if not _rewrite(model.graph, node)]
        if len(postponed) == len(nodes):
            _rewrite(model.graph, postponed[0], last=True)
        nodes = postponed


def _rewrite(graph: ir.Graph, node: ir.Node, *, last: bool = False) -> bool:
    """Rewrite a node; return False if a fact is missing that may be known later, or raise it if `last`."""
    key = node.domain, node.op_type
    return replace_node(graph, node, [_REWRITES[key]] if key in _REWRITES else _IDIOMS.get(key, []), last)


def replace_node(
    graph: ir.Graph, node: ir.Node, functions: Collection[Rewrite], must_be_known: bool = False
) -> bool:
    """Replace a node by the nodes of the first function that applies.

    Returns:
        False if a size or type is unknown; the graph then does not change.

    Raises:
        UnsupportedModelError: if a size or type is unknown, but all `must_be_known`.
    """
    op, attributes = Rewriting(graph, node), {a.name: a.value for a in node.attributes.values()}
    candidates = (function(op, *node.inputs, **attributes) for function in functions)
    try:
        result = next((r for r in candidates if r is not None), None)
    except UnsupportedModelError:
        if must_be_known:
            raise
        op.withdraw()
        return False
    if result is None:
        return True
    results = result if isinstance(result, tuple) else (result,)
    for old, new in zip(node.outputs, results, strict=False):
        if new is not None and old.name:
            take_place_of(old, new if new.producer() in op.emitted else op.Identity(new))
            old.name = f"{new.name}/unread"
    if not any(v.uses() or v.is_graph_output() for v in node.outputs):
        graph.remove(node, safe=True)
    return True


def share_prefixes(model: ir.Model) -> None:
    """Replace Concat(a, b, c) by Concat(Concat(a, b), c) if Concat(a, b) exists already.

    Dense blocks concatenate everything before each layer. When nested, multipliers of the parts are added
    once per layer, rather than once per layer and part.
    """
    concats: dict[tuple[Any, ...], ir.Value] = {}
    for node in [n for n in model.graph if n.op_type == "Concat"]:
        axis, inputs = node.attributes["axis"].as_int(), list(node.inputs)
        lengths = range(len(inputs) - 1, 1, -1)
        prefix = next((n for n in lengths if (axis, *inputs[:n]) in concats), None)
        concats.setdefault((axis, *inputs), node.outputs[0])
        if prefix is not None:
            nested = [concats[axis, *inputs[:prefix]], *inputs[prefix:]]
            node.resize_inputs(len(nested))
            for i, value in enumerate(nested):
                node.replace_input_with(i, value)


# -- facts about operands ---------------------------------------------------------------------------------


def is_constant(value: ir.Value | None) -> bool:
    return value is None or value.const_value is not None


def dtype_of(x: ir.Value) -> ir.DataType:
    return x.dtype or ir.DataType.FLOAT


def rank_of(x: ir.Value) -> int:
    """Return the rank; raise UnsupportedModelError if it is unknown."""
    if x.shape is None:
        raise UnsupportedModelError(f"the rank of {x.name!r} is not known before the model runs")
    return x.shape.rank()


def length_of(x: ir.Value, axis: int) -> int:
    """Return the length of an axis; raise UnsupportedModelError if it is unknown."""
    length = None if x.shape is None else x.shape[axis]
    if not isinstance(length, int):
        raise UnsupportedModelError(f"axis {axis} of {x.name!r} has no fixed size before the model runs")
    return length


def sizes_of(x: ir.Value, first: int = 0) -> list[int]:
    """Return the lengths of the axes from `first` on; raise UnsupportedModelError if one is unknown."""
    return [length_of(x, axis) for axis in range(first, rank_of(x))]
