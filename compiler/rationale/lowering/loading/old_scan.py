"""The Scan of opset 8, whose axis 0 is a batch, as one of opset 9 over that axis with another inside."""

from typing import Any

import onnx_ir as ir

from rationale.errors import UnsupportedModelError
from rationale.graph.nodes import take_place_of

_CHANGED = frozenset({"BatchNormalization", "Upsample"})  # operators that opset 9 changed


def scan_by_row(model: ir.Model) -> bool:
    """Replace every such Scan, in place; return True if there was one: the model then has opset 9.

    ONNX's version converter keeps the body and drops the batch, which is a different computation. Almost all
    operators of opset 8 mean the same in 9, for more types.

    Raises:
        UnsupportedModelError: if it has sequence lengths, is in a branch, or is beside operators that
            changed.
    """
    nodes = [n for n in model.graph.all_nodes() if not n.domain]
    scans = [n for n in nodes if n.op_type == "Scan"]
    changed = not _CHANGED.isdisjoint(n.op_type for n in nodes)
    for node in scans:
        if changed or node.graph is not model.graph or node.inputs[0] is not None:
            raise UnsupportedModelError(
                f"Scan node {node.name!r} of opset 8 has lengths, or the model nests it in other control "
                f"flow or combines it with {sorted(_CHANGED)}. Export the model with opset 9 or newer."
            )
        _replace(model.graph, node)
    return bool(scans)


def _replace(graph: ir.Graph, node: ir.Node) -> None:
    body, stem = node.attributes["body"].as_graph(), node.outputs[0].name
    count = node.attributes["num_scan_inputs"].as_int()
    attributes: dict[str, Any] = {"body": body.clone(allow_outer_scope_values=True), "num_scan_inputs": count}
    if "directions" in node.attributes:
        attributes["scan_input_directions"] = list(node.attributes["directions"].as_ints())
    row = [ir.Value(name=f"{stem}/row_{i}", type=v.type) for i, v in enumerate(body.inputs)]
    inner = ir.node("Scan", row, attributes, num_outputs=len(node.outputs), name=f"{stem}/row")
    for i, (value, like) in enumerate(zip(inner.outputs, body.outputs, strict=True)):
        value.name, value.type = f"{stem}/answer_{i}", like.type
    rows = ir.Graph(row, inner.outputs, nodes=[inner], name=f"{stem}/rows")
    outer = ir.node(
        "Scan",
        node.inputs[1:],
        {"body": rows, "num_scan_inputs": len(row)},
        num_outputs=len(node.outputs),
        name=node.name,
    )
    graph.insert_before(node, outer)
    for old, new in zip(node.outputs, outer.outputs, strict=True):
        take_place_of(old, new)
    graph.remove(node, safe=True)
