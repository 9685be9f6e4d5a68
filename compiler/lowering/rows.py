"""Where the rows of a batch lie in the values that the model itself computes.

In its inputs they lie one behind the other, [N, …], as `Ops` holds them, and they do behind every node that
leaves axis 0 alone. Behind any other node they may lie on another axis, or within one ([L·N, …]): from there
on no value is taken from the model's nodes, each is lifted (see `lift`). Whether rows mix on the way, no
shape tells: the model is run.
"""

from collections.abc import Collection

import onnx_ir as ir

from compiler.errors import UnsupportedModelError
from compiler.graph.batching import Node, touches_first
from compiler.graph.nodes import names_read
from compiler.graph.tensor import Tensor
from compiler.lowering import Lowered
from compiler.lowering.batch import ONE_SCALE, dependent_on_batch, dependent_on_rows, how_rows_mix
from compiler.lowering.precision import on_cpu


def in_front(lowered: Lowered) -> frozenset[str]:
    """Return the names of the values in which the model holds the rows as `Ops` does."""
    found = {str(v.name) for v in lowered.model.graph.inputs} & lowered.batched
    sized = dependent_on_batch(lowered.model)
    sizes = {name for name in sized - dependent_on_rows(lowered.model) if _is_size(lowered, name)}
    for node in lowered.model.graph:
        if names_read(node) & sized <= found | sizes and not _touches_first(lowered, node):
            found.update(str(v.name) for v in node.outputs if v.name in lowered.batched)
    return frozenset(found)


def _is_size(lowered: Lowered, name: str) -> bool:
    """Tell whether a value that depends on the batch's size is a number or a list of them at any size."""
    return name in lowered.specs and len(lowered.specs[name][0]) < 2 and name not in lowered.batched


def _touches_first(lowered: Lowered, node: ir.Node) -> bool:
    """As far as it is known before the model runs."""
    if any(v is not None and v.name not in lowered.specs for v in node.inputs):
        return False
    inputs = [None if v is None else _one_row(lowered, v) for v in node.inputs]
    try:
        return touches_first(Node(node.op_type, inputs, {a.name: a.value for a in node.attributes.values()}))
    except UnsupportedModelError:
        return False


def _one_row(lowered: Lowered, value: ir.Value) -> Tensor:
    shape, dtype = lowered.specs[str(value.name)]
    rows = value.name in lowered.batched
    return Tensor(value, shape, dtype, frozenset("N" if rows else ""), rows)


def demand_rows(lowered: Lowered, output: str, needed: Collection[str]) -> None:
    """Raise UnsupportedModelError where the output does not have one row for each of the batch.

    Args:
        needed: names of what it is computed from.
    """
    if not lowered.one_row:
        _demand_apart(lowered, output, needed)
    fault = _fault(lowered, output)
    if fault is not None:
        node = next(n for n in lowered.model.graph for v in n.outputs if v.name == output)
        raise UnsupportedModelError(
            f"{_called(node)}: {output!r} cannot be explained, since {fault}. Name an output of shape [N, …] "
            "(--output), or export the model so that axis 0 of what it answers is the batch."
        )


def _demand_apart(lowered: Lowered, output: str, needed: Collection[str]) -> None:
    quantised = _first_of_one_scale(lowered, needed)
    if quantised is not None:
        raise UnsupportedModelError(
            f"{_called(quantised)}: dynamic quantisation takes one scale of all rows of a batch, so a row is "
            "answered otherwise in other company. Export the model with a batch of 1 before it is quantised: "
            "the entries take any number of rows, each with a scale of its own. Or quantise it statically."
        )
    node = _first_behind(lowered, needed)
    if node is None:
        return
    own = [v.name for v in lowered.source.graph.output]
    source, _ = on_cpu(ir.from_proto(lowered.source))
    mixing = how_rows_mix(source, outputs=[output] if output in own else own)
    if mixing is not None:
        raise UnsupportedModelError(
            f"{_called(node)}: it works on axis 0, the batch, and {mixing}. Each row must be explained by "
            "itself: explain an output before it (--output), or export the model in evaluation mode and with "
            "the batch on axis 0."
        )


def _first_of_one_scale(lowered: Lowered, needed: Collection[str]) -> ir.Node | None:
    if not any(node.op_type in ONE_SCALE for node in lowered.source.graph.node):
        return None
    nodes = (n for n in ir.from_proto(lowered.source).graph if n.op_type in ONE_SCALE)
    return next((n for n in nodes for v in n.outputs if v.name in needed), None)


def _first_behind(lowered: Lowered, needed: Collection[str]) -> ir.Node | None:
    """Return the first node behind which the rows may lie otherwise."""
    elsewhere = (dependent_on_rows(lowered.model) - in_front(lowered)).intersection(needed)
    return next((n for n in lowered.model.graph for v in n.outputs if v.name in elsewhere), None)


def _fault(lowered: Lowered, output: str) -> str | None:
    """Return why the output has no row [1, …] for each of the batch, as shapes tell; None where it has."""
    spec = lowered.specs.get(output)
    if spec is None:
        return "its shape is not known before the model runs"
    if not lowered.one_row and output not in lowered.batched:
        return "its axis 0 is not the batch"
    if spec[0][:1] != (1,):
        return f"one row of the batch has the shape {list(spec[0])} there, which does not begin with 1"
    return None


def _called(node: ir.Node) -> str:
    return f"{node.op_type} node {node.name or node.outputs[0].name!r}"
