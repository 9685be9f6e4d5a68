"""A one-shot entry's own tensors: the gate that is fed, what it answers, and the graphs on either side of it.

`explain` BOOL [N, 1] says which rows to explain. `explained` BOOL [N, 1] says which rows are: the
explanation of the others is zeros.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx

from compiler.manifest import EXPLAIN

Arrays = Mapping[str, np.ndarray]
Run = Callable[..., dict[str, np.ndarray]]


def asking(inputs: Arrays, answer: bool | np.ndarray = True) -> dict[str, np.ndarray]:
    """`inputs` with the gate beside them: `answer` for every row, or [N] answers."""
    rows = max((len(a) for a in inputs.values() if a.ndim), default=1)
    return {**inputs, EXPLAIN: np.broadcast_to(np.reshape(answer, (-1, 1)), (rows, 1)).copy()}


def explaining(run: Run, model: onnx.ModelProto) -> Run:
    """`run` of a combined model; of a one-shot one, for every row. What feeds the gate itself may do so."""
    if EXPLAIN not in {v.name for v in model.graph.input}:
        return run

    def run_explaining(inputs: Arrays, outputs: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        return run(inputs if EXPLAIN in inputs else asking(inputs), outputs)

    return run_explaining


# -- the graphs on either side, of an entry that is read back ---------------------------------------------


def plain_model(model: onnx.ModelProto, outputs: Sequence[str]) -> onnx.ModelProto:
    """The plain model that a one-shot graph holds: what computes `outputs`, without the gate."""
    nodes, read = needed_nodes(model.graph.node, outputs)
    plain = _like(model, nodes, [v for v in model.graph.output if v.name in outputs])
    plain.graph.input.extend(v for v in model.graph.input if v.name != EXPLAIN)
    plain.graph.initializer.extend(t for t in model.graph.initializer if t.name in read)
    return plain


def open_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """A graph without a gate that computes every tensor of both sides for every row; it has no outputs.

    One tensor of it, an inner one too, is what a caller then restricts it to.
    """
    branch = next(_branch(node) for node in model.graph.node if _is_gate(node))
    nodes = [node for node in model.graph.node if not _is_gate(node)]
    for node in branch.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        if node.op_type == "Compress" and node.input[0] in {v.name for v in model.graph.input}:
            copy.op_type = "Identity"
            del copy.input[1:], copy.attribute[:]
        nodes.append(copy)
    whole = _like(model, nodes, [])
    whole.graph.input.extend(v for v in model.graph.input if v.name != EXPLAIN)
    whole.graph.initializer.extend([*model.graph.initializer, *branch.initializer])
    return whole


def _is_gate(node: onnx.NodeProto) -> bool:
    return node.op_type == "If" and node.name == EXPLAIN


def _branch(node: onnx.NodeProto) -> onnx.GraphProto:
    return next(a.g for a in node.attribute if a.name == "then_branch")


def _like(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], outputs: Sequence[onnx.ValueInfoProto]
) -> onnx.ModelProto:
    graph = onnx.GraphProto(name=model.graph.name, node=nodes, output=outputs)
    return onnx.ModelProto(graph=graph, ir_version=model.ir_version, opset_import=model.opset_import)


def needed_nodes(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]
) -> tuple[list[onnx.NodeProto], set[str]]:
    """The nodes that compute `outputs`, in their order, and every name that is read on the way."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):  # valid models are sorted
        if not needed.isdisjoint(node.output):
            needed.update(_reads(node))
            kept.append(node)
    return kept[::-1], needed


def _reads(node: onnx.NodeProto) -> set[str]:
    """Names that a node reads, those that its subgraphs take from outside included."""
    names = set(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            names.update(v.name for v in graph.output)
            names.update(*(_reads(inner) for inner in graph.node))
    return names


def count_nodes(graph: onnx.GraphProto) -> int:
    """Those of subgraphs too."""
    inner = (g for node in graph.node for a in node.attribute for g in (a.g, *a.graphs))
    return len(graph.node) + sum(map(count_nodes, inner))
