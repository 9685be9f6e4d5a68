"""What the combined graph answers beside the model's own outputs, and under which names."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from compiler.combine.players import by_player
from compiler.errors import InvalidOptionError, InvalidReferencesError
from compiler.graph.axis_means import standard_error
from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.manifest import GROUPS
from compiler.methods.base import Averaged, Gap, Method, OfCoalitions, OfTrees, Walked
from compiler.references.reference_set import ReferenceSet
from compiler.selection.leaves import Leaf
from compiler.selection.path import Path
from compiler.selection.players import Players

BASE_VALUE, EXPLAINED_VALUE, GAP = "base_value", "explained_value", "completeness_gap"
GAP_ERROR = "completeness_gap_standard_error"
GROUP_ATTRIBUTIONS, GROUP_ERROR = f"{GROUPS}_attributions", f"{GROUPS}_standard_error"


def attributions_name(name: str) -> str:
    return f"{name}_attributions"


def layers_of(combined: onnx.ModelProto) -> list[str]:
    """Names of the layers whose attributions a graph answers: they stand behind all other outputs."""
    names, suffix = [v.name for v in combined.graph.output], attributions_name("")
    behind = names[names.index(EXPLAINED_VALUE) :]
    return [name.removesuffix(suffix) for name in behind if name.endswith(suffix)]


def standard_error_name(name: str) -> str:
    return f"{name}_standard_error"


def interactions_name(name: str) -> str:
    return f"{name}_interactions"


def has_interactions(method: Method) -> bool:
    return isinstance(method, OfTrees) and method.interactions


def names_of_attributions(path: Path) -> tuple[str, ...]:
    """The outputs that add up: one for each input without groups, and one for all players."""
    return (*map(attributions_name, path.ungrouped), *((GROUP_ATTRIBUTIONS,) if path.players else ()))


def names_of_outputs(method: Method, path: Path) -> set[str]:
    """Every name that the combined graph needs for itself.

    Raises:
        InvalidOptionError: an input's attributions would be called like those of the players.
    """
    attributions = names_of_attributions(path)
    check_group_names(path, path.ungrouped)
    names = {BASE_VALUE, EXPLAINED_VALUE, GAP, *attributions}
    if has_standard_error(method):
        names.update(map(standard_error_name, path.ungrouped), {GROUP_ERROR} if path.players else ())
    if has_interactions(method):
        names.update(map(interactions_name, path.ungrouped))
    return names | ({GAP_ERROR} if has_gap_error(method) else set())


def check_group_names(path: Path, tensors: Sequence[str]) -> None:
    """Raises InvalidOptionError where one of them would be explained by an output that players need."""
    if path.players is not None and GROUPS in tensors:
        raise InvalidOptionError(
            f"{GROUPS!r} would be explained by {GROUP_ATTRIBUTIONS!r}, which is the output of all groups: "
            "rename the tensor, or leave it or the groups out."
        )


def has_standard_error(method: Method) -> bool:
    return isinstance(method, Averaged | OfCoalitions) and method.standard_error


def has_gap_error(method: Method) -> bool:
    """Always where the gap is a sampling error: without it, nobody could tell it from a fault."""
    return isinstance(method, Averaged) and method.gap is Gap.SAMPLING


@dataclass(frozen=True)
class Seed:
    """Where the walk starts: multiplier 1 at each target, and the targets' values at x and at r.

    Attributes:
        base: None for a method without base value.
        rest: what rounding has left of the base value; None where it is not rounded.
    """

    multiplier: Tensor
    explained: Tensor
    base: Tensor | None = None
    rest: Tensor | None = None


@dataclass(frozen=True)
class Explained:
    """A tensor at the walk's end: its multiplier, and where its path to x started."""

    at: Leaf
    x: Tensor
    multiplier: Tensor
    start: Tensor | None


@dataclass(frozen=True)
class Draws:
    """What attributions are a mean over: the axis, its weights, and how many equal ones they are worth."""

    axis: str
    weights: np.ndarray | None
    effective: float

    def standard_error(self, op: Ops, x: Tensor) -> Tensor:
        if self.axis not in x.lead:  # a linear model's gradient is the same at every draw
            return op.row_constant(np.zeros(x.shape, x.dtype.numpy()))
        return standard_error(op, x, self.axis, self.weights, self.effective)


def emit_outputs(
    op: Ops,
    method: Walked,
    explained: Sequence[Explained],
    layers: Sequence[Explained],
    seed: Seed,
    references: ReferenceSet | None,
    players: Players | None = None,
) -> None:
    """Adds the attributions, base value, explained value, gap and standard errors to the graph's outputs.

    Args:
        layers: what is asked for beside the inputs: attributions that are part of no sum.

    Raises:
        InvalidReferencesError: a standard error is asked for, and there is one reference alone.
    """
    op.scope = "attributions"
    weights = references.weights if references else None
    outputs, totals = [], []

    def attributed(e: Explained) -> Tensor:
        return method.attribute(op, e.multiplier, e.x, e.start, weights)

    for name, attributions in _by_output(op, players, explained, attributed):
        outputs.append(op.attributions_output(attributions, attributions_name(name)))
        totals.append(total_of(op, outputs[-1], attributions))
    outputs += _standard_errors(op, method, explained, references, players)
    outputs += emit_values(op, method, seed, totals)
    outputs += _gap_error(op, method, explained, references)
    op.graph.outputs.extend(outputs)
    for e in layers:
        attributions = method.attribute(op, e.multiplier, e.x, e.start, weights)
        if e.x.shape[0] != 1:  # tokens of all rows one behind the other, as exporters hand them to a Gemm
            attributions = op.reshape(attributions, (1, *attributions.shape))
        op.graph.outputs.append(op.attributions_output(attributions, attributions_name(e.at.name)))


def emit_values(op: Ops, method: Method, seed: Seed, totals: Sequence[Tensor]) -> list[ir.Value]:
    """The base value, the explained value and what lies between them beside the totals of attributions."""
    outputs = [] if seed.base is None else [op.rows_output(seed.base, BASE_VALUE)]
    outputs.append(op.rows_output(seed.explained, EXPLAINED_VALUE))
    if method.gap is not None:
        gap = seed.explained if seed.base is None else op.Sub(seed.explained, seed.base)
        gap = gap if seed.rest is None else op.Sub(gap, seed.rest)
        for total in totals:
            gap = op.Sub(gap, op.Cast(total, to=int(gap.dtype)) if total.dtype != gap.dtype else total)
        outputs.append(op.rows_output(gap, GAP))
    return outputs


def in_two(op: Ops, base: Tensor | None, dtype: ir.DataType) -> list[Tensor]:
    """A value as the graph answers it, and what that rounding leaves of it; nothing of none.

    Two numbers of the graph's own type say more than one: where the references are constants, both are, and
    a server computes nothing in float64.
    """
    if base is None or base.dtype == dtype:
        return [] if base is None else [base]
    answered = op.Cast(base, to=int(dtype))
    rest = op.Sub(base, op.Cast(answered, to=int(base.dtype)))
    return [answered, op.Cast(rest, to=int(dtype))]


def _by_output(
    op: Ops, players: Players | None, explained: Sequence[Explained], value: Callable[[Explained], Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Values of each explained tensor without a group, by its name, and then of all players together."""
    grouped = {}
    for name, parts in by_name(explained).items():
        found = together(op, parts, [value(e) for e in parts])
        if players is None or name not in players.of:
            yield name, found
        else:
            grouped[name] = found
    if players is not None:
        yield GROUPS, by_player(op, players, grouped)


def by_name(explained: Sequence[Explained]) -> dict[str, list[Explained]]:
    """What is explained, with the tensors at which it is."""
    groups: dict[str, list[Explained]] = {}
    for e in explained:
        groups.setdefault(e.at.name, []).append(e)
    return groups


def together(op: Ops, parts: Sequence[Explained], each: Sequence[Tensor]) -> Tensor:
    """The attributions of what is explained from those at its tensors."""
    total, *others = [collect(op, e.at, a) for e, a in zip(parts, each, strict=True)]
    for other in others:
        total = op.Add(total, other)
    return total


def collect(op: Ops, at: Leaf, a: Tensor) -> Tensor:
    """Summed over what one id is looked up as, each sum at the id's place in the input's row."""
    if at.places is None:
        return a
    axes = list(range(at.places.ndim, a.rank))
    a = op.ReduceSum(a, axes, keepdims=0) if axes else a
    places, shape = at.places.reshape(1, -1), at.row
    a = op.reshape(a, places.shape)
    if not np.array_equal(places[0], np.arange(math.prod(shape))):
        zeros = op.row_constant(np.zeros((1, math.prod(shape)), a.dtype.numpy()))
        to = op.row_constant(places.astype(np.int64))
        a = op.ScatterElements(zeros, to, a, axis=1, reduction="add")
    return op.reshape(a, shape)


def total_of(op: Ops, value: ir.Value, x: Tensor) -> Tensor:
    """Σ over the features of an attributions output: row shape [1, T]."""
    whole = Tensor(value, (1, op.sizes["T"], *x.shape[1:]), x.dtype, frozenset("N"), rows=True)
    axes = list(range(2, whole.rank))
    return op.ReduceSum(whole, axes, keepdims=0) if axes else whole


def _standard_errors(
    op: Ops,
    method: Method,
    explained: Sequence[Explained],
    references: ReferenceSet | None,
    players: Players | None,
) -> list[ir.Value]:
    if not (isinstance(method, Averaged) and method.standard_error):
        return []
    draws = _draws(op, method, references)

    def drawn(e: Explained) -> Tensor:
        return op.expand(method.spread(op, e.multiplier, e.x, e.start), e.x.shape)

    return [
        op.attributions_output(draws.standard_error(op, values), standard_error_name(name))
        for name, values in _by_output(op, players, explained, drawn)
    ]


def _gap_error(
    op: Ops, method: Method, explained: Sequence[Explained], references: ReferenceSet | None
) -> list[ir.Value]:
    """Explained and base value are exact: the gap varies as the sum of the attributions does."""
    if not (isinstance(method, Averaged) and method.gap is Gap.SAMPLING):
        return []
    draws = _draws(op, method, references)
    total, *others = [op.total(method.spread(op, e.multiplier, e.x, e.start)) for e in explained]
    for other in others:
        total = op.Add(total, other)
    return [op.attributions_output(draws.standard_error(op, total), GAP_ERROR)]


def _draws(op: Ops, method: Averaged, references: ReferenceSet | None) -> Draws:
    if method.averages != "K":
        return Draws(method.averages, None, op.counts[method.averages])
    assert references is not None
    if references.count < 2 or references.effective <= 1:
        raise InvalidReferencesError(
            "a standard error needs at least two different references of some weight: give more of them, or "
            "leave the standard error out."
        )
    return Draws("K", references.weights, references.effective)
