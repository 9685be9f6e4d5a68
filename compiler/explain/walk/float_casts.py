"""Operators on whole numbers and conditions that attributions pass through: computed in floats.

A rule is written for floats. Where an Add or a Reshape on the path holds integers, Casts go around it: its
values stay, and its multipliers are floats like any other.
"""

from collections.abc import Collection, Sequence

import onnx_ir as ir

from compiler.explain.walk.activity import is_number, type_letters
from compiler.graph.nodes import Nodes, stand_for
from compiler.lowering import Lowered, with_model
from compiler.rules.rule import Trait, find_rule

_TRUNCATING = frozenset({"Div", "ReduceMean"})  # of integers: the result has no fraction


def in_floats(
    lowered: Lowered,
    nodes: Sequence[ir.Node],
    active: frozenset[str],
    held: Collection[tuple[str, int]],
    dtype: ir.DataType,
) -> Lowered:
    """Return a copy with Casts around nodes that take floats alone; `lowered` itself where there are none.

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
    for node, values in chosen.items():
        if values:
            _cast_around(lowered, model.graph, copies[node], {str(v.name) for v in values}, dtype)
    return with_model(lowered, model)


def _carrying(node: ir.Node, active: frozenset[str], held: Collection[tuple[str, int]]) -> list[ir.Value]:
    """Return the inputs and outputs through which attributions pass."""
    first = str(node.outputs[0].name)
    inputs = [v for i, v in enumerate(node.inputs) if v is not None and (first, i) not in held]
    return [v for v in (*inputs, *node.outputs) if v.name in active]


def _knows_floats_alone(node: ir.Node) -> bool:
    rule = find_rule(node.op_type, node.domain)
    return rule is not None and Trait.DISCRETE not in rule.traits


def _cast_around(
    lowered: Lowered, graph: ir.Graph, node: ir.Node, carrying: Collection[str], dtype: ir.DataType
) -> None:
    """Compute the node in floats.

    Casts stand on every operand of the type that a carrying one has, and lead back behind the node.
    """
    takes, gives, _ = type_letters(node, graph.opset_imports.get("", 21))
    pairs = [*zip(node.inputs, takes, strict=False), *zip(node.outputs, gives, strict=False)]
    whole = {v: letter for v, letter in pairs if v is not None and not is_number(lowered, v)}
    letters = {letter for v, letter in whole.items() if v.name in carrying}
    op = Nodes(graph, f"{node.name or node.outputs[0].name}/in_floats", before=node)
    inputs = [op.Cast(v, to=int(dtype)) if v in whole and whole[v] in letters else v for v in node.inputs]
    attributes = list(node.attributes.values())
    twin = ir.Node(node.domain, node.op_type, inputs, attributes, num_outputs=len(node.outputs))
    twin.name = node.name
    graph.insert_before(node, twin)
    for old, new in zip(node.outputs, twin.outputs, strict=True):
        if whole.get(old) in letters:
            if node.op_type in _TRUNCATING:
                new = op.Mul(op.Sign(new), op.Floor(op.Abs(new)))
            new = op.Cast(new, to=int(lowered.specs[str(old.name)][1]))
        stand_for(old, new)
    graph.remove(node, safe=True)
