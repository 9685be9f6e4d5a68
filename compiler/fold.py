"""Whatever depends on constants alone is computed once, at compile time.

One pass serves weights and references alike: a reference activation is a constant like any other.
"""

import numpy as np
import onnx_ir as ir

from compiler.runtime import run_model

_RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}
)


def fold_constants(model: ir.Model) -> int:
    """Replaces every node that depends on initializers alone by its value, in place; returns how many."""
    graph = model.graph
    constant, nodes = _constant_nodes(graph)
    if not nodes:
        return 0
    inside = set(nodes)
    frontier = [v for v in constant if v.is_graph_output() or any(n not in inside for n in v.consumers())]
    arrays = _evaluate(model, nodes, frontier)
    for value in frontier:
        _replace(graph, value, arrays[str(value.name)])
    graph.remove(nodes, safe=False)
    for initializer in list(graph.initializers.values()):
        if not initializer.uses() and not initializer.is_graph_output():
            del graph.initializers[str(initializer.name)]
    return len(nodes)


def _constant_nodes(graph: ir.Graph) -> tuple[list[ir.Value], list[ir.Node]]:
    known = set(graph.initializers.values())
    values: list[ir.Value] = []
    nodes: list[ir.Node] = []
    for node in graph:
        subgraph = any(
            a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()
        )
        if node.op_type in _RANDOM or subgraph:
            continue
        if all(v is None or v in known for v in node.inputs):
            known.update(node.outputs)
            values.extend(node.outputs)
            nodes.append(node)
    return values, nodes


def _evaluate(model: ir.Model, nodes: list[ir.Node], frontier: list[ir.Value]) -> dict[str, np.ndarray]:
    if not frontier:
        return {}
    used = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None and v.is_initializer())
    mapping: dict[ir.Value, ir.Value] = {}
    for v in used:
        mapping[v] = ir.Value(name=v.name, type=v.type, shape=v.shape, const_value=v.const_value)
    initializers = list(mapping.values())
    copies = []
    for node in nodes:
        values = [None if v is None else mapping[v] for v in node.inputs]
        copy_ = ir.Node(
            node.domain, node.op_type, values, list(node.attributes.values()), num_outputs=len(node.outputs)
        )
        for old, new in zip(node.outputs, copy_.outputs, strict=True):
            mapping[old], new.name, new.type = new, old.name, old.type
        copies.append(copy_)
    graph = ir.Graph(
        [],
        [mapping[v] for v in frontier],
        nodes=copies,
        initializers=initializers,
        opset_imports=model.graph.opset_imports,
        name="constants",
    )
    return run_model(ir.Model(graph, ir_version=model.ir_version), {}, optimise=False)


def _replace(graph: ir.Graph, value: ir.Value, array: np.ndarray) -> None:
    name = value.name
    constant = ir.Value(name=name, const_value=ir.tensor(np.asarray(array, order="C"), name=name))
    constant.dtype, constant.shape = ir.DataType.from_numpy(array.dtype), ir.Shape(array.shape)
    value.name = None
    ir.convenience.replace_all_uses_with(value, constant, replace_graph_outputs=True)
    graph.register_initializer(constant)
