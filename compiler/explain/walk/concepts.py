"""Concepts: the channels of one layer, and what each input contributes to the most relevant ones.

Achtibat et al., "From attribution maps to human-understandable explanations through concept relevance
propagation", 2023: what arrives at the layer is masked to one channel and walks on from there. The axis C of
the graph is that of the channels; they differ from row to row.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from compiler.explain.engine import Selection
from compiler.explain.outputs import inner_spec
from compiler.explain.walk.attributions import Explained, by_name, together
from compiler.explain.walk.backward import Carried, Relevance
from compiler.explain.walk.method import Walked
from compiler.graph.ops import Ops
from compiler.manifest import ExplainedConcepts
from compiler.request import Concepts


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
    op: Ops, method: Walked, asked: ExplainedConcepts, layer: Explained, weights: np.ndarray | None
) -> tuple[list[ir.Value], Carried]:
    """Emit the attribution of each channel [N, T, channels], and the largest by size [N, T, C].

    Returns:
        These two outputs, and what arrived at the layer, masked to each of them: it varies over C.
    """
    op.scope = "concepts"
    attributions = method.attribute(op, layer.multiplier, layer.x, layer.start, weights)
    axis, rank = asked.axis, attributions.rank
    others = [i for i in range(1, rank) if i != axis]
    each = op.ReduceSum(attributions, others, keepdims=0) if others else attributions
    _, places = op.emit("TopK", [op.Abs(each), [asked.count]], {"axis": 1}, outputs=2)
    count = each.shape[1]
    row = [1, asked.count, *(count if i == axis else 1 for i in range(1, rank))]
    chosen = op.Equal(op.reshape(places, (1, asked.count, 1)), op.constant(np.arange(count, dtype=np.int64)))
    mask = op.along(op.reshape(op.Cast(chosen, to=int(layer.x.dtype)), row), "C")
    arrived = layer.multiplier
    if isinstance(arrived, Relevance):
        masked: Carried = Relevance(op.Mul(arrived.tensor, mask))
    else:
        masked = op.Mul(arrived, mask)
    outputs = [
        op.attributions_output(each, asked.attributions),
        op.attributions_output(places, asked.channels),
    ]
    return outputs, masked


def emit_heatmaps(
    op: Ops,
    method: Walked,
    asked: ExplainedConcepts,
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
        outputs.append(op.attributions_output(heatmaps, asked.heatmaps[name], "TC"))
    return outputs
