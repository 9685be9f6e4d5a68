"""The conversion of operators without a kernel in ONNX Runtime to operators that it knows.

An operator that ONNX defines by others is replaced by its definition, and an opset that differs from an
older one in nothing that the model uses is declared as the older one. Recurrent nodes with rows first
(layout 1) become nodes with steps first.
"""

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import onnx
import onnx_ir as ir
from onnx import helper
from onnx.inliner import inline_selected_functions

from rationale.errors import InvalidModelError
from rationale.lowering.bodies import all_node_lists, inline_bodies

_NEWEST = re.compile(r"support for domain ai\.onnx is till opset (\d+)")
_IR_VERSION = re.compile(r"max supported IR version: (\d+)")
_UNKNOWN = re.compile(
    r"Unrecognized attribute: \w+ for operator (\w+)"
    r"|([\w.]+:\w+)\(-?\d+\) is not a registered function/op"
    r"|No Op registered for (\w+)"
    r"|Type 'tensor\(\w+\)' of input parameter \(\w+\) of operator \((\w+)\)"
)
_MOST = 8  # changes to a model for one older engine


def known_to_runtime(
    proto: onnx.ModelProto, error: InvalidModelError, load: Callable[[onnx.ModelProto], object]
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Return the model in operators that `load` accepts, given its error, and notes for the user.

    Raises:
        InvalidModelError: the error of `load`, if no definition of ONNX's resolves it.
    """
    notes: list[str] = []
    while len(notes) < _MOST and (changed := _downgrade(proto, str(error))) is not None:
        proto, note = changed
        notes.append(note)
        try:
            load(proto)
        except InvalidModelError as another:
            error = another
        else:
            return proto, tuple(notes)
    raise error


def _downgrade(proto: onnx.ModelProto, error: str) -> tuple[onnx.ModelProto, str] | None:
    """Return the model after one change that removes the cause of an engine's error, and a note, or None."""
    if (match := _IR_VERSION.search(error)) and proto.ir_version <= onnx.IR_VERSION:
        changed = deepcopy(proto)
        changed.ir_version = int(match[1])
        return changed, f"the entries have IR version {changed.ir_version}, not {proto.ir_version}"
    if match := _NEWEST.search(error):
        return _declare_opset(proto, int(match[1]))
    if match := _UNKNOWN.search(error):
        domain, _, operator = next(filter(None, match.groups())).rpartition(":")
        return _inline_definitions(proto, [(domain, operator)])
    return None


def _declare_opset(proto: onnx.ModelProto, newest: int) -> tuple[onnx.ModelProto, str] | None:
    """Return the model declared as opset `newest`, or None."""
    version = _opset(proto)
    differing = sorted({n.op_type for n in _nodes(proto) if not _means_the_same(n, newest, version)})
    if differing:
        return _inline_definitions(proto, [("", name) for name in differing])
    changed = deepcopy(proto)
    for entry in (*changed.opset_import, *(e for f in changed.functions for e in f.opset_import)):
        if entry.domain in ("", "ai.onnx"):
            entry.version = min(entry.version, newest)
    note = (
        f"ONNX Runtime does not know opset {version}; the entries use opset {newest}, which is equivalent "
        "for this model"
    )
    return changed, note


def _inline_definitions(
    proto: onnx.ModelProto, operators: list[tuple[str, str]]
) -> tuple[onnx.ModelProto, str] | None:
    """Return the model with ONNX's own definitions in place of operators; None if there are none."""
    before = {(n.domain, n.op_type) for n in _nodes(proto)}
    try:
        inlined = inline_selected_functions(proto, operators, inline_schema_functions=True)
    except RuntimeError:  # ONNX's inliner cannot handle omitted optional inputs
        model = ir.from_proto(proto)
        inline_bodies(model, lambda operator, domain: (domain, operator) not in operators)
        inlined = ir.serde.serialize_model(model)
    if {(n.domain, n.op_type) for n in _nodes(inlined)} == before:
        return None
    names = ", ".join(name for _, name in operators)
    return inlined, f"ONNX Runtime does not know this {names}; the entries contain ONNX's definition of it"


def _opset(proto: onnx.ModelProto) -> int:
    return next((e.version for e in proto.opset_import if e.domain in ("", "ai.onnx")), 1)


def _means_the_same(node: onnx.NodeProto, known_opset: int, declared_opset: int) -> bool:
    """Tell whether the older opset has everything that the node uses; the engine checks its types."""
    if node.domain not in ("", "ai.onnx"):
        return True
    try:
        old, new = (_schema(node.op_type, v) for v in (known_opset, declared_opset))
    except onnx.defs.SchemaError:
        return False
    if old.since_version == new.since_version:
        return True
    fits = len(node.input) <= old.max_input and len(node.output) <= old.max_output
    return fits and all(a.name in old.attributes for a in node.attribute)


def _schema(op_type: str, version: int) -> Any:
    return onnx.defs.get_schema(op_type, version, "")


def _nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Return all nodes, also those of functions, branches and bodies."""
    return (node for nodes in all_node_lists(proto) for node in nodes)


RECURRENT = frozenset({"RNN", "GRU", "LSTM"})
_SEQUENCE, _STATE = [1, 0, 2], [1, 0, 2]  # [N, S, I] to [S, N, I]; [N, D, H] to [D, N, H]
_ANSWER = [2, 0, 1, 3]  # [S, D, N, H] to [N, S, D, H]
_ROWS_IN = {0: _SEQUENCE, 5: _STATE, 6: _STATE}  # X, initial_h, initial_c
_ROWS_OUT = [_ANSWER, _STATE, _STATE]  # Y, Y_h, Y_c


def without_layout(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Return the model with layout 0 between Transposes, and notes about it for the user."""
    changed = deepcopy(proto)
    names: list[str] = []
    for nodes in all_node_lists(changed):
        old = list(nodes)
        names += [node.name or node.output[0] for node in old if rows_come_first(node)]
        new = [n for node in old for n in (_with_steps_first(node) if rows_come_first(node) else [node])]
        del nodes[:]
        nodes.extend(new)
    if not names:
        return proto, ()
    note = f"{', '.join(names)}: ONNX Runtime has no kernel for layout = 1; the entries hold layout 0"
    return changed, (f"{note} between Transposes",)


def rows_come_first(node: onnx.NodeProto) -> bool:
    """Tell whether a recurrent node has layout 1."""
    return node.op_type in RECURRENT and any(a.name == "layout" and a.i for a in node.attribute)


def _with_steps_first(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yield the node with layout 0 between Transposes."""
    stem = node.name or next(name for name in node.output if name)
    attributes = [a for a in node.attribute if a.name != "layout"]
    inputs, outputs = list(node.input), list(node.output)
    for i, perm in _ROWS_IN.items():
        if i < len(inputs) and inputs[i]:
            name = f"{stem}/layout_0/input_{i}"
            yield helper.make_node("Transpose", [inputs[i]], [name], name, perm=perm)
            inputs[i] = name
    answers = [f"{stem}/layout_0/output_{i}" if name else "" for i, name in enumerate(outputs)]
    changed = helper.make_node(node.op_type, inputs, answers, node.name, domain=node.domain)
    changed.attribute.extend(attributes)
    yield changed
    for name, answer, perm in zip(outputs, answers, _ROWS_OUT, strict=False):
        if name:
            yield helper.make_node("Transpose", [answer], [name], f"{answer}/rows", perm=perm)
