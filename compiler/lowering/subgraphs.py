"""The branches and bodies of control flow, as graphs."""

from collections.abc import Iterator

import onnx_ir as ir

from compiler.graph.traverse import graphs_of


def subgraphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """Every branch and body, from the outside in."""
    for node in graph:
        for attribute in node.attributes.values():
            for inner in graphs_of(attribute):
                yield inner
                yield from subgraphs(inner)


def name_outputs(graph: ir.Graph) -> None:
    """Gives a graph values of its own for outputs that are inputs, constants, outer values or twice there."""
    inside = {v for node in graph for v in node.outputs}
    for i, value in enumerate(list(graph.outputs)):
        if value in inside and value not in list(graph.outputs)[:i]:
            continue
        own = ir.node("Identity", [value], name=f"{value.name}/output_{i}")
        own.outputs[0].name, own.outputs[0].type = own.name, value.type
        own.outputs[0].shape = value.shape
        graph.append(own)
        graph.outputs[i] = own.outputs[0]


def let_go(node: ir.Node) -> None:
    """What the branches and bodies of a removed node read is not used by them any more."""
    for attribute in node.attributes.values():
        for graph in graphs_of(attribute):
            for inner in graph:
                let_go(inner)
                for i in range(len(inner.inputs)):
                    inner.replace_input_with(i, None)
