"""Lookups in trees' tables as functions of the file, which one kernel computes row by row.

They are to tables what `fused.py` has for chains: the nodes of `emit_tables` become a call of
`rationale:Tables0`, Tables1 and so on, whose body they are. A runtime inlines it; the optional library
`rationale-kernels` computes the call's attribute `program` (`trees/program.py`). See
docs/adr/0054-lookups-in-one-kernel.md.
"""

from collections.abc import Sequence

import onnx_ir as ir

from rationale.artifact.finishing.fused import DOMAIN, put_call
from rationale.artifact.finishing.fused import PROGRAM as ATTRIBUTE
from rationale.graph.nodes import drop_unused_constants
from rationale.trees.program import INSIDE, PROGRAM

NAME = "Tables"
_MOST = 8  # calls in a file; kernels/src/tables_operator.h has as many names
_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def fuse_tables(model: ir.Model, lookups: Sequence[ir.Node]) -> None:
    """Replace lookups in tables by calls of functions, in place.

    The types of values have to be known (`set_symbolic_shapes`).

    Args:
        lookups: the nodes that give their sums, with a PROGRAM in their `meta`.
    """
    graph = model.graph
    for last in lookups:
        nodes = _nodes_of(graph, last)
        inputs = _inputs(nodes)
        number = sum(function.name.startswith(NAME) for function in model.functions.values())
        if inputs is not None and number < _MOST:
            name = f"{NAME}{number}"
            model.functions[DOMAIN, name, ""] = _function(model, nodes, inputs, name)
            put_call(graph, nodes, inputs, name, last.meta[PROGRAM])
            graph.opset_imports[DOMAIN] = 1
    drop_unused_constants(graph)


def _nodes_of(graph: ir.Graph, last: ir.Node) -> list[ir.Node]:
    """Return the nodes that compute the sums, in order, and nothing that other nodes read."""
    chosen = [last]
    inside = {last}
    for node in reversed(graph):
        output = node.outputs[0]
        is_own = INSIDE in node.meta or output.dtype in _INTEGERS  # of N rows; equal nodes were merged
        if is_own and node.op_type != "Shape" and not output.is_graph_output():
            readers = output.consumers()
            if readers and inside.issuperset(readers):
                chosen.append(node)
                inside.add(node)
    return chosen[::-1]


def _inputs(nodes: Sequence[ir.Node]) -> list[ir.Value] | None:
    """Return the features, the tables' numbers, and integers for each row; None if nodes read anything else.

    If two lookups share nodes, they stay as they are: without the library, each call would repeat them.
    """
    inside = {v for node in nodes for v in node.outputs}
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v is not None and v not in inside)
    tables = [v for v in read if v.const_value is not None and _is_numbers(v)]
    others = [v for v in read if v.const_value is None]
    features = [v for v in others if v.dtype in _FLOATS and not _is_marked(v.producer())]
    rows = [v for v in others if v.dtype in _INTEGERS]
    inputs = [*features, *tables, *rows]
    is_whole = (len(features), len(tables), len(rows), len(others)) == (1, 1, 1, 2)
    return inputs if is_whole else None


def _is_marked(node: ir.Node | None) -> bool:
    return node is not None and INSIDE in node.meta


def _is_numbers(constant: ir.Value) -> bool:
    """Tell whether numbers are looked up in a constant."""
    looked_up = any(use.node.op_type == "GatherElements" and use.idx == 0 for use in constant.uses())
    return looked_up and constant.dtype in _FLOATS


def _function(
    model: ir.Model, nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], name: str
) -> ir.Function:
    """Return the function: copies of the nodes and of the other constants that they read."""
    values = {v: ir.Value(name=f"x{i}") for i, v in enumerate(inputs)}
    copies: list[ir.Node] = []
    for node in nodes:
        for value in node.inputs:
            if value is not None and value not in values:
                copies.append(ir.node("Constant", [], {"value": value.const_value}))
                values[value] = copies[-1].outputs[0]
        operands = [None if v is None else values[v] for v in node.inputs]
        copies.append(ir.Node(node.domain, node.op_type, operands, list(node.attributes.values())))
        values[node.outputs[0]] = copies[-1].outputs[0]
    for i, copy in enumerate(copies):
        copy.outputs[0].name = f"y{i}"
    graph = ir.Graph(
        [values[v] for v in inputs],
        [values[nodes[-1].outputs[0]]],
        nodes=copies,
        opset_imports={"": model.graph.opset_imports[""]},
        name=name,
    )
    attributes = [ir.Attr(ATTRIBUTE, ir.AttributeType.UNDEFINED, None)]
    return ir.Function(DOMAIN, name, graph=graph, attributes=attributes)
