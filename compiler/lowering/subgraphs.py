"""The branches and bodies of control flow, as graphs."""

from collections.abc import Iterator, MutableSequence

import onnx
import onnx_ir as ir

from compiler.graph.traverse import graphs_of


def inner_protos(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the branches and bodies of a node in a file."""
    return [g for attribute in node.attribute for g in (attribute.g, *attribute.graphs) if g.node]


def node_lists(*lists: MutableSequence[onnx.NodeProto]) -> Iterator[MutableSequence[onnx.NodeProto]]:
    """Yield lists of nodes in a file, and those of the branches and bodies inside them."""
    for nodes in lists:
        yield nodes
        yield from node_lists(*(graph.node for node in nodes for graph in inner_protos(node)))


def all_node_lists(proto: onnx.ModelProto) -> Iterator[MutableSequence[onnx.NodeProto]]:
    """Those of the graph and of functions."""
    return node_lists(proto.graph.node, *(function.node for function in proto.functions))


def name_outputs(graph: ir.Graph) -> None:
    """Give a graph values of its own for outputs that are inputs, constants, outer values or twice there."""
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
    """Detach what the branches and bodies of a removed node read, so that they no longer use it."""
    for attribute in node.attributes.values():
        for graph in graphs_of(attribute):
            for inner in graph:
                let_go(inner)
                for i in range(len(inner.inputs)):
                    inner.replace_input_with(i, None)
