"""The attributions of a walk as outputs of the graph: for inputs, layers and concepts.

A concept is a channel of one layer. Achtibat et al., "From attribution maps to human-understandable
explanations through concept relevance propagation", 2023: the multiplier at the layer is masked to one
channel, and the walk goes on from there. The graph's axis C holds the channels; they differ between rows.
"""

from collections.abc import Sequence
from functools import partial, reduce

import numpy as np
import onnx_ir as ir

from rationale.errors import InvalidOptionError, InvalidReferencesError
from rationale.graph.ops import Ops, standard_error
from rationale.graph.tensor import Tensor
from rationale.methods.engine import Canvas, Selection
from rationale.methods.environment import Calls, RuleCall
from rationale.methods.outputs import GAP_ERROR, STANDARD_ERROR, attributions_name, inner_spec
from rationale.methods.propagation.backward import (
    Carried,
    ExplainedTensor,
    FinishedWalk,
    PropagationMethod,
    Relevance,
    by_explained_name,
    readers_of,
    sum_over_tensors,
)
from rationale.methods.propagation.path import Path
from rationale.rules.rule import Trait
from rationale.schema.manifest import ExplainedConcepts
from rationale.schema.outputs import WHOLE
from rationale.schema.request import Concepts


def emit_walk(
    canvas: Canvas[PropagationMethod, Path], walk: FinishedWalk, layers: Sequence[ExplainedTensor]
) -> None:
    """Add the outputs of a walk to the graph's.

    Args:
        layers: tensors to explain besides the inputs; their attributions are part of no sum.

    Raises:
        InvalidReferencesError: if a standard error is requested, but there is only one reference.
    """
    op = walk.op
    op.scope = "attributions"
    errors = {STANDARD_ERROR: partial(_standard_errors, walk), GAP_ERROR: partial(_gap_error, walk)}
    canvas.emit_outputs(walk, walk.by_output(walk.attribute), errors)
    for e in layers:
        attributions = walk.attribute(e)
        if e.x.shape[0] != 1:  # tokens of all rows one after the other, as exporters feed a Gemm
            attributions = op.reshape(attributions, (1, *attributions.shape))
        op.graph.outputs.append(op.attributions_output(attributions, attributions_name(e.leaf.name)))


def _standard_errors(walk: FinishedWalk) -> dict[str, Tensor]:
    def attributions_by_draw(e: ExplainedTensor) -> Tensor:
        return walk.op.expand(walk.method.spread(walk.op, e.multiplier, e.x, e.start), e.x.shape)

    return {name: _standard_error(walk, values) for name, values in walk.by_output(attributions_by_draw)}


def _gap_error(walk: FinishedWalk) -> dict[str, Tensor]:
    """Return the standard error of a gap that is a sampling error.

    Explained and base value are exact, so the gap varies as the sum of the attributions does.
    """
    op, method = walk.op, walk.method
    tensors = {e.leaf.tensor: e for e in walk.explained}.values()
    totals = [op.total(method.spread(op, e.multiplier, e.x, e.start)) for e in tensors]
    return {WHOLE: _standard_error(walk, reduce(op.Add, totals))}


def _standard_error(walk: FinishedWalk, values: Tensor) -> Tensor:
    """Return the standard error of the mean over the draws that the method's attributions average."""
    op, axis, references = walk.op, walk.method.averages, walk.references
    weights, effective = None, float(op.counts[axis])
    if axis == "K":
        assert references is not None
        if references.count < 2 or references.effective <= 1:
            raise InvalidReferencesError(
                "a standard error needs at least two different references with a positive weight: give "
                "more references, or leave the standard error out."
            )
        weights, effective = references.weights, references.effective
    if axis not in values.batch_axes:  # a linear model has the same gradient at every draw
        return op.row_constant(np.zeros(values.shape, values.dtype.numpy()))
    return standard_error(op, values, axis, weights, effective)


def concepts_of(
    selection: Selection[PropagationMethod, Path], concepts: Concepts | None
) -> ExplainedConcepts | None:
    """Return the outputs for the requested channels, or None."""
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
    layer: ExplainedTensor,
    weights: np.ndarray | None,
) -> tuple[list[ir.Value], Carried]:
    """Emit the attribution of each channel [N, T, channels], and the C largest by size [N, T, C].

    Returns:
        These two outputs, and the layer's multiplier masked to each of the C channels: it varies over C.
    """
    op.scope = "concepts"
    attributions = method.attribute(op, layer.multiplier, layer.x, layer.start, weights)
    axis, rank = requested.axis, attributions.rank
    other_axes = [i for i in range(1, rank) if i != axis]
    channel_attributions = op.ReduceSum(attributions, other_axes, keepdims=0) if other_axes else attributions
    _, channels = op.emit("TopK", [op.Abs(channel_attributions), [requested.count]], {"axis": 1}, outputs=2)
    count = channel_attributions.shape[1]
    row = [1, requested.count, *(count if i == axis else 1 for i in range(1, rank))]
    largest = op.reshape(channels, (1, requested.count, 1))
    chosen = op.Equal(largest, op.constant(np.arange(count, dtype=np.int64)))
    mask = op.along(op.reshape(op.Cast(chosen, to=int(layer.x.dtype)), row), "C")
    multiplier = layer.multiplier
    if isinstance(multiplier, Relevance):
        masked: Carried = Relevance(op.Mul(multiplier.tensor, mask))
    else:
        masked = op.Mul(multiplier, mask)
    outputs = [
        op.attributions_output(channel_attributions, requested.attributions),
        op.attributions_output(channels, requested.channels),
    ]
    return outputs, masked


def emit_heatmaps(
    op: Ops,
    method: PropagationMethod,
    requested: ExplainedConcepts,
    explained: Sequence[ExplainedTensor],
    weights: np.ndarray | None,
) -> list[ir.Value]:
    """Emit the attributions of each input through each channel: [N, T, C, …].

    Args:
        explained: the inputs, with the multipliers that come from the masked layer.
    """
    op.scope = "concepts"
    outputs = []
    for name, parts in by_explained_name(explained).items():
        attributions = [method.attribute(op, e.multiplier, e.x, e.start, weights) for e in parts]
        heatmaps = sum_over_tensors(op, parts, attributions)
        outputs.append(op.attributions_output(heatmaps, requested.heatmaps[name], "TC"))
    return outputs


def requested_layers(path: Path, output: str, calls: Calls) -> tuple[str, ...]:
    """Return the names of the values to explain besides the inputs.

    "all" means the outputs of operators with weights and of products of two values (attention), and the
    explained output.
    """
    if path.layers != "all":
        return path.layers
    names = [c.outputs[0] for c in calls if _is_layer(c) and c.x.y.rank]
    return tuple(dict.fromkeys((*names, output)))


def _is_layer(call: RuleCall) -> bool:
    traits = call.rule.traits
    return call.rule.layer_form is not None or (Trait.PRODUCT in traits and Trait.ELEMENTWISE not in traits)


def layers_walked(layers: Sequence[str], calls: Calls, steps: Calls, *, are_named: bool) -> tuple[str, ...]:
    """Return the layers' names on the method's walk.

    A value between operators that the method joins has no attribution.

    Args:
        calls, steps: the operators before and after the method joins some of them.
        are_named: true if the user named the layers; if false, the joined operators' output replaces a value
            between them.

    Raises:
        InvalidOptionError: if the user named a layer that the method joins with another.
    """
    walked = {name for step in steps for name in step.outputs}
    readers = readers_of(calls)
    found_layers = []
    for name in layers:
        end = name
        while end not in walked and len(readers[end]) == 1:
            end = readers[end][0].outputs[0]
        if name not in walked and are_named:
            instead = f": name {end!r} instead" if end in walked else ""
            raise InvalidOptionError(
                f"layer {name!r} has no separate attribution, because the method joins its operator with "
                f"the operators after it{instead}."
            )
        if end in walked:
            found_layers.append(end)
    return tuple(dict.fromkeys(found_layers))
