"""Operators on whole numbers and conditions that attributions pass through: computed in floats.

A rule is written for floats. Where an Add or a Reshape on the path holds integers, Casts go around it: its
values stay, and its multipliers are floats like any other.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import onnx_ir as ir

from compiler.graph.nodes import Nodes
from compiler.lowering import Lowered
from compiler.rules.rule import Trait, find_rule
from compiler.selection.activity import is_number, type_letters

_TRUNCATING = frozenset({"Div", "ReduceMean"})  # of integers: the result has no fraction


def in_floats(
    lowered: Lowered,
    nodes: Sequence[ir.Node],
    active: frozenset[str],
    held: Collection[tuple[str, int]],
    dtype: ir.DataType,
) -> Lowered:
    """A copy with Casts around such nodes; `lowered` itself where there are none.

    Args:
        nodes: those on the path.
        active, held: see `Flow`.
        dtype: in which they are computed.
    """
    chosen = {
        node: [v for v in _carrying(node, active, held) if not is_number(lowered, v)]
        for node in nodes
        if _knows_floats_alone(node)
    }
    if not any(chosen.values()):
        return lowered
    model = lowered.model.clone()
    copies = dict(zip(lowered.model.graph, model.graph, strict=True))
    casts = _Casts(replace(lowered, model=model), dtype)
    for node, values in chosen.items():
        if values:
            casts.around(copies[node], {str(v.name) for v in values})
    return replace(casts.lowered, specs=casts.specs, batched=frozenset(casts.batched))


def _carrying(node: ir.Node, active: frozenset[str], held: Collection[tuple[str, int]]) -> list[ir.Value]:
    """Inputs and outputs through which attributions pass."""
    first = str(node.outputs[0].name)
    inputs = [v for i, v in enumerate(node.inputs) if v is not None and (first, i) not in held]
    return [v for v in (*inputs, *node.outputs) if v.name in active]


def _knows_floats_alone(node: ir.Node) -> bool:
    rule = find_rule(node.op_type, node.domain)
    return rule is not None and Trait.DISCRETE not in rule.traits


class _Casts:
    def __init__(self, lowered: Lowered, dtype: ir.DataType) -> None:
        self.lowered, self.graph, self.dtype = lowered, lowered.model.graph, dtype
        self.specs, self.batched = dict(lowered.specs), set(lowered.batched)
        self.opset = self.graph.opset_imports.get("", 21)

    def around(self, node: ir.Node, carrying: Collection[str]) -> None:
        """The node in floats, with Casts on every operand of the type that one of these has, and back."""
        takes, gives = type_letters(node, self.opset)
        pairs = [*zip(node.inputs, takes, strict=False), *zip(node.outputs, gives, strict=False)]
        whole = {v: letter for v, letter in pairs if v is not None and not is_number(self.lowered, v)}
        letters = {letter for v, letter in whole.items() if v.name in carrying}
        op = Nodes(self.graph, str(node.name or node.outputs[0].name), before=node)
        inputs = [
            self._cast(op, v, self.dtype) if v in whole and whole[v] in letters else v for v in node.inputs
        ]
        attributes = list(node.attributes.values())
        twin = ir.Node(node.domain, node.op_type, inputs, attributes, num_outputs=len(node.outputs))
        twin.name = node.name
        self.graph.insert_before(node, twin)
        for old, new in zip(node.outputs, twin.outputs, strict=True):
            if whole.get(old) in letters:
                self._record(new, f"{old.name}/float", old, self.dtype)
                new = self._whole(op, new) if node.op_type in _TRUNCATING else new
                new = self._cast(op, new, self.specs[str(old.name)][1])
            self._stand_for(old, new)
        self.graph.remove(node, safe=True)

    def _whole(self, op: Nodes, x: ir.Value) -> ir.Value:
        """x without its fraction: sign x·⌊|x|⌋."""
        size, sign = op.Abs(x), op.Sign(x)
        whole = op.Floor(size)
        y = op.Mul(sign, whole)
        for value in (size, sign, whole, y):
            self._record(value, str(value.name), x, self.dtype)
        return y

    def _cast(self, op: Nodes, x: ir.Value, dtype: ir.DataType) -> ir.Value:
        y = op.Cast(x, to=int(dtype))
        self._record(y, str(y.name), x, dtype)
        return y

    def _record(self, value: ir.Value, name: str, like: ir.Value, dtype: ir.DataType) -> None:
        """Names a value that has the shape of another one."""
        value.name, value.dtype, value.shape = name, dtype, like.shape
        known = str(like.name)
        if known in self.specs:
            self.specs[name] = self.specs[known][0], dtype
        if known in self.batched:
            self.batched.add(name)

    def _stand_for(self, old: ir.Value, new: ir.Value) -> None:
        """`new` in place of `old`, under its name."""
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        name, old.name = old.name, None
        new.name, new.type, new.shape = name, old.type, old.shape
