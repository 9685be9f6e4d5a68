"""Recurrent nodes whose rows come first (layout 1), for which ONNX Runtime has no kernel."""

from collections.abc import Iterator

import onnx
from onnx import helper

from compiler.lowering.subgraphs import all_node_lists

_OPERATORS = frozenset({"RNN", "GRU", "LSTM"})
_SEQUENCE, _STATE = [1, 0, 2], [1, 0, 2]  # [N, S, I] to [S, N, I]; [N, D, H] to [D, N, H]
_ANSWER = [2, 0, 1, 3]  # [S, D, N, H] to [N, S, D, H]
_ROWS_IN = {0: _SEQUENCE, 5: _STATE, 6: _STATE}  # X, initial_h, initial_c
_ROWS_OUT = [_ANSWER, _STATE, _STATE]  # Y, Y_h, Y_c


def without_layout(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Return the model with layout 0 between Transposes, and notes about it for the user."""
    if not any(_batchwise(node) for nodes in all_node_lists(proto) for node in nodes):
        return proto, ()
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    found = []
    for nodes in all_node_lists(copy):
        old = list(nodes)
        found += [node.name or node.output[0] for node in old if _batchwise(node)]
        new = [n for node in old for n in (_turned(node) if _batchwise(node) else [node])]
        del nodes[:]
        nodes.extend(new)
    note = f"{', '.join(found)}: ONNX Runtime has no kernel for layout = 1; the entries hold layout 0"
    return copy, (f"{note} between Transposes",)


def _batchwise(node: onnx.NodeProto) -> bool:
    return node.op_type in _OPERATORS and any(a.name == "layout" and a.i for a in node.attribute)


def _turned(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yield the node with layout 0 between Transposes."""
    stem = node.name or next(name for name in node.output if name)
    kept = [a for a in node.attribute if a.name != "layout"]
    inputs, outputs = list(node.input), list(node.output)
    for i, perm in _ROWS_IN.items():
        if i < len(inputs) and inputs[i]:
            moved = f"{stem}/layout_0/input_{i}"
            yield helper.make_node("Transpose", [inputs[i]], [moved], moved, perm=perm)
            inputs[i] = moved
    answers = [f"{stem}/layout_0/output_{i}" if name else "" for i, name in enumerate(outputs)]
    turned = helper.make_node(node.op_type, inputs, answers, node.name, domain=node.domain)
    turned.attribute.extend(kept)
    yield turned
    for name, answer, perm in zip(outputs, answers, _ROWS_OUT, strict=False):
        if name:
            yield helper.make_node("Transpose", [answer], [name], f"{answer}/rows", perm=perm)
