"""What is explained: which output, which of its elements, which inputs; and the operators between."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import onnx_ir as ir

from compiler.errors import InvalidOptionError, UnsupportedModelError
from compiler.explain.leaves import Chosen, choose_leaves, keeps_batch
from compiler.explain.logits import choose_logits, logits_behind
from compiler.explain.reach import made_by, reach_backward, reach_forward
from compiler.explain.target import MOST_NAMED, Target, check_shapes, choose_output, choose_targets
from compiler.explain.walk.activity import Flow, flow
from compiler.explain.walk.float_casts import in_floats
from compiler.explain.walk.unsupported import demand_rules, demand_slope
from compiler.graph.traverse import names_read
from compiler.lowering import Lowered
from compiler.lowering.rows import demand_rows
from compiler.request import CompileRequest, Concepts
from compiler.rules.rule import Kind, Rule, Trait, find_rule

_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16})
_JOINT = frozenset({Trait.ELEMENTWISE, Trait.MOVING})  # of a bilinear one: sums and copies of all its inputs


@dataclass(frozen=True)
class Path:
    """The operators whose multipliers are needed.

    Attributes:
        dependent: names of all values that depend on the explained inputs, in whatever way.
        active: names of the values through which attributions reach them.
        held: see `Flow`.
        nodes: the operators of the path, in topological order, with their rules.
        layers: values on the way whose attributions are asked for too, in the order of the graph, or "all".
        concepts: the channels of one of them, one by one.
    """

    dependent: frozenset[str]
    active: frozenset[str]
    held: frozenset[tuple[str, int]]
    nodes: tuple[tuple[ir.Node, Rule], ...]
    layers: tuple[str, ...] | Literal["all"] = ()
    concepts: Concepts | None = None

    def carries_all(self, target: Target, name: str) -> bool:
        """Tell whether every way from the leaves to the output leads through a value."""
        reached = set() if name == target.output else {target.output}
        for node, _ in reversed(self.nodes):
            if not reached.isdisjoint(str(v.name) for v in node.outputs):
                reached |= (names_read(node) & self.active) - {name}
        return reached.isdisjoint(target.tensors)


def choose_path(
    lowered: Lowered, request: CompileRequest, referenced: Collection[str] = (), scores_for: str | None = None
) -> tuple[Lowered, Target, Path]:
    """Find the path from the explained tensors to the output; the model returned has floats for integers.

    Args:
        referenced: names for which references are given.
        scores_for: the name of a method that prefers scores to the probabilities which are taken of them.

    Raises:
        InvalidOptionError: names that do not exist, or of layers that do not lie on the way.
        UnsupportedModelError: what has no rule.
    """
    chosen = choose_leaves(lowered, request.inputs, referenced)
    ends = tuple(s.tensor for s in chosen.leaves)
    _check_types(lowered, ends)
    name = choose_output(lowered, request.output, ends)
    notes = chosen.notes
    if request.logits:
        name = choose_logits(lowered.source, name)
    elif scores_for is not None:
        name, more = _prefer_scores(lowered, name, ends, scores_for, request)
        notes += more
    way = _way_to(lowered, name, chosen)
    leaves = tuple(s for s in chosen.leaves if s.tensor in way.active)
    check_shapes(lowered, [s.tensor for s in leaves])
    dtype = lowered.specs[leaves[0].tensor][1]
    floats = in_floats(lowered, [n for n, _ in way.nodes], way.active, way.flowing.held, dtype)
    if floats is not lowered:
        lowered, way = floats, _way_to(floats, name, chosen)
    demand_rows(lowered, name, way.needed)
    target = Target(
        leaves=leaves,
        output=name,
        elements=choose_targets(request.targets, name, lowered.specs[name][0][1:]),
        stops=tuple(dict.fromkeys(stop for first, stop in way.flowing.stops if first in way.needed)),
        notes=notes,
    )
    path = Path(
        dependent=reach_forward(lowered.model.graph, ends),
        active=way.active,
        held=way.flowing.held,
        nodes=way.nodes,
        layers=_choose_layers(lowered, request.layers, way, ends, name),
        concepts=_choose_concepts(lowered, request.concepts, way, ends, name),
    )
    return lowered, target, path


@dataclass(frozen=True)
class _Way:
    """What lies between the ends of a walk and the output.

    Attributes:
        needed: names of all that the output is computed from.
        active: names of the values among them that carry attributions.
    """

    flowing: Flow
    needed: frozenset[str]
    active: frozenset[str]
    nodes: tuple[tuple[ir.Node, Rule], ...]


def _way_to(lowered: Lowered, output: str, chosen: Chosen) -> _Way:
    graph, ends = lowered.model.graph, tuple(s.tensor for s in chosen.leaves)
    flowing, needed = flow(lowered, ends), reach_backward(graph, output, ends)
    demand_slope(graph, output, chosen.names, flowing.active, needed)
    active = flowing.active & needed
    between = _between(graph, active, ends)
    # What has no rule often has no known shape either, so that this is looked at first.
    demand_rules(lowered, between, active, ends, output)
    nodes = tuple((n, rule) for n in between if (rule := find_rule(n.op_type, n.domain)) is not None)
    return _Way(flowing, needed, active, nodes)


def _prefer_scores(
    lowered: Lowered, output: str, ends: Sequence[str], method: str, request: CompileRequest
) -> tuple[str, tuple[str, ...]]:
    """Return the scores behind probabilities, and notes for the user.

    Relevance starts from the scores since probabilities saturate. An output that was named is explained all
    the same.
    """
    scores = logits_behind(lowered.source, output)
    if scores is None or scores in ends or scores not in flow(lowered, ends).active:
        return output, ()
    sizes = {prod(lowered.specs[name][0]) for name in (scores, output)}
    is_chosen = request.output is not None or (request.targets is not None and len(sizes) > 1)
    if is_chosen:  # by indices that would be others
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
                f"{name!r} holds {dtype.name}, in which attributions cannot be computed. "
                "Convert the model to float32."
            )


def _choose_layers(
    lowered: Lowered, layers: object, way: _Way, ends: Sequence[str], output: str
) -> tuple[str, ...] | Literal["all"]:
    if layers == "all":
        return "all"
    if isinstance(layers, str) or not isinstance(layers, Iterable):
        raise InvalidOptionError(f"layers {layers!r}: give a list of names, or 'all'.")
    given = list(layers)
    made = [str(v.name) for n, _ in way.nodes for v in n.outputs if v.name in way.active]
    unknown = [n for n in given if n not in made and n not in ends]
    if unknown:
        raise InvalidOptionError(
            f"layers {unknown} do not lie on the way from {list(ends)} to {output!r}. Name outputs of "
            f"operators there: {', '.join(_some(made))} (look them up in Netron; 'all' takes every layer)."
        )
    odd = [n for n in given if not lowered.specs.get(n, ((),))[0]]
    if odd:
        raise InvalidOptionError(f"layers {odd} have rows of no known size: name others.")
    return tuple(n for n in made if n in given and n not in ends)


def _choose_concepts(
    lowered: Lowered, concepts: Concepts | None, way: _Way, ends: Sequence[str], output: str
) -> Concepts | None:
    if concepts is None:
        return None
    if not isinstance(concepts, Concepts):
        raise InvalidOptionError(f"concepts {concepts!r}: give Concepts(layer, count).")
    name = "".join(_choose_layers(lowered, [concepts.layer], way, ends, output))
    row = lowered.specs[name][0] if name and keeps_batch(lowered, name) else ()
    if not 1 <= concepts.axis < len(row):
        raise InvalidOptionError(
            f"concepts of {concepts.layer!r}: name a tensor behind the inputs that has the batch on axis 0, "
            f"and the axis {concepts.axis}; a row of it is {list(row[1:])}."
        )
    if not 1 <= concepts.count <= row[concepts.axis]:
        raise InvalidOptionError(
            f"concepts of {name!r}: it has {row[concepts.axis]} channels on axis {concepts.axis}; ask for 1 "
            f"to that many, not {concepts.count}."
        )
    return concepts


def _some(names: Sequence[str]) -> list[str]:
    return [*map(repr, names)] if len(names) <= MOST_NAMED else [*map(repr, names[:MOST_NAMED]), "…"]


def _between(graph: ir.Graph, active: frozenset[str], ends: Sequence[str]) -> list[ir.Node]:
    return [
        node
        for node in graph
        if any(v.name in active for v in node.outputs)
        and not active.isdisjoint(names_read(node))
        and not made_by(node, ends)
    ]


def is_linear(target: Target, path: Path) -> bool:
    """Tell whether the output is a linear function of what is explained, as far as operators say so."""
    if target.stops or any(leaf.places is not None for leaf in target.leaves):
        return False
    return all(_is_linear(node, rule, path) for node, rule in path.nodes)


def _is_linear(node: ir.Node, rule: Rule, path: Path) -> bool:
    names = [None if v is None else str(v.name) for v in node.inputs]
    varying = [i for i, name in enumerate(names) if name in path.active]
    if len(varying) < sum(name in path.dependent for name in names):  # what the row decides without a rule
        return False
    if rule.kind is not Kind.BILINEAR or rule.deeplift_form is not None:
        return Trait.LINEAR_IN_FIRST in rule.traits and varying == [0]
    return len(varying) == 1 or (bool(rule.traits & _JOINT) and Trait.PRODUCT not in rule.traits)
