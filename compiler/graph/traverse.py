"""What nodes read, and which nodes stand behind values."""

from collections.abc import Collection, Iterable, Sequence

import onnx_ir as ir


def graphs_of(attribute: ir.Attr) -> Sequence[ir.Graph]:
    """Branches and bodies."""
    if attribute.type == ir.AttributeType.GRAPH:
        return [attribute.as_graph()]
    return attribute.as_graphs() if attribute.type == ir.AttributeType.GRAPHS else []


def reads(node: ir.Node) -> list[ir.Value]:
    """Return what a node reads, by its inputs or from inside its branches and bodies."""
    values = [v for v in node.inputs if v is not None]
    for attribute in node.attributes.values():
        for graph in graphs_of(attribute):
            values += [v for inner in graph for v in reads(inner)]
            values.extend(graph.outputs)
    return values


def names_read(node: ir.Node) -> set[str]:
    """Return the names of what a node reads."""
    return {v.name for v in reads(node) if v.name}


def reached_from(names: Iterable[str], nodes: Iterable[ir.Node]) -> frozenset[str]:
    """Return the names of what the nodes, in their order, make of some values, with these."""
    found = set(names)
    for node in nodes:
        if not found.isdisjoint(names_read(node)):
            found.update(v.name for v in node.outputs if v.name)
    return frozenset(found)


def nodes_behind(
    nodes: Iterable[ir.Node], values: Iterable[ir.Value], known: Collection[ir.Value] = ()
) -> list[ir.Node]:
    """Those of the nodes, in their order, that `values` need beside the `known` ones."""
    wanted = {v for v in values if v not in known}
    chosen = []
    for node in reversed(list(nodes)):
        if not wanted.isdisjoint(node.outputs):
            chosen.append(node)
            wanted.update(v for v in node.inputs if v is not None and v not in known)
    return chosen[::-1]
