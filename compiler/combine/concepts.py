"""Concepts: the channels of one layer, and what each input contributes to the most relevant ones.

Achtibat et al., "From attribution maps to human-understandable explanations through concept relevance
propagation", 2023: what arrives at the layer is masked to one channel and walks on from there. The axis C of
the graph is that of the channels; they differ from row to row.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from compiler.combine.outputs import Explained, by_name, together
from compiler.graph.ops import Ops
from compiler.methods.base import Walked
from compiler.selection.path import Concepts
from compiler.walk.backward import Carried, Relevance


def channel_attributions_name(layer: str) -> str:
    return f"{layer}_channel_attributions"


def channels_name(layer: str) -> str:
    return f"{layer}_channels"


def concept_attributions_name(tensor: str) -> str:
    return f"{tensor}_concept_attributions"


def names_of_concepts(asked: Concepts, inputs: Sequence[str]) -> set[str]:
    """Every name of an output that a graph needs for them."""
    own = {channel_attributions_name(asked.layer), channels_name(asked.layer)}
    return own | set(map(concept_attributions_name, inputs))


def emit_channels(
    op: Ops, method: Walked, asked: Concepts, layer: Explained, weights: np.ndarray | None
) -> tuple[list[ir.Value], Carried]:
    """The attribution of each channel [N, T, channels], and which are the largest by size [N, T, C].

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
        op.attributions_output(each, channel_attributions_name(asked.layer)),
        op.attributions_output(places, channels_name(asked.layer)),
    ]
    return outputs, masked


def emit_heatmaps(
    op: Ops, method: Walked, explained: Sequence[Explained], weights: np.ndarray | None
) -> list[ir.Value]:
    """The attributions of each input by way of each channel: [N, T, C, …].

    Args:
        explained: with the multipliers that arrive there from the masked layer.
    """
    op.scope = "concepts"
    outputs = []
    for name, parts in by_name(explained).items():
        each = [method.attribute(op, e.multiplier, e.x, e.start, weights) for e in parts]
        heatmaps = together(op, parts, each)
        outputs.append(op.attributions_output(heatmaps, concept_attributions_name(name), "TC"))
    return outputs
