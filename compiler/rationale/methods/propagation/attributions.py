"""The attributions of a walk, as the graph answers them: of the inputs, of layers, of concepts.

A concept is a channel of one layer. Achtibat et al., "From attribution maps to human-understandable
explanations through concept relevance propagation", 2023: what arrives at the layer is masked to one channel
and walks on from there. The axis C of the graph is that of the channels; they differ from row to row.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rationale.errors import InvalidOptionError, InvalidReferencesError
from rationale.graph.ops import Ops, standard_error
from rationale.graph.tensor import Tensor
from rationale.methods.engine import Selection
from rationale.methods.environment import Call
from rationale.methods.leaves import OTHERS, Leaf
from rationale.methods.outputs import (
    GAP_ERROR,
    Seed,
    attributions_name,
    emit_values,
    inner_spec,
    standard_error_name,
    total_of,
)
from rationale.methods.players import Players, by_player
from rationale.methods.propagation.backward import Carried, PropagationMethod, Relevance, readers_of
from rationale.methods.propagation.path import Path
from rationale.references.reference_set import ReferenceSet
from rationale.rules.rule import Trait
from rationale.schema.manifest import GROUPS, ExplainedConcepts
from rationale.schema.request import Concepts


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
        if self.axis not in x.batch_axes:  # a linear model's gradient is the same at every draw
            return op.row_constant(np.zeros(x.shape, x.dtype.numpy()))
        return standard_error(op, x, self.axis, self.weights, self.effective)


def emit_outputs(
    op: Ops,
    method: PropagationMethod,
    explained: Sequence[Explained],
    layers: Sequence[Explained],
    seed: Seed,
    references: ReferenceSet | None,
    players: Players | None,
) -> None:
    """Add the attributions, base value, explained value, gap and standard errors to the graph's outputs.

    Args:
        layers: what is requested in addition to the inputs: attributions that are part of no sum.

    Raises:
        InvalidReferencesError: a standard error is requested, and there is one reference alone.
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
    outputs += emit_values(op, seed, totals, gap=method.gap is not None)
    outputs += _gap_error(op, method, explained, references)
    op.graph.outputs.extend(outputs)
    for e in layers:
        attributions = method.attribute(op, e.multiplier, e.x, e.start, weights)
        if e.x.shape[0] != 1:  # tokens of all rows one behind the other, as exporters hand them to a Gemm
            attributions = op.reshape(attributions, (1, *attributions.shape))
        op.graph.outputs.append(op.attributions_output(attributions, attributions_name(e.at.name)))


def _by_output(
    op: Ops, players: Players | None, explained: Sequence[Explained], value: Callable[[Explained], Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield each explained tensor's value without a group, by its name, then that of all players together."""
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
    """Return what is explained by its name, with the tensors at which it is."""
    groups: dict[str, list[Explained]] = {}
    for e in explained:
        groups.setdefault(e.at.name, []).append(e)
    return groups


def together(op: Ops, parts: Sequence[Explained], each: Sequence[Tensor]) -> Tensor:
    """Return the attributions of what is explained, summed over its tensors."""
    total, *others = [collect(op, e.at, a) for e, a in zip(parts, each, strict=True)]
    for other in others:
        total = op.Add(total, other)
    return total


def collect(op: Ops, at: Leaf, a: Tensor) -> Tensor:
    """Sum over what one id is looked up as, each sum at the id's index in the input's row."""
    if at.indices is None:
        return a
    axes = list(range(at.indices.ndim, a.rank))
    a = op.ReduceSum(a, axes, keepdims=0) if axes else a
    indices, shape = at.indices.reshape(1, -1), at.row
    a = op.reshape(a, indices.shape)
    if not (own := indices != OTHERS).all():
        a = op.Gather(a, op.constant(np.flatnonzero(own)), axis=1)
        indices = indices[:, own[0]]
    if not np.array_equal(indices[0], np.arange(math.prod(shape))):
        zeros = op.row_constant(np.zeros((1, math.prod(shape)), a.dtype.numpy()))
        to = op.row_constant(indices.astype(np.int64))
        a = op.ScatterElements(zeros, to, a, axis=1, reduction="add")
    return op.reshape(a, shape)


def _standard_errors(
    op: Ops,
    method: PropagationMethod,
    explained: Sequence[Explained],
    references: ReferenceSet | None,
    players: Players | None,
) -> list[ir.Value]:
    if not method.standard_error:
        return []
    draws = _draws(op, method, references)

    def drawn(e: Explained) -> Tensor:
        return op.expand(method.spread(op, e.multiplier, e.x, e.start), e.x.shape)

    return [
        op.attributions_output(draws.standard_error(op, values), standard_error_name(name))
        for name, values in _by_output(op, players, explained, drawn)
    ]


def _gap_error(
    op: Ops, method: PropagationMethod, explained: Sequence[Explained], references: ReferenceSet | None
) -> list[ir.Value]:
    """Return the gap's standard error, if the gap is one of sampling.

    Explained and base value are exact: the gap varies as the sum of the attributions does.
    """
    if not method.has_gap_error:
        return []
    draws = _draws(op, method, references)
    each = {e.at.tensor: e for e in explained}.values()
    total, *others = [op.total(method.spread(op, e.multiplier, e.x, e.start)) for e in each]
    for other in others:
        total = op.Add(total, other)
    return [op.attributions_output(draws.standard_error(op, total), GAP_ERROR)]


def _draws(op: Ops, method: PropagationMethod, references: ReferenceSet | None) -> Draws:
    if method.averages != "K":
        return Draws(method.averages, None, op.counts[method.averages])
    assert references is not None
    if references.count < 2 or references.effective <= 1:
        raise InvalidReferencesError(
            "a standard error needs at least two different references of some weight: give more of them, or "
            "leave the standard error out."
        )
    return Draws("K", references.weights, references.effective)


def concepts_of(selection: Selection, concepts: Concepts | None) -> ExplainedConcepts | None:
    """Return what the graph will answer of the channels that are asked about."""
    if concepts is None:
        return None
    lowered, layer = selection.lowered, concepts.layer
    return ExplainedConcepts(
        tensor=inner_spec(lowered.specs, layer, tuple(lowered.specs[layer][0][1:])),
        axis=concepts.axis,
        count=concepts.count,
        attributions=f"{layer}_channel_attributions",
        channels=f"{layer}_channels",
        heatmaps={name: f"{name}_concept_attributions" for name in selection.target.inputs},
    )


def emit_channels(
    op: Ops,
    method: PropagationMethod,
    requested: ExplainedConcepts,
    layer: Explained,
    weights: np.ndarray | None,
) -> tuple[list[ir.Value], Carried]:
    """Emit the attribution of each channel [N, T, channels], and the largest by size [N, T, C].

    Returns:
        These two outputs, and what arrived at the layer, masked to each of them: it varies over C.
    """
    op.scope = "concepts"
    attributions = method.attribute(op, layer.multiplier, layer.x, layer.start, weights)
    axis, rank = requested.axis, attributions.rank
    others = [i for i in range(1, rank) if i != axis]
    each = op.ReduceSum(attributions, others, keepdims=0) if others else attributions
    _, channels = op.emit("TopK", [op.Abs(each), [requested.count]], {"axis": 1}, outputs=2)
    count = each.shape[1]
    row = [1, requested.count, *(count if i == axis else 1 for i in range(1, rank))]
    largest = op.reshape(channels, (1, requested.count, 1))
    chosen = op.Equal(largest, op.constant(np.arange(count, dtype=np.int64)))
    mask = op.along(op.reshape(op.Cast(chosen, to=int(layer.x.dtype)), row), "C")
    arrived = layer.multiplier
    if isinstance(arrived, Relevance):
        masked: Carried = Relevance(op.Mul(arrived.tensor, mask))
    else:
        masked = op.Mul(arrived, mask)
    outputs = [
        op.attributions_output(each, requested.attributions),
        op.attributions_output(channels, requested.channels),
    ]
    return outputs, masked


def emit_heatmaps(
    op: Ops,
    method: PropagationMethod,
    requested: ExplainedConcepts,
    explained: Sequence[Explained],
    weights: np.ndarray | None,
) -> list[ir.Value]:
    """Emit the attributions of each input by way of each channel: [N, T, C, …].

    Args:
        explained: with the multipliers that arrive there from the masked layer.
    """
    op.scope = "concepts"
    outputs = []
    for name, parts in by_name(explained).items():
        each = [method.attribute(op, e.multiplier, e.x, e.start, weights) for e in parts]
        heatmaps = together(op, parts, each)
        outputs.append(op.attributions_output(heatmaps, requested.heatmaps[name], "TC"))
    return outputs


def requested_layers(path: Path, output: str, calls: Sequence[Call]) -> tuple[str, ...]:
    """Return the names of the values whose attributions are requested in addition to the inputs'.

    "all" are the outputs of operators with weights and of products of two values (attention), and the
    explained output.
    """
    if path.layers != "all":
        return path.layers
    names = [c.outputs[0] for c in calls if _is_layer(c) and c.x.y.rank]
    return tuple(dict.fromkeys((*names, output)))


def _is_layer(call: Call) -> bool:
    traits = call.rule.traits
    return call.rule.layer_form is not None or (Trait.PRODUCT in traits and Trait.ELEMENTWISE not in traits)


def layers_walked(
    kept: Sequence[str], calls: Sequence[Call], steps: Sequence[Call], *, named: bool
) -> tuple[str, ...]:
    """Return the layers as the method's walk has them.

    A value inside of what the method joins has no attribution.

    Args:
        calls, steps: the operators before and after the method joined some of them.
        named: by the user; else the value behind what is joined stands for one inside.

    Raises:
        InvalidOptionError: a layer was named that the method joins with another.
    """
    walked = {name for step in steps for name in step.outputs}
    readers = readers_of(calls)
    found = []
    for name in kept:
        end = name
        while end not in walked and len(readers[end]) == 1:
            end = readers[end][0].outputs[0]
        if name not in walked and named:
            instead = f": name {end!r} instead" if end in walked else ""
            raise InvalidOptionError(
                f"layer {name!r} has no attribution of its own, since the method joins its operator with "
                f"those behind it{instead}."
            )
        if end in walked:
            found.append(end)
    return tuple(dict.fromkeys(found))
