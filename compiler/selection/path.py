"""What is explained: which output, which of its elements, which inputs; and the operators between."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np
import onnx_ir as ir

from compiler.errors import InvalidOptionError, UnsupportedModelError
from compiler.graph.traverse import names_read, reached_from
from compiler.lowering import Lowered
from compiler.lowering.rows import demand_rows
from compiler.methods.base import whole_number
from compiler.rules.rule import Rule, find_rule
from compiler.selection.activity import OF_SIZES, Flow, Stop, flow, made_by
from compiler.selection.float_casts import in_floats
from compiler.selection.leaves import Chosen, Leaf, choose_leaves, is_float, keeps_batch
from compiler.selection.logits import choose_logits, logits_behind
from compiler.selection.players import Game, Players
from compiler.selection.targets import Target, Targets, choose_targets
from compiler.selection.unsupported import demand_rules, demand_slope
from compiler.trees.ensemble import Ensemble

Layers = Sequence[str] | Literal["all"]


@dataclass(frozen=True)
class Concepts:
    """What is asked about the channels of one tensor: see Achtibat et al., "From attribution maps to
    human-understandable explanations through concept relevance propagation", 2023.

    Args:
        layer: a tensor on the way to the output, by its name in the file.
        count: of channels that get a heatmap of their own: those of the largest attributions by size.
        axis: of the layer, that of its channels; 1 of images, 2 of tokens [N, S, E].

    Raises:
        InvalidOptionError: a count or an axis that is no whole number.
    """

    layer: str
    count: int = 5
    axis: int = 1

    def __post_init__(self) -> None:
        for name, value in (("count", self.count), ("axis", self.axis)):
            whole_number(f"concepts of {self.layer!r}: {name}", value, 0)
            object.__setattr__(self, name, int(value))


MOST_NAMED = 12  # values in a message
_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16})


@dataclass(frozen=True)
class Trees:
    """A tree ensemble whose scores are explained.

    Attributes:
        reads: the name of the tensor that holds its features.
        owners: [features] the player of each; None until it is known who plays.
        margin: of its scores, where not they are explained but the probabilities that are made of them.
    """

    ensemble: Ensemble
    reads: str
    owners: np.ndarray | None = None
    margin: str | None = None


@dataclass(frozen=True)
class Path:
    """The operators whose multipliers are needed.

    Attributes:
        leaves: the tensors at which it begins, and what each of them explains.
        targets: flat indices into the output's row and contrasts of two, or "predicted".
        dependent: names of all values that depend on the explained inputs, in whatever way.
        active: names of the values through which attributions reach them.
        held: see `Flow`.
        stops: where attributions end on the way.
        layers: values on the way whose attributions are asked for too, in the order of the graph, or "all".
        concepts: the channels of one of them, one by one.
        nodes: the operators of the path, in topological order, with their rules.
        notes: what the user is told about the choice.
        trees: what is explained without a walk; there are no nodes then.
        players: who attributions are given to where features are in groups.
        game: who plays, for a method that needs no walk.
    """

    leaves: tuple[Leaf, ...]
    output: str
    targets: tuple[Target, ...] | Literal["predicted"]
    dependent: frozenset[str]
    active: frozenset[str]
    held: frozenset[tuple[str, int]]
    stops: tuple[Stop, ...]
    nodes: tuple[tuple[ir.Node, Rule], ...]
    notes: tuple[str, ...] = ()
    layers: tuple[str, ...] | Literal["all"] = ()
    concepts: Concepts | None = None
    trees: Trees | None = None
    players: Players | None = None
    game: Game | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of what is explained: inputs, or inner tensors."""
        return tuple(dict.fromkeys(s.name for s in self.leaves))

    @property
    def ungrouped(self) -> tuple[str, ...]:
        """Those of them of which no feature is in a group: each has attributions of its own."""
        return tuple(name for name in self.inputs if self.players is None or name not in self.players.of)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors at which the walk ends."""
        return tuple(s.tensor for s in self.leaves)

    def meets(self, name: str) -> bool:
        """Whether every way from the leaves to the output leads through a value, so that it carries all."""
        reached = set() if name == self.output else {self.output}
        for node, _ in reversed(self.nodes):
            if not reached.isdisjoint(str(v.name) for v in node.outputs):
                reached |= (names_read(node) & self.active) - {name}
        return reached.isdisjoint(self.tensors)


def choose_path(
    lowered: Lowered,
    output: str | None,
    targets: Targets,
    inputs: Sequence[str] | None,
    referenced: Collection[str] = (),
    logits: bool = False,
    scores_for: str | None = None,
    layers: Layers = (),
    concepts: Concepts | None = None,
) -> tuple[Lowered, Path]:
    """The path from the explained tensors to the output, and the model with integers on it in floats.

    Args:
        referenced: names for which references are given.
        logits: explain what the output's last Sigmoid or Softmax is taken of.
        scores_for: the name of a method that prefers scores to the probabilities which are taken of them.
        layers: values on the way whose attributions are asked for too.

    Raises:
        InvalidOptionError: names that do not exist, or of layers that do not lie on the way.
        UnsupportedModelError: what has no rule.
    """
    chosen = choose_leaves(lowered, inputs, referenced)
    ends = tuple(s.tensor for s in chosen.leaves)
    _check_types(lowered, ends)
    name = choose_output(lowered, output, reach_forward(lowered.model.graph, ends))
    notes = chosen.notes
    if logits:
        name = choose_logits(lowered.source, name)
    elif scores_for is not None:
        name, more = _prefer_scores(lowered, name, ends, scores_for, output is not None, targets)
        notes += more
    way = _way_to(lowered, name, chosen)
    leaves = tuple(s for s in chosen.leaves if s.tensor in way.active)
    check_shapes(lowered, [s.tensor for s in leaves])
    dtype = lowered.specs[leaves[0].tensor][1]
    floats = in_floats(lowered, [n for n, _ in way.nodes], way.active, way.flowing.held, dtype)
    if floats is not lowered:
        lowered, way = floats, _way_to(floats, name, chosen)
    demand_rows(lowered, name, way.needed)
    return lowered, Path(
        leaves=leaves,
        output=name,
        targets=choose_targets(targets, name, lowered.specs[name][0][1:]),
        dependent=reach_forward(lowered.model.graph, ends),
        active=way.active,
        held=way.flowing.held,
        stops=tuple(dict.fromkeys(stop for first, stop in way.flowing.stops if first in way.needed)),
        nodes=way.nodes,
        notes=notes,
        layers=_choose_layers(lowered, layers, way, ends, name),
        concepts=_choose_concepts(lowered, concepts, way, ends, name),
    )


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
    lowered: Lowered, output: str, ends: Sequence[str], method: str, named: bool, targets: Targets
) -> tuple[str, tuple[str, ...]]:
    """The scores behind probabilities, from which relevance starts since these saturate; and what the user
    is told. An output that was named is explained all the same.
    """
    scores = logits_behind(lowered.source, output)
    if scores is None or scores in ends or scores not in flow(lowered, ends).active:
        return output, ()
    sizes = {prod(lowered.specs[name][0]) for name in (scores, output)}
    if named or (targets is not None and len(sizes) > 1):  # whose indices would be others
        return output, (
            f"{output!r} holds probabilities, which saturate: {method} is defined for scores. "
            f"Explain {scores!r} instead (--logits).",
        )
    return scores, (
        f"explains the scores {scores!r} behind the probabilities {output!r}: {method} is defined for scores "
        "(--output chooses another tensor)",
    )


def check_shapes(lowered: Lowered, tensors: Sequence[str]) -> None:
    """Raises UnsupportedModelError for explained tensors whose features are not countable."""
    values = {str(v.name): v for v in lowered.model.graph.inputs}
    for name in tensors:
        if name not in lowered.specs:
            shape = ", ".join(str(d) for d in values[name].shape or ())
            raise UnsupportedModelError(
                f"input {name!r} has the shape [{shape}]: every axis but the first needs a fixed size, since "
                "each feature gets an attribution. Say it (--size NAME=LENGTH, sizes={NAME: LENGTH}), give "
                "references of that length, or export the model with static feature sizes."
            )
        if 0 in lowered.specs[name][0]:
            raise UnsupportedModelError(f"input {name!r} has no features: an axis of it has length 0.")


def _check_types(lowered: Lowered, tensors: Sequence[str]) -> None:
    for name in tensors:
        dtype = lowered.specs[name][1] if name in lowered.specs else ir.DataType.FLOAT
        if dtype not in _TYPES:
            raise UnsupportedModelError(
                f"{name!r} holds {dtype.name}, in which attributions cannot be computed. "
                "Convert the model to float32."
            )


def choose_output(lowered: Lowered, output: str | None, dependent: frozenset[str]) -> str:
    names = [str(v.name) for v in lowered.model.graph.outputs]
    if output is not None:
        if output not in dependent:
            raise InvalidOptionError(
                f"no tensor {output!r} depends on the explained inputs; the model's outputs are {names}, "
                "and any inner tensor can be named (look it up in Netron)."
            )
        return output
    for value in lowered.model.graph.outputs:
        if value.name in dependent and is_float(lowered, value):
            return str(value.name)
    raise UnsupportedModelError(
        f"none of the outputs {names} holds floats that depend on the explained inputs. Name an inner tensor "
        "that does, such as the scores before an ArgMax (--output)."
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


def foremost(lowered: Lowered, layers: Sequence[str]) -> list[str]:
    """Those layers that depend on no other one."""
    behind = {name: reach_forward(lowered.model.graph, [name]) - {name} for name in layers}
    return [name for name in layers if not any(name in others for others in behind.values())]


def _some(names: Sequence[str]) -> list[str]:
    return [*map(repr, names)] if len(names) <= MOST_NAMED else [*map(repr, names[:MOST_NAMED]), "…"]


def reach_forward(graph: ir.Graph, ends: Sequence[str]) -> frozenset[str]:
    """What depends on the `ends` of a walk; each is a value of its own, whatever computes it."""
    return reached_from(ends, (n for n in graph if n.op_type not in OF_SIZES and not made_by(n, ends)))


def reach_backward(graph: ir.Graph, output: str, ends: Sequence[str]) -> frozenset[str]:
    """What an output is computed from, no further than the `ends` of a walk."""
    reached = {output}
    for node in reversed(graph):
        if any(v.name in reached for v in node.outputs) and not made_by(node, ends):
            reached.update(names_read(node))
    return frozenset(reached)


def _between(graph: ir.Graph, active: frozenset[str], ends: Sequence[str]) -> list[ir.Node]:
    return [
        node
        for node in graph
        if any(v.name in active for v in node.outputs)
        and not active.isdisjoint(names_read(node))
        and not made_by(node, ends)
    ]
