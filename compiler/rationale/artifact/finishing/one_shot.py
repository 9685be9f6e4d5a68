"""Prediction and explanation in one entry: the plain model, and the combined one behind `If`.

The outer graph is the plain model, untouched, so that ONNX Runtime fuses and lays it out as it does the
plain entry. The branch explains only the rows that ask: x is compressed to them, and their explanations are
scattered into zeros. So no answer depends on the other rows of the batch, and a mixed batch costs as much as
the rows that ask. See docs/adr/0010-one-shot.md.
"""

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes

from rationale.errors import InvalidOptionError
from rationale.graph.nodes import NodeBuilder, rename, rename_inner_values, values_of
from rationale.graph.shapes import rename_rows
from rationale.lowering import Lowered
from rationale.lowering.loading.load import standardise
from rationale.lowering.precision import on_cpu
from rationale.schema.manifest import EXPLAIN, EXPLAINED

_PREFIX = "one_shot/"  # prefix of names emitted here
_LARGE = 1 << 16  # bytes; ONNX Runtime holds the initializers of a branch twice


def check_gate_names(lowered: Lowered) -> None:
    """Raise InvalidOptionError if an input or output of the model has a name that the gate needs."""
    graph = lowered.source.graph
    clashes = sorted(v.name for v in (*graph.input, *graph.output) if _is_needed(v.name))
    if clashes:
        raise InvalidOptionError(
            f"the model already has inputs or outputs named {clashes}, and --one-shot needs these names. "
            "Rename them, or compile two entries (without --one-shot)."
        )


def _is_needed(name: str) -> bool:
    return name in (EXPLAIN, EXPLAINED) or name.startswith(_PREFIX)


def put_behind_gate(lowered: Lowered, combined: ir.Model) -> ir.Model:
    """Return the one-shot model: the plain model, with `combined`, which it consumes, in a branch.

    It has the inputs of the model and `explain` BOOL [N, 1]; the outputs of the combined model and
    `explained` BOOL [N, 1], which equals it. Rows that do not ask have zeros for an explanation.
    """
    model = standardise(on_cpu(ir.from_proto(lowered.source))[0])
    outer, branch = model.graph, combined.graph
    for side in (model, combined):
        rename_inner_values(side, _is_needed)
    _drop_outer_outputs(outer, combined)
    _share_weights(outer, branch)
    _rename_apart(model, combined)
    _lift_large(outer, branch)
    explain = _value(EXPLAIN, ir.DataType.BOOL, ["N", 1])
    answers = [_value(str(v.name), _dtype(v), list(v.shape or ())) for v in branch.outputs]
    _explain_requested_rows(branch, outer, explain, lowered.batched)
    no_explanation = _zeros(explain, answers)
    outer.inputs.append(explain)
    op = NodeBuilder(outer, "one_shot")
    explained = op.Identity(explain)
    explained.name = EXPLAINED
    explained.dtype, explained.shape = ir.DataType.BOOL, ir.Shape(["N", 1])
    requested = op.Cast(explain, to=ir.DataType.INT32.value)
    any_requested = op.Cast(op.ReduceMax(requested, keepdims=0), to=ir.DataType.BOOL.value)
    branches = {"then_branch": branch, "else_branch": no_explanation}
    outer.append(ir.node("If", [any_requested], branches, outputs=answers, name=EXPLAIN))
    outer.outputs.extend([*answers, explained])
    for domain, version in branch.opset_imports.items():
        outer.opset_imports.setdefault(domain, version)
    model.functions.update(combined.functions)
    return model


def _drop_outer_outputs(outer: ir.Graph, combined: ir.Model) -> None:
    """Remove nodes from the combined graph that only the model's outputs need: the outer graph has them."""
    originals = {v.name for v in outer.outputs}
    keep_outputs(combined, [v for v in combined.graph.outputs if v.name not in originals])


def keep_outputs(model: ir.Model, outputs: Sequence[ir.Value]) -> ir.Model:
    """Remove all but these outputs and the nodes that they need from the model, and return it."""
    model.graph.outputs.clear()
    model.graph.outputs.extend(outputs)
    passes.RemoveUnusedNodesPass()(model)
    return model


def _share_weights(outer: ir.Graph, branch: ir.Graph) -> None:
    """Keep one copy of each float array: the branch reads the outer graph's."""
    weights = {_digest(v): v for v in outer.initializers.values() if _is_weight(v)}
    for value in list(branch.initializers.values()):
        if _is_weight(value) and (shared := weights.get(_digest(value))) is not None:
            ir.convenience.replace_all_uses_with(value, shared)
            if not value.is_graph_output():
                del branch.initializers[str(value.name)]


def _is_weight(value: ir.Value) -> bool:
    """Tell whether a constant is a weight.

    Shapes and single numbers stay where they are used: ONNX Runtime looks for constants there.
    """
    tensor = value.const_value
    return tensor is not None and tensor.dtype.is_floating_point() and tensor.size > 1


def _digest(value: ir.Value) -> tuple[object, ...]:
    tensor = value.const_value
    assert tensor is not None
    return tensor.dtype, tuple(tensor.shape), hashlib.sha256(tensor.numpy().tobytes()).digest()


def _lift_large(outer: ir.Graph, branch: ir.Graph) -> None:
    """Move large constants of the branch to the outer graph, except convolutions' weights.

    ONNX Runtime changes their layout only if they stand beside the convolution.
    """
    for value in list(branch.initializers.values()):
        tensor = value.const_value
        convolved = any(use.node.op_type in ("Conv", "ConvTranspose") for use in value.uses())
        if tensor is not None and tensor.nbytes >= _LARGE and not convolved:
            del branch.initializers[str(value.name)]
            outer.register_initializer(value)


def _rename_apart(model: ir.Model, combined: ir.Model) -> None:
    """Rename values of the branch that share a name with the outer graph: a subgraph may not shadow."""
    outer = {v.name for v in values_of(model)}
    inputs = set(combined.graph.inputs)  # they give way to the outer graph's own
    inner = [v for v in values_of(combined) if v not in inputs]
    names = outer | {v.name for v in inner}
    for value in inner:
        if value.name in outer:
            name = next(n for i in itertools.count() if (n := f"{_PREFIX}{value.name}_{i}") not in names)
            rename(value, name)
            names.add(name)


def _explain_requested_rows(
    branch: ir.Graph, outer: ir.Graph, explain: ir.Value, batched: frozenset[str]
) -> None:
    """Make the branch read the rows of the outer inputs that ask, and answer for all rows."""
    rename_rows(branch, "asking")
    op = NodeBuilder(branch, "one_shot/asking", before=branch[0] if len(branch) else None)
    mask = op.Reshape(explain, [-1])
    inputs = {v.name: v for v in outer.inputs}
    for branch_input in list(branch.inputs):
        x = inputs[branch_input.name]
        if branch_input.name in batched:
            x = op.Compress(x, mask, axis=0)
            x.dtype, x.shape = _dtype(branch_input), ir.Shape(["asking", *(branch_input.shape or [0])[1:]])
        ir.convenience.replace_all_uses_with(branch_input, x)
    branch.inputs.clear()
    op = NodeBuilder(branch, "one_shot/all")
    index = op.Transpose(op.NonZero(mask))
    count = op.Shape(explain, start=0, end=1)
    outputs = list(branch.outputs)
    branch.outputs.clear()
    zeros: dict[object, ir.Value] = {}
    for value in outputs:
        key = (_dtype(value), *_row(value))
        if key not in zeros:
            shape = op.Concat(count, _row(value), axis=0)
            zero = ir.Tensor(np.zeros(1, _dtype(value).numpy()))
            zeros[key] = op.ConstantOfShape(shape, value=zero)
        branch.outputs.append(op.ScatterND(zeros[key], index, value))
        branch.outputs[-1].dtype = _dtype(value)


def _zeros(explain: ir.Value, answers: Sequence[ir.Value]) -> ir.Graph:
    """Return the branch for a false `explain`: zeros in few nodes, since a small model takes microseconds."""
    graph = ir.Graph([], [], nodes=[], name="no_explanation")
    op = NodeBuilder(graph, "one_shot/none")
    cast: dict[ir.DataType, ir.Value] = {}
    for answer in answers:
        dtype, row = _dtype(answer), _row(answer)
        if dtype not in cast:
            cast[dtype] = op.Cast(explain, to=dtype.value)
        zero = cast[dtype]
        if len(row) > 1:
            zero = op.Unsqueeze(zero, list(range(2, len(row) + 1)))
        graph.outputs.append(op.Expand(zero, [1, *row]))
        graph.outputs[-1].dtype = dtype
    return graph


def _dtype(value: ir.Value) -> ir.DataType:
    assert value.dtype is not None
    return value.dtype


def _row(value: ir.Value) -> list[int]:
    """Return the sizes behind the batch axis, which every output that explains has."""
    return [d for d in (value.shape or ()) if isinstance(d, int)]


def _value(name: str, dtype: ir.DataType, shape: Sequence[Any]) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))


# -- an entry that is read back ------------------------------------------------------------------------


def plain_model(proto: onnx.ModelProto, outputs: Sequence[str]) -> onnx.ModelProto:
    """Return the plain model of a one-shot graph: the nodes that compute `outputs`, without the gate."""
    model = ir.from_proto(proto)
    keep_outputs(model, [v for v in model.graph.outputs if v.name in outputs])
    _drop_gate_input(model.graph)
    return ir.to_proto(model)


def open_gate(model: ir.Model) -> None:
    """Remove a graph's gate, in place: it then computes every tensor of both sides for every row."""
    graph = model.graph
    gate = next(node for node in graph if node.op_type == "If" and node.name == EXPLAIN)
    branch = gate.attributes["then_branch"].as_graph()
    graph.outputs.clear()
    branch.outputs.clear()
    for value in list(branch.initializers.values()):
        del branch.initializers[str(value.name)]
        graph.register_initializer(value)
    nodes = list(branch)
    branch.remove(nodes)
    graph.insert_before(gate, nodes)
    graph.remove(gate, safe=True)
    for node in nodes:
        x = node.inputs[0] if node.op_type == "Compress" else None
        if x is not None and x in graph.inputs:
            ir.convenience.replace_all_uses_with(node.outputs[0], x)
    _drop_gate_input(graph)


def _drop_gate_input(graph: ir.Graph) -> None:
    inputs = [v for v in graph.inputs if v.name != EXPLAIN]
    graph.inputs.clear()
    graph.inputs.extend(inputs)
