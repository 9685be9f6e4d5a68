"""What is explained: which output, which of its elements, which inputs; and the operators between."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np
import onnx_ir as ir

from compiler.errors import InvalidOptionError, UnsupportedModelError
from compiler.graph.traverse import names_read
from compiler.lowering import Lowered
from compiler.lowering.rows import demand_rows
from compiler.rules.rule import Rule, find_rule
from compiler.selection.activity import OF_SIZES, Flow, Stop, flow, made_by
from compiler.selection.float_casts import in_floats
from compiler.selection.leaves import Chosen, Leaf, choose_leaves, is_float
from compiler.selection.logits import choose_logits, logits_behind
from compiler.selection.unsupported import demand_rules, demand_slope

Targets = Sequence[int] | Literal["all", "predicted"] | None
_TWO_CLASSES = (2,)  # a row of them: the winner of two would ask another question from row to row
_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16})


@dataclass(frozen=True)
class Path:
    """The operators whose multipliers are needed.

    Attributes:
        leaves: the tensors at which it begins, and what each of them explains.
        targets: flat indices into the output's row, or "predicted".
        dependent: names of all values that depend on the explained inputs, in whatever way.
        active: names of the values through which attributions reach them.
        held: see `Flow`.
        stops: where attributions end on the way.
        nodes: the operators of the path, in topological order, with their rules.
        notes: what the user is told about the choice.
    """

    leaves: tuple[Leaf, ...]
    output: str
    targets: tuple[int, ...] | Literal["predicted"]
    dependent: frozenset[str]
    active: frozenset[str]
    held: frozenset[tuple[str, int]]
    stops: tuple[Stop, ...]
    nodes: tuple[tuple[ir.Node, Rule], ...]
    notes: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of what is explained: inputs, or inner tensors."""
        return tuple(dict.fromkeys(s.name for s in self.leaves))

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors at which the walk ends."""
        return tuple(s.tensor for s in self.leaves)


def choose_path(
    lowered: Lowered,
    output: str | None,
    targets: Targets,
    inputs: Sequence[str] | None,
    referenced: Collection[str] = (),
    logits: bool = False,
    scores_for: str | None = None,
) -> tuple[Lowered, Path]:
    """The path from the explained tensors to the output, and the model with integers on it in floats.

    Args:
        referenced: names for which references are given.
        logits: explain what the output's last Sigmoid or Softmax is taken of.
        scores_for: the name of a method that prefers scores to the probabilities which are taken of them.

    Raises:
        InvalidOptionError: names that do not exist.
        UnsupportedModelError: what has no rule.
    """
    chosen = choose_leaves(lowered, inputs, referenced)
    ends = tuple(s.tensor for s in chosen.leaves)
    _check_types(lowered, ends)
    name = _choose_output(lowered, output, _reach_forward(lowered.model.graph, ends))
    notes = chosen.notes
    if logits:
        name = choose_logits(lowered.source, name)
    elif scores_for is not None:
        name, more = _prefer_scores(lowered, name, ends, scores_for, output is not None, targets)
        notes += more
    way = _way_to(lowered, name, chosen)
    leaves = tuple(s for s in chosen.leaves if s.tensor in way.active)
    _check_shapes(lowered, [s.tensor for s in leaves])
    dtype = lowered.specs[leaves[0].tensor][1]
    floats = in_floats(lowered, [n for n, _ in way.nodes], way.active, way.flowing.held, dtype)
    if floats is not lowered:
        lowered, way = floats, _way_to(floats, name, chosen)
    demand_rows(lowered, name, way.needed)
    return lowered, Path(
        leaves=leaves,
        output=name,
        targets=_choose_targets(lowered, name, targets),
        dependent=_reach_forward(lowered.model.graph, ends),
        active=way.active,
        held=way.flowing.held,
        stops=tuple(dict.fromkeys(stop for first, stop in way.flowing.stops if first in way.needed)),
        nodes=way.nodes,
        notes=notes,
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
    flowing, needed = flow(lowered, ends), _reach_backward(graph, output, ends)
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


def _check_shapes(lowered: Lowered, tensors: Sequence[str]) -> None:
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


def _choose_output(lowered: Lowered, output: str | None, dependent: frozenset[str]) -> str:
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


def _choose_targets(lowered: Lowered, output: str, targets: object) -> tuple[int, ...] | Literal["predicted"]:
    row = lowered.specs[output][0][1:]
    size = int(np.prod(row))
    if targets is None and row == _TWO_CLASSES:
        return (1,)
    if targets is None:
        return (0,) if size == 1 else "predicted"
    if targets == "predicted":
        return "predicted"
    if targets == "all":
        return tuple(range(size))
    if isinstance(targets, str) or not isinstance(targets, Iterable):
        raise InvalidOptionError(f"targets {targets!r}: give a list of indices, 'all' or 'predicted'.")
    given = list(targets)
    if not given or not all(_is_index(t, size) for t in given):
        raise InvalidOptionError(f"targets {given}: output {output!r} has indices 0 to {size - 1}.")
    return tuple(int(t) for t in given)


def _is_index(target: object, size: int) -> bool:
    if isinstance(target, bool) or not isinstance(target, int | np.integer):
        return False
    return 0 <= int(target) < size


def _reach_forward(graph: ir.Graph, ends: Sequence[str]) -> frozenset[str]:
    """What depends on the `ends` of a walk; each is a value of its own, whatever computes it."""
    reached = set(ends)
    for node in graph:
        computes = node.op_type not in OF_SIZES and not made_by(node, ends)
        if computes and not reached.isdisjoint(names_read(node)):
            reached.update(str(v.name) for v in node.outputs if v.name)
    return frozenset(reached)


def _reach_backward(graph: ir.Graph, output: str, ends: Sequence[str]) -> frozenset[str]:
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
