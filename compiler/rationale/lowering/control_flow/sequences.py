"""Sequences and optionals with known elements: reads are replaced by the inserted values.

Exporters write lists in this way; an unrolled Loop that appends to one fills such a sequence.
"""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from rationale.errors import UnsupportedModelError
from rationale.graph.nodes import take_place_of
from rationale.lowering.inference import note_shapes
from rationale.lowering.rewrites.engine import Rewriting

Elements = list[ir.Value]
Sequences = dict[ir.Value, Elements]
Result = Elements | ir.Value | None


def resolve_sequences(model: ir.Model) -> None:
    """Replace, in place, reads of sequences and optionals; unknown ones remain.

    Requires: constants are folded.
    """
    if not any(n.op_type in OPERATORS and not n.domain for n in model.graph):
        return
    note_shapes(model)
    sequences: Sequences = {}
    for node in list(model.graph):
        if node.domain or node.op_type not in _RESOLVED:
            continue
        op = Rewriting(model.graph, node)
        op.prefix = f"{op.prefix}/{node.op_type}"
        result = _RESOLVED[node.op_type](op, node, sequences)
        if isinstance(result, list):
            sequences[node.outputs[0]] = result
        elif result is not None:
            old = node.outputs[0]
            is_new = result.producer() in op.emitted and not old.is_graph_output()
            take_place_of(old, result if is_new else op.Identity(result))
            model.graph.remove(node, safe=True)
    RemoveUnusedNodesPass()(model)


def _elements(node: ir.Node, sequences: Sequences) -> Elements | None:
    """Return the elements of the first input, or None."""
    first = node.inputs[0] if node.inputs else None
    return None if first is None else sequences.get(first)


def _index(node: ir.Node, i: int, default: int) -> int | None:
    """Return a position: `default` if it is omitted, None if it is unknown."""
    value = node.inputs[i] if len(node.inputs) > i else None
    if value is None:
        return default
    return None if value.const_value is None else int(value.const_value.numpy().item())


def _insert(_: Rewriting, node: ir.Node, sequences: Sequences) -> Result:
    elements = _elements(node, sequences)
    if elements is None or node.inputs[1] is None:
        return None
    position = _index(node, 2, len(elements))
    if position is None:
        return None
    position = position + len(elements) if position < 0 else position
    return [*elements[:position], node.inputs[1], *elements[position:]]


def _erase(_: Rewriting, node: ir.Node, sequences: Sequences) -> Result:
    elements = _elements(node, sequences)
    position = None if elements is None else _index(node, 1, len(elements) - 1)
    if elements is None or position is None:
        return None
    position %= len(elements)
    return [*elements[:position], *elements[position + 1 :]]


def _element(_: Rewriting, node: ir.Node, sequences: Sequences) -> Result:
    elements, position = _elements(node, sequences), _index(node, 1, 0)
    if elements is None or position is None:
        return None
    if not -len(elements) <= position < len(elements):
        raise UnsupportedModelError(
            f"SequenceAt node {node.name!r}: no element {position} in a sequence of {len(elements)}"
        )
    return elements[position]


def _length(op: Rewriting, node: ir.Node, sequences: Sequences) -> Result:
    elements = _elements(node, sequences)
    return None if elements is None else op.constant(np.asarray(len(elements), np.int64))


def _concat(op: Rewriting, node: ir.Node, sequences: Sequences) -> Result:
    elements = _elements(node, sequences)
    if not elements:
        return None
    axis = node.attributes["axis"].as_int()
    if node.attributes.get_int("new_axis", 0):
        elements = [op.Unsqueeze(v, [axis]) for v in elements]
    return op.concat(elements, axis=axis)


def _split(op: Rewriting, node: ir.Node, _: Sequences) -> Result:
    """Return the parts of a SplitToSequence; None while sizes are unknown."""
    x, axis = node.inputs[0], node.attributes.get_int("axis", 0) or 0
    size = None if x is None or x.shape is None else x.shape[axis]
    if x is None or not isinstance(size, int):
        return None
    sizes_input = node.inputs[1] if len(node.inputs) > 1 else None
    if sizes_input is None:
        parts = op.split(x, [1] * size, axis=axis)
        keeps_axis = node.attributes.get_int("keepdims", 1)
        return parts if keeps_axis else [op.Squeeze(element, [axis]) for element in parts]
    if sizes_input.const_value is None:
        return None
    sizes = sizes_input.const_value.numpy()
    if sizes.ndim == 0:
        length = int(sizes)
        sizes = np.asarray([min(length, size - start) for start in range(0, size, length)])
    return op.split(x, [int(n) for n in sizes], axis=axis)


def _content(_: Rewriting, node: ir.Node, sequences: Sequences) -> Result:
    """Return the content of an optional, or of an Identity of a sequence."""
    value = node.inputs[0] if node.inputs else None
    if value is None:
        return None
    if value in sequences:
        return list(sequences[value])
    tensor = value.type is None or isinstance(value.type, ir.TensorType)
    return value if tensor and node.op_type == "OptionalGetElement" else None


def _optional_element(op: Rewriting, node: ir.Node, sequences: Sequences) -> Result:
    """Return the element of an optional: the tensor that it was made from, or the optional itself."""
    value = node.inputs[0]
    producer = None if value is None else value.producer()
    if value is not None and producer is not None and producer.op_type == "Optional" and producer.inputs:
        inner = producer.inputs[0]
        return None if inner is None else sequences.get(inner, inner)
    return _content(op, node, sequences)


def _has_element(op: Rewriting, node: ir.Node, sequences: Sequences) -> Result:
    value = node.inputs[0] if node.inputs else None
    producer = None if value is None else value.producer()
    if value is None or (producer is not None and producer.op_type == "Optional" and not producer.inputs):
        return op.constant(np.asarray(False))
    certain = isinstance(value.type, ir.TensorType) or value in sequences
    certain = certain or (producer is not None and producer.op_type == "Optional")
    return op.constant(np.asarray(True)) if certain else None


_RESOLVED: dict[str, Callable[[Rewriting, ir.Node, Sequences], Result]] = {
    "ConcatFromSequence": _concat,
    "Identity": _content,
    "OptionalGetElement": _optional_element,
    "OptionalHasElement": _has_element,
    "SequenceAt": _element,
    "SequenceConstruct": lambda _, node, __: [v for v in node.inputs if v is not None],
    "SequenceEmpty": lambda *_: [],
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SplitToSequence": _split,
}
OPERATORS = frozenset(_RESOLVED) - {"Identity"}
