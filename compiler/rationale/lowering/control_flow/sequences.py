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


def resolve_sequences(model: ir.Model) -> None:
    """Replace, in place, reads of sequences and optionals; unknown ones remain.

    Requires: constants are folded.
    """
    if not any(n.op_type in OPERATORS and not n.domain for n in model.graph):
        return
    note_shapes(model)
    known: dict[ir.Value, Elements] = {}
    for node in list(model.graph):
        if node.domain or node.op_type not in _RESOLVED:
            continue
        op = Rewriting(model.graph, node)
        op.prefix = f"{op.prefix}/{node.op_type}"
        result = _RESOLVED[node.op_type](op, node, known)
        if isinstance(result, list):
            known[node.outputs[0]] = result
        elif result is not None:
            old = node.outputs[0]
            own = result.producer() in op.emitted and not old.is_graph_output()
            take_place_of(old, result if own else op.Identity(result))
            model.graph.remove(node, safe=True)
    RemoveUnusedNodesPass()(model)


Known = dict[ir.Value, Elements]
Result = Elements | ir.Value | None


def _elements(node: ir.Node, known: Known) -> Elements | None:
    """Return the elements of the first input, or None."""
    first = node.inputs[0] if node.inputs else None
    return None if first is None else known.get(first)


def _index(node: ir.Node, i: int, default: int) -> int | None:
    """Return a position: `default` if it is omitted, None if it is unknown."""
    value = node.inputs[i] if len(node.inputs) > i else None
    if value is None:
        return default
    return None if value.const_value is None else int(value.const_value.numpy().item())


def _insert(_: Rewriting, node: ir.Node, known: Known) -> Result:
    elements = _elements(node, known)
    if elements is None or node.inputs[1] is None:
        return None
    at = _index(node, 2, len(elements))
    if at is None:
        return None
    at = at + len(elements) if at < 0 else at
    return [*elements[:at], node.inputs[1], *elements[at:]]


def _erase(_: Rewriting, node: ir.Node, known: Known) -> Result:
    elements = _elements(node, known)
    at = None if elements is None else _index(node, 1, len(elements) - 1)
    if elements is None or at is None:
        return None
    gone = at % len(elements)
    return [*elements[:gone], *elements[gone + 1 :]]


def _at(_: Rewriting, node: ir.Node, known: Known) -> Result:
    elements, at = _elements(node, known), _index(node, 1, 0)
    if elements is None or at is None:
        return None
    if not -len(elements) <= at < len(elements):
        raise UnsupportedModelError(
            f"SequenceAt node {node.name!r}: no element {at} in a sequence of {len(elements)}"
        )
    return elements[at]


def _length(op: Rewriting, node: ir.Node, known: Known) -> Result:
    elements = _elements(node, known)
    return None if elements is None else op.constant(np.asarray(len(elements), np.int64))


def _joined(op: Rewriting, node: ir.Node, known: Known) -> Result:
    elements = _elements(node, known)
    if not elements:
        return None
    axis = node.attributes["axis"].as_int()
    if node.attributes.get_int("new_axis", 0):
        elements = [op.Unsqueeze(v, [axis]) for v in elements]
    return op.concat(elements, axis=axis)


def _split(op: Rewriting, node: ir.Node, _: Known) -> Result:
    x, axis = node.inputs[0], node.attributes.get_int("axis", 0) or 0
    size = None if x is None or x.shape is None else x.shape[axis]
    if x is None or not isinstance(size, int):
        return None
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if given is None:
        parts = op.split(x, [1] * size, axis=axis)
        kept = node.attributes.get_int("keepdims", 1)
        return parts if kept else [op.Squeeze(part, [axis]) for part in parts]
    if given.const_value is None:
        return None
    sizes = given.const_value.numpy()
    if sizes.ndim == 0:
        each = int(sizes)
        sizes = np.asarray([min(each, size - start) for start in range(0, size, each)])
    return op.split(x, [int(n) for n in sizes], axis=axis)


def _content(_: Rewriting, node: ir.Node, known: Known) -> Result:
    """Return the content of an optional, or of an Identity of a sequence."""
    value = node.inputs[0] if node.inputs else None
    if value is None:
        return None
    if value in known:
        return list(known[value])
    tensor = value.type is None or isinstance(value.type, ir.TensorType)
    return value if tensor and node.op_type == "OptionalGetElement" else None


def _got(op: Rewriting, node: ir.Node, known: Known) -> Result:
    """Return the element of an optional: the tensor that it was made from, or the optional itself."""
    value = node.inputs[0]
    made = None if value is None else value.producer()
    if value is not None and made is not None and made.op_type == "Optional" and made.inputs:
        inner = made.inputs[0]
        return None if inner is None else known.get(inner, inner)
    return _content(op, node, known)


def _has(op: Rewriting, node: ir.Node, known: Known) -> Result:
    value = node.inputs[0] if node.inputs else None
    made = None if value is None else value.producer()
    if value is None or (made is not None and made.op_type == "Optional" and not made.inputs):
        return op.constant(np.asarray(False))
    certain = isinstance(value.type, ir.TensorType) or value in known
    certain = certain or (made is not None and made.op_type == "Optional")
    return op.constant(np.asarray(True)) if certain else None


_RESOLVED: dict[str, Callable[[Rewriting, ir.Node, Known], Result]] = {
    "ConcatFromSequence": _joined,
    "Identity": _content,
    "OptionalGetElement": _got,
    "OptionalHasElement": _has,
    "SequenceAt": _at,
    "SequenceConstruct": lambda _, node, __: [v for v in node.inputs if v is not None],
    "SequenceEmpty": lambda *_: [],
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SplitToSequence": _split,
}
OPERATORS = frozenset(_RESOLVED) - {"Identity"}
