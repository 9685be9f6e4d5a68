"""What depends on the explained inputs in a way that carries attributions, and where that ends.

Attributions pass through every operator that has a rule, through conditions and whole numbers too. They end
at an operator that has none and gives no floats (ArgMax), and where a whole number decides which values are
taken (Gather's indices): a choice like that has no multiplier. Each such end is noted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from compiler.explain.reach import OF_SIZES, made_by
from compiler.explain.target import Stop
from compiler.graph.traverse import names_read
from compiler.lowering import Lowered
from compiler.rules.rule import Rule, Trait, find_rule

_CONSTANT = frozenset({"IsNaN", "IsInf"})  # the same for all numbers
_NUMBERS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


@dataclass(frozen=True)
class Flow:
    """Attributions on their way.

    Attributes:
        active: names of the values that carry them.
        held: pairs of a node's first output and the position of an input that is active, yet carries none.
        stops: with the name of an output of each node, by which one knows whether it matters.
    """

    active: frozenset[str]
    held: frozenset[tuple[str, int]]
    stops: tuple[tuple[str, Stop], ...]


def flow(lowered: Lowered, ends: Sequence[str]) -> Flow:
    """Follow attributions from where a walk ends through the graph."""
    active, held, stops = set(ends), set(), []
    opset = lowered.model.graph.opset_imports.get("", 21)
    for node in lowered.model.graph:
        if active.isdisjoint(names_read(node)) or made_by(node, ends) or node.op_type in OF_SIZES | _CONSTANT:
            continue
        about = _Operator(node, find_rule(node.op_type, node.domain), type_letters(node, opset), lowered)
        first = str(node.outputs[0].name)
        carried = [i for i, v in enumerate(node.inputs) if v is not None and v.name in active]
        kept = [i for i in carried if about.takes(i)]
        for i in carried:
            if i not in kept:
                held.add((first, i))
                stops.append((first, about.stop(i, "it chooses values by place, and has no multiplier")))
        inner = bool(carried) is False  # read from inside a branch or a body
        given = [v for j, v in enumerate(node.outputs) if v.name and about.gives(j)]
        if kept or inner:
            active.update(str(v.name) for v in given)
            if about.rule is None and not given:
                stops += [
                    (first, about.stop(i, "the operator has no rule, and gives no floats")) for i in kept
                ]
    return Flow(frozenset(active), frozenset(held), tuple(stops))


def is_number(lowered: Lowered, value: ir.Value) -> bool:
    """Tell whether a value holds floats to compute with; True where its type is not known."""
    spec = lowered.specs.get(str(value.name))
    dtype = spec[1] if spec else value.dtype
    return dtype is None or dtype in _NUMBERS


@dataclass(frozen=True)
class _Operator:
    """A node, and what its inputs and outputs may carry."""

    node: ir.Node
    rule: Rule | None
    types: tuple[list[str], list[str], dict[str, bool]]
    lowered: Lowered

    def takes(self, i: int) -> bool:
        """Tell whether an active input may carry an attribution."""
        value = self.node.inputs[i]
        assert value is not None
        return self._carries(value, self.types[0], i)

    def gives(self, j: int) -> bool:
        value = self.node.outputs[j]
        if self.rule is None:
            return is_number(self.lowered, value)
        return self._carries(value, self.types[1], j)

    def _carries(self, value: ir.Value, kinds: Sequence[str], i: int) -> bool:
        """Tell whether a value carries attributions.

        Floats do; whole numbers where the operator takes floats in their place, or has a rule for them.
        """
        if is_number(self.lowered, value) or (self.rule is not None and Trait.DISCRETE in self.rule.traits):
            return True
        return bool(kinds) and self.types[2].get(kinds[i], False)

    def stop(self, i: int, reason: str) -> Stop:
        value, name = self.node.inputs[i], self.node.name or str(self.node.outputs[0].name)
        assert value is not None
        return Stop(name, self.node.op_type, str(value.name), reason)


def type_letters(node: ir.Node, opset: int) -> tuple[list[str], list[str], dict[str, bool]]:
    """Return the schema's type parameter of each input and output, and whether each may stand for floats."""
    try:
        schema = onnx.defs.get_schema(node.op_type, opset if not node.domain else 1, node.domain)
    except onnx.defs.SchemaError:
        return [], [], {}
    floats = {c.type_param_str: "tensor(float)" in c.allowed_type_strs for c in schema.type_constraints}
    inputs, outputs = (
        [of[min(i, len(of) - 1)].type_str for i in range(len(values))] if of else []
        for of, values in ((schema.inputs, node.inputs), (schema.outputs, node.outputs))
    )
    return inputs, outputs, floats
