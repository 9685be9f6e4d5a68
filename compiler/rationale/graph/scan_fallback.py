"""A fallback that runs a node row by row in the body of a Scan, for operators that fit no layout of rows."""

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from rationale.graph.batching import Node
from rationale.graph.shapes import Spec
from rationale.graph.tensor import STACKED, BatchAxes, Layouts, Tensor


def row_by_row(
    op: Layouts, node: Node, domain: str, batch_axes: BatchAxes, specs: Sequence[Spec]
) -> list[Tensor]:
    """Run `node` on each of the rows over which its operands vary; return its outputs, stacked.

    The body reads nothing from outside: values that all rows share are constants in it, or states that pass
    from row to row.
    """
    body = _FallbackBody(op)
    inner = [None if t is None else body.enter(t, batch_axes) for t in node.tensors]
    name = op._fresh(node.op_type)
    attributes = {k: v for k, v in node.attributes.items() if v is not None}
    row_node = ir.node(
        node.op_type, inner, attributes, domain=domain, num_outputs=len(specs), name=f"{name}/row"
    )
    for i, (value, spec) in enumerate(zip(row_node.outputs, specs, strict=True)):
        value.name, value.shape, value.dtype = f"{name}/row_{i}", ir.Shape(spec[0]), spec[1]
    values = body.close(row_node, name)
    return [
        Tensor(value, shape, dtype, batch_axes, rows=True, split=STACKED)
        for value, (shape, dtype) in zip(values, specs, strict=True)
    ]


class _FallbackBody:
    """The inputs of the body under construction."""

    def __init__(self, op: Layouts) -> None:
        self.op = op
        self.constants: list[ir.Value] = []
        self.states: list[tuple[ir.Value, ir.Value]] = []  # outside, inside
        self.slices: list[tuple[ir.Value, ir.Value]] = []

    def enter(self, t: Tensor, batch_axes: BatchAxes) -> ir.Value:
        """Return the operand of one row inside the body."""
        inside = ir.Value(name=self.op._fresh("row"), type=ir.TensorType(t.dtype), shape=ir.Shape(t.shape))
        if t.batch_axes:
            self.slices.append((self.op.stacked(self.op.vary(t, batch_axes)).value, inside))
        elif t.constant is not None:
            inside.const_value = ir.Tensor(t.constant, name=inside.name)
            self.constants.append(inside)
        else:
            self.states.append((self.op.plain(t).value, inside))
        return inside

    def close(self, node: ir.Node, name: str) -> Sequence[ir.Value]:
        """Append the Scan; return its outputs, one for each of the node's."""
        state_copies = [
            ir.node("Identity", [inside], name=f"{inside.name}/kept") for _, inside in self.states
        ]
        for copy, (_, inside) in zip(state_copies, self.states, strict=True):
            copy.outputs[0].name, copy.outputs[0].type = f"{inside.name}/same", inside.type
        graph = ir.Graph(
            [inside for _, inside in (*self.states, *self.slices)],
            [*(k.outputs[0] for k in state_copies), *node.outputs],
            nodes=[*state_copies, node],
            initializers=self.constants,
            opset_imports=self.op.graph.opset_imports,
            name=f"{name}/one_row",
        )
        operands = [outside for outside, _ in (*self.states, *self.slices)]
        count = len(state_copies) + len(node.outputs)
        attributes: dict[str, Any] = {"body": graph, "num_scan_inputs": len(self.slices)}
        scan = ir.node("Scan", operands, attributes, num_outputs=count, name=name)
        for i, value in enumerate(scan.outputs):
            value.name = f"{name}.{i}"
        self.op.graph.append(scan)
        return scan.outputs[len(state_copies) :]
