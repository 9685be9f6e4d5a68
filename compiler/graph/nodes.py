"""Plain nodes, put into a graph as they are."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from compiler.graph.fold import new_constant


def stand_for(old: ir.Value, new: ir.Value) -> None:
    """Put `new` in place of `old`, under its name."""
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    (new.name, old.name), new.type, new.shape = (old.name, None), old.type, old.shape


class Nodes:
    """`op.Mul(a, b)` appends a node of one output to a graph, or puts it before another node.

    Operands may be arrays or lists of whole numbers, which become initializers; None leaves one out.

    Args:
        prefix: with which the names of what is emitted begin.
        before: None for the end of the graph.
    """

    def __init__(self, graph: ir.Graph, prefix: str, before: ir.Node | None = None) -> None:
        self.graph, self.prefix, self.before = graph, prefix, before
        self.count = 0

    def __getattr__(self, op_type: str) -> Callable[..., ir.Value]:
        if not op_type[:1].isupper():
            raise AttributeError(op_type)
        return functools.partial(self._emit, op_type)

    def _emit(self, op_type: str, *operands: Any, **attributes: Any) -> ir.Value:
        values = [o if o is None or isinstance(o, ir.Value) else self.constant(o) for o in operands]
        node = ir.node(op_type, values, attributes, name=self.fresh(op_type))
        node.outputs[0].name = node.name
        self.insert([node])
        return node.outputs[0]

    def insert(self, nodes: Sequence[ir.Node]) -> None:
        if self.before is None:
            self.graph.extend(nodes)
        else:
            self.graph.insert_before(self.before, nodes)

    def constant(self, operand: Any) -> ir.Value:
        """Return an initializer."""
        given = isinstance(operand, np.ndarray | np.generic)  # numpy makes scalars of arrays without axes
        array = np.asarray(operand) if given else np.asarray(operand, np.int64)
        return new_constant(self.graph, self.fresh("constant"), array)

    def fresh(self, what: str) -> str:
        """Return a name that nothing has."""
        self.count += 1
        return f"{self.prefix}/{what}_{self.count}"
