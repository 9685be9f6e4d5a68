"""The order of nodes in a file, from which ONNX Runtime takes the order in which it runs them."""

import onnx_ir as ir

from compiler.memory.regions import reads


def stand_early(graph: ir.Graph) -> None:
    """Puts each node as early as what it reads allows, in place, and those of bodies too.

    ONNX Runtime goes back from the outputs, and of what a node reads it first computes what stands last in
    the file. That is now the longest chain, the walk back, and what a step of it needs beside (the 1 + α·Γ
    of a ReLU, [N, K, …]) is computed right before that step. In the order in which nodes are emitted, it
    computes all of that first and holds it.
    """
    level: dict[ir.Value, int] = {}
    depth: dict[ir.Node, int] = {}
    for node in graph:
        depth[node] = 1 + max((level.get(v, 0) for v in reads(node)), default=0)
        level.update(dict.fromkeys(node.outputs, depth[node]))
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                stand_early(attribute.as_graph())
    nodes = sorted(depth, key=lambda node: depth[node])  # stable: else as emitted
    graph.remove(nodes)
    graph.extend(nodes)
