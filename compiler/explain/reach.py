"""What of a graph depends on the tensors that are explained, and what an output is computed from."""

from collections.abc import Sequence

import onnx_ir as ir

from compiler.graph.traverse import names_read, reached_from

OF_SIZES = frozenset({"Shape", "Size", "EyeLike"})  # what depends on no value


def made_by(node: ir.Node, ends: Sequence[str]) -> bool:
    """Tell whether a node computes one of the `ends`."""
    return any(v.name in ends for v in node.outputs)


def reach_forward(graph: ir.Graph, ends: Sequence[str]) -> frozenset[str]:
    """Return the names of what depends on the `ends`; each is a value of its own, whatever computes it."""
    return reached_from(ends, (n for n in graph if n.op_type not in OF_SIZES and not made_by(n, ends)))


def reach_backward(graph: ir.Graph, output: str, ends: Sequence[str]) -> frozenset[str]:
    """Return the names of what an output is computed from, no further than the `ends`."""
    reached = {output}
    for node in reversed(graph):
        if any(v.name in reached for v in node.outputs) and not made_by(node, ends):
            reached.update(names_read(node))
    return frozenset(reached)
