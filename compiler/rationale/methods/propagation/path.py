"""The path of a walk: the operators between the explained tensors and the output, and its ends.

Attributions pass through every operator that has a rule, through conditions and integers too: Casts surround
an Add or a Reshape of integers, whose values do not change. Attributions end at an operator without a rule
that returns no floats (ArgMax), and at integers that select values (Gather's indices): such a selection has
no multiplier. A note reports each such end.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Literal

import onnx
import onnx_ir as ir

from rationale.errors import InvalidOptionError, UnsupportedModelError, quoted
from rationale.graph.nodes import NodeBuilder, names_read, take_place_of
from rationale.lowering import Lowered, with_model
from rationale.methods.engine import EngineChoice
from rationale.methods.environment import demand_rows
from rationale.methods.leaves import ChosenLeaves, choose_leaves, keeps_batch
from rationale.methods.logits import choose_logits, logits_behind
from rationale.methods.propagation.unsupported import no_rules_error, no_slope_error
from rationale.methods.target import (
    AMONG_CARRIERS,
    BY_PLACE,
    SIZE_OPERATORS,
    Stop,
    Target,
    check_shapes,
    choose_output,
    choose_targets,
    computes,
    reach_backward,
    reach_forward,
)
from rationale.rules.rule import Kind, Rule, Trait, find_rule
from rationale.schema.request import CompileRequest, Concepts

_CONSTANT = frozenset({"IsNaN", "IsInf"})  # operators with the same result for all numbers
_NUMBERS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


@dataclass(frozen=True)
class AttributionFlow:
    """The values that carry attributions.

    Attributes:
        active: names of these values.
        blocked: pairs of a node's first output and the position of an active input that carries none.
        stops: the ends of attributions, each with an output of its node that shows whether it matters.
    """

    active: frozenset[str]
    blocked: frozenset[tuple[str, int]]
    stops: tuple[tuple[str, Stop], ...]


def follow_attributions(lowered: Lowered, ends: Sequence[str]) -> AttributionFlow:
    """Follow attributions forward through the graph, from the tensors at which a walk ends."""
    active, blocked, stops = set(ends), set(), []
    opset = lowered.model.graph.opset_imports.get("", 21)
    for node in lowered.model.graph:
        if (
            active.isdisjoint(names_read(node))
            or computes(node, ends)
            or node.op_type in SIZE_OPERATORS | _CONSTANT
        ):
            continue
        operator = _NodeFlow(node, find_rule(node.op_type, node.domain), type_letters(node, opset), lowered)
        first = str(node.outputs[0].name)
        carried = [i for i, v in enumerate(node.inputs) if v is not None and v.name in active]
        carrying = [i for i in carried if operator.carries_input(i)]
        for i in carried:
            if i not in carrying:
                blocked.add((first, i))
                stops.append((first, operator.stop(i, AMONG_CARRIERS if carrying else BY_PLACE)))
        inner = bool(carried) is False  # read from inside a branch or a body
        given_floats = [v for j, v in enumerate(node.outputs) if v.name and operator.carries_output(j)]
        if carrying or inner:
            active.update(str(v.name) for v in given_floats)
            if operator.rule is None and not given_floats:
                stops += [
                    (first, operator.stop(i, "the operator has no rule, and gives no floats"))
                    for i in carrying
                ]
    return AttributionFlow(frozenset(active), frozenset(blocked), tuple(stops))


def is_number(lowered: Lowered, value: ir.Value) -> bool:
    """Tell whether a value holds floats that operators compute with; True if its type is unknown."""
    spec = lowered.specs.get(str(value.name))
    dtype = spec[1] if spec else value.dtype
    return dtype is None or dtype in _NUMBERS


@dataclass(frozen=True)
class _NodeFlow:
    """A node, and the inputs and outputs that may carry attributions."""

    node: ir.Node
    rule: Rule | None
    types: tuple[list[str], list[str], dict[str, bool]]
    lowered: Lowered

    def carries_input(self, i: int) -> bool:
        """Tell whether an active input may carry an attribution."""
        value = self.node.inputs[i]
        assert value is not None
        return self._carries(value, self.types[0], i)

    def carries_output(self, j: int) -> bool:
        value = self.node.outputs[j]
        if self.rule is None:
            return is_number(self.lowered, value)
        return self._carries(value, self.types[1], j)

    def _carries(self, value: ir.Value, kinds: Sequence[str], i: int) -> bool:
        """Tell whether a value carries attributions.

        Floats carry them. Integers do if the operator also takes floats, or has a rule for integers.
        """
        if is_number(self.lowered, value) or (self.rule is not None and Trait.DISCRETE in self.rule.traits):
            return True
        return bool(kinds) and self.types[2].get(kinds[i], False)

    def stop(self, i: int, reason: str) -> Stop:
        value, name = self.node.inputs[i], self.node.name or str(self.node.outputs[0].name)
        assert value is not None
        return Stop(name, self.node.op_type, str(value.name), reason)


def type_letters(node: ir.Node, opset: int) -> tuple[list[str], list[str], dict[str, bool]]:
    """Return the schema's type parameters of inputs and outputs, and whether each allows floats."""
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


_TRUNCATING = frozenset({"Div", "ReduceMean"})  # with integers, their result has no fraction


def cast_to_floats(
    lowered: Lowered,
    nodes: Sequence[ir.Node],
    active: frozenset[str],
    blocked: Collection[tuple[str, int]],
    dtype: ir.DataType,
) -> Lowered:
    """Return a copy with Casts around nodes that take only floats; `lowered` itself if there are none.

    Args:
        nodes: the nodes on the path.
        active, blocked: see `AttributionFlow`.
        dtype: the float type in which they are computed.
    """
    chosen = {
        node: [v for v in _carrying_values(node, active, blocked) if not is_number(lowered, v)]
        for node in nodes
        if _takes_only_floats(node)
    }
    if not any(chosen.values()):
        return lowered
    model = lowered.model.clone()
    copies = dict(zip(lowered.model.graph, model.graph, strict=True))
    for node, values in chosen.items():
        if values:
            _cast_around(lowered, model.graph, copies[node], {str(v.name) for v in values}, dtype)
    return with_model(lowered, model)


def _carrying_values(
    node: ir.Node, active: frozenset[str], blocked: Collection[tuple[str, int]]
) -> list[ir.Value]:
    """Return the inputs and outputs through which attributions pass."""
    first = str(node.outputs[0].name)
    inputs = [v for i, v in enumerate(node.inputs) if v is not None and (first, i) not in blocked]
    return [v for v in (*inputs, *node.outputs) if v.name in active]


def _takes_only_floats(node: ir.Node) -> bool:
    rule = find_rule(node.op_type, node.domain)
    return rule is not None and Trait.DISCRETE not in rule.traits


def _cast_around(
    lowered: Lowered, graph: ir.Graph, node: ir.Node, carrying: Collection[str], dtype: ir.DataType
) -> None:
    """Compute the node in floats.

    Casts convert every operand that shares a carrying value's type, and convert the results back.
    """
    input_letters, output_letters, _ = type_letters(node, graph.opset_imports.get("", 21))
    pairs = [*zip(node.inputs, input_letters, strict=False), *zip(node.outputs, output_letters, strict=False)]
    whole = {v: letter for v, letter in pairs if v is not None and not is_number(lowered, v)}
    letters = {letter for v, letter in whole.items() if v.name in carrying}
    op = NodeBuilder(graph, f"{node.name or node.outputs[0].name}/in_floats", before=node)
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
        take_place_of(old, new)
    graph.remove(node, safe=True)


_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16})
_JOINT = frozenset({Trait.ELEMENTWISE, Trait.MOVING})  # for bilinear operators: sums or copies of inputs


@dataclass(frozen=True)
class Path(EngineChoice):
    """The operators whose multipliers are needed.

    Attributes:
        dependent: names of all values that depend on the explained inputs in any way.
        active: names of the values on the path that carry attributions.
        blocked: see `AttributionFlow`.
        layers: values on the path that are explained too, in the order of the graph, or "all".
        concepts: the layer whose channels are explained, and their number.
    """

    dependent: frozenset[str]
    active: frozenset[str]
    blocked: frozenset[tuple[str, int]]
    nodes: tuple[tuple[ir.Node, Rule], ...]
    layers: tuple[str, ...] | Literal["all"] = ()
    concepts: Concepts | None = None

    @property
    def lengths(self) -> dict[str, int]:
        return {"C": self.concepts.count} if self.concepts else {}

    @property
    def options(self) -> dict[str, Any]:
        requested = {"layers": self.layers, "concepts": self.concepts and asdict(self.concepts)}
        return {name: value for name, value in requested.items() if value}

    def carries_all(self, target: Target, layer: str) -> bool:
        """Tell whether every path from the leaves to the output leads through a value."""
        reached = set() if layer == target.output else {target.output}
        for node, _ in reversed(self.nodes):
            if not reached.isdisjoint(str(v.name) for v in node.outputs):
                reached |= (names_read(node) & self.active) - {layer}
        return reached.isdisjoint(target.tensors)


def choose_path(
    lowered: Lowered,
    request: CompileRequest,
    choose: Callable[[Lowered, Sequence[str] | None], ChosenLeaves] = choose_leaves,
    scores_for: str | None = None,
) -> tuple[Lowered, Target, Path]:
    """Find the path from the explained tensors to the output; integers become floats in the returned model.

    Args:
        choose: function that returns the ends of the walk for the named inputs.
        scores_for: the name of a method that prefers scores to the probabilities made of them.

    Raises:
        InvalidOptionError: if a name does not exist, or a layer does not lie on the path.
        UnsupportedModelError: if an operator on the path has no rule.
    """
    chosen = choose(lowered, request.inputs)
    ends = tuple(s.tensor for s in chosen.leaves)
    _check_types(lowered, ends)
    name = choose_output(lowered, request.output, ends)
    notes = chosen.notes
    if request.logits:
        name = choose_logits(lowered.source, name)
    elif scores_for is not None:
        name, more = _prefer_scores(lowered, name, ends, scores_for, request)
        notes += more
    route = _route_to(lowered, name, chosen)
    if request.inputs is None and not chosen.notes:  # such notes name the inputs beside token ids
        notes += _note_of_unexplained_inputs(lowered, chosen, route)
    leaves = tuple(s for s in chosen.leaves if s.tensor in route.active)
    check_shapes(lowered, [s.tensor for s in leaves])
    dtype = lowered.specs[leaves[0].tensor][1]
    floats = cast_to_floats(lowered, [n for n, _ in route.nodes], route.active, route.flowing.blocked, dtype)
    if floats is not lowered:
        lowered, route = floats, _route_to(floats, name, chosen)
    demand_rows(lowered, name, route.needed)
    target = Target(
        leaves=leaves,
        output=name,
        elements=choose_targets(request.targets, name, lowered),
        stops=tuple(dict.fromkeys(stop for first, stop in route.flowing.stops if first in route.needed)),
        notes=notes,
    )
    path = Path(
        dependent=reach_forward(lowered.model.graph, ends),
        active=route.active,
        blocked=route.flowing.blocked,
        nodes=route.nodes,
        layers=_choose_layers(lowered, request.layers, route, ends, name),
        concepts=_choose_concepts(lowered, request.concepts, route, ends, name),
    )
    return lowered, target, path


@dataclass(frozen=True)
class _Route:
    """The part of the graph between the ends of a walk and the output.

    Attributes:
        needed: names of all values from which the output is computed.
        active: names of those among them that carry attributions.
    """

    flowing: AttributionFlow
    needed: frozenset[str]
    active: frozenset[str]
    nodes: tuple[tuple[ir.Node, Rule], ...]


def _route_to(lowered: Lowered, output: str, chosen: ChosenLeaves) -> _Route:
    graph, ends = lowered.model.graph, tuple(s.tensor for s in chosen.leaves)
    flowing, needed = follow_attributions(lowered, ends), reach_backward(graph, output, ends)
    if output not in flowing.active:
        raise no_slope_error(graph, output, chosen.names, flowing.active, needed)
    active = flowing.active & needed
    between = _between(graph, active, ends)
    nodes = tuple((n, rule) for n in between if (rule := find_rule(n.op_type, n.domain)) is not None)
    if len(nodes) < len(between):  # nodes without a rule often lack a known shape too: report them first
        raise no_rules_error(lowered, between, active, ends, output)
    return _Route(flowing, needed, active, nodes)


def _note_of_unexplained_inputs(lowered: Lowered, chosen: ChosenLeaves, route: _Route) -> tuple[str, ...]:
    """Return a note for inputs that change the output and are not explained, such as words."""
    read = [v for v in lowered.model.graph.inputs if v.name in route.needed and v.name not in chosen.names]
    if not (names := [str(v.name) for v in read if v.shape is not None and v.shape.rank() > 0]):
        return ()
    return (
        f"these inputs change the output and get no attributions: {', '.join(names)}. They hold no floats, "
        "so references keep the values of the explained row. permutationshap, exactshap and (for trees) "
        "treeshap explain inputs of any type",
    )


def _prefer_scores(
    lowered: Lowered, output: str, ends: Sequence[str], method: str, request: CompileRequest
) -> tuple[str, tuple[str, ...]]:
    """Return the scores behind probabilities, and notes for the user.

    Relevance starts from the scores since probabilities saturate. An output that the user names is explained
    nevertheless.
    """
    scores = logits_behind(lowered.source, output)
    if scores is None or scores in ends or scores not in follow_attributions(lowered, ends).active:
        return output, ()
    sizes = {prod(lowered.specs[name][0]) for name in (scores, output)}
    is_chosen = request.output is not None or (request.targets is not None and len(sizes) > 1)
    if is_chosen:  # by indices that mean something else for the scores
        return output, (
            f"{output!r} holds probabilities, which saturate: {method} is defined for scores. "
            f"Explain {scores!r} instead (--logits).",
        )
    return scores, (
        f"explains the scores {scores!r} behind the probabilities {output!r}: {method} is defined for scores "
        "(--output chooses another tensor)",
    )


def _check_types(lowered: Lowered, tensors: Sequence[str]) -> None:
    for name in tensors:
        dtype = lowered.specs[name][1] if name in lowered.specs else ir.DataType.FLOAT
        if dtype not in _TYPES:
            raise UnsupportedModelError(
                f"{name!r} holds {dtype.name}, a type without attributions. Convert the model to float32."
            )


def _choose_layers(
    lowered: Lowered, layers: object, route: _Route, ends: Sequence[str], output: str
) -> tuple[str, ...] | Literal["all"]:
    if layers == "all":
        return "all"
    if isinstance(layers, str) or not isinstance(layers, Iterable):
        raise InvalidOptionError(f"layers {layers!r}: give a list of names, or 'all'.")
    names = list(layers)
    path_values = [str(v.name) for n, _ in route.nodes for v in n.outputs if v.name in route.active]
    unknown = [n for n in names if n not in path_values and n not in ends]
    if unknown:
        raise InvalidOptionError(
            f"layers {unknown} are not on the path from {list(ends)} to {output!r}. Name outputs of "
            f"operators on it: {quoted(path_values)} (look them up in Netron; 'all' takes every layer)."
        )
    unsized = [n for n in names if not lowered.specs.get(n, ((),))[0]]
    if unsized:
        raise InvalidOptionError(f"layers {unsized} have rows of unknown size: name others.")
    return tuple(n for n in path_values if n in names and n not in ends)


def _choose_concepts(
    lowered: Lowered, concepts: Concepts | None, route: _Route, ends: Sequence[str], output: str
) -> Concepts | None:
    if concepts is None:
        return None
    if not isinstance(concepts, Concepts):
        raise InvalidOptionError(f"concepts {concepts!r}: give Concepts(layer, count).")
    name = "".join(_choose_layers(lowered, [concepts.layer], route, ends, output))
    row = lowered.specs[name][0] if name and keeps_batch(lowered, name) else ()
    if not 1 <= concepts.axis < len(row):
        raise InvalidOptionError(
            f"concepts of {concepts.layer!r}: name a tensor after the inputs with the batch on axis 0 and "
            f"an axis {concepts.axis}; its rows have the shape {list(row[1:])}."
        )
    if not 1 <= concepts.count <= row[concepts.axis]:
        raise InvalidOptionError(
            f"concepts of {name!r}: it has {row[concepts.axis]} channels on axis {concepts.axis}; give a "
            f"count from 1 to that number, not {concepts.count}."
        )
    return concepts


def _between(graph: ir.Graph, active: frozenset[str], ends: Sequence[str]) -> list[ir.Node]:
    return [
        node
        for node in graph
        if any(v.name in active for v in node.outputs)
        and not active.isdisjoint(names_read(node))
        and not computes(node, ends)
    ]


def is_linear(target: Target, path: Path) -> bool:
    """Tell whether operators show that the output is a linear function of the explained tensors."""
    if target.stops or any(leaf.is_looked_up for leaf in target.leaves):
        return False
    return all(_is_linear(node, rule, path) for node, rule in path.nodes)


def _is_linear(node: ir.Node, rule: Rule, path: Path) -> bool:
    names = [None if v is None else str(v.name) for v in node.inputs]
    varying = [i for i, name in enumerate(names) if name in path.active]
    if len(varying) < sum(name in path.dependent for name in names):  # other inputs depend on the row too
        return False
    if rule.kind is not Kind.BILINEAR or rule.deeplift_form is not None:
        return Trait.LINEAR_IN_FIRST in rule.traits and varying == [0]
    return len(varying) == 1 or (bool(rule.traits & _JOINT) and Trait.PRODUCT not in rule.traits)
