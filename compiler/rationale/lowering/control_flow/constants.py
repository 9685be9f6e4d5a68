"""Values that can be computed before the model runs."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rationale.graph.nodes import LISTS, RANDOM, constant_array, extract, graphs_of
from rationale.lowering.sizes import fold_weights


def constants_of(model: ir.Model, values: Sequence[ir.Value]) -> list[np.ndarray | None]:
    """Return the array of each value that depends only on constants, and None for the others.

    Raises:
        UnsupportedModelError: if a constant on the way is too large.
    """
    behind = [_nodes_behind(v) for v in values]
    computed = {v: None for v, nodes in zip(values, behind, strict=True) if nodes}
    arrays = {}
    if computed:
        nodes = list(dict.fromkeys(n for group in behind for n in group or ()))
        extracted = extract(model, nodes, (), list(computed))
        fold_weights(extracted)
        arrays = {str(v.name): constant_array(v) for v in extracted.graph.outputs}
    return [
        None if nodes is None else arrays[str(v.name)] if nodes else constant_array(v)
        for v, nodes in zip(values, behind, strict=True)
    ]


def _nodes_behind(value: ir.Value) -> list[ir.Node] | None:
    """Return the nodes that compute a value from constants, in order; None if it depends on other values."""
    ordered: dict[ir.Node, None] = {}
    waiting = [(value.producer(), False)]
    if value.producer() is None:
        return [] if value.const_value is not None else None
    while waiting:
        node, inputs_visited = waiting.pop()
        assert node is not None
        if inputs_visited:
            ordered[node] = None
        elif node not in ordered:
            if any(graphs_of(a) for a in node.attributes.values()) or node.op_type in RANDOM | LISTS:
                return None
            waiting.append((node, True))
            for x in node.inputs:
                if x is None or (x.producer() is None and x.const_value is not None):
                    continue
                if x.producer() is None:
                    return None
                waiting.append((x.producer(), False))
    return list(ordered)
