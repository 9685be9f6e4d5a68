"""Linear operators walked in another order, or merged into a layer: the same multipliers in less time.

Nothing here depends on the method: products of matrices and diagonals, in the order that costs least.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from compiler.explain.call import At, Call, evaluate
from compiler.explain.walk.backward import Readers, readers_of
from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.rules.rule import Evaluation, Kind, Rule, Trait


def commute(op: Ops, calls: Sequence[Call], kept: Collection[str] = ()) -> list[Call]:
    """Move factors of channels into the weights of the layers behind, and means before layers.

    Args:
        kept: values whose multipliers stay what they are.
    """
    return _means_first(op, _factors_absorbed(op, calls, kept), kept)


def _handed_on(_op: Ops, x: Tensor, *_: Tensor | None) -> Evaluation:
    return x, lambda m: m


_ABSORBED = Rule("absorbed", "", Kind.BILINEAR, _handed_on)


def _factors_absorbed(op: Ops, calls: Sequence[Call], kept: Collection[str]) -> list[Call]:
    """Move a factor of each channel (a BatchNormalization), through a ReLU, into its readers' weights.

    On the way back the factor would be one more pass over the references. It commutes with multipliers,
    which are diagonal, so it may as well scale the columns that the layer's adjoint ends in.
    """
    readers = readers_of(calls, kept)
    changed: dict[str, Call] = {}
    for call in calls:
        factor = _channel_factor(op, call)
        if factor is None:
            continue
        layers = [changed.get(layer.outputs[0], layer) for layer in _layers_behind(op, call, readers)]
        scaled = [_scaled(op, layer, factor) for layer in layers]
        if not scaled or any(layer is None for layer in scaled):
            continue
        keep = replace(call.x, pullbacks=tuple(p and (lambda m: m) for p in call.x.pullbacks))
        changed[call.outputs[0]] = replace(call, rule=_ABSORBED, x=keep)
        changed.update({layer.outputs[0]: layer for layer in scaled if layer is not None})
    return [changed.get(call.outputs[0], call) for call in calls]


def _channel_factor(op: Ops, call: Call) -> Tensor | None:
    """Return [1, C, 1, …] if `call` multiplies each channel of its one varying input by a constant."""
    x = call.x.inputs[0]
    if not _one_to_one(call) or call.rule.kind is not Kind.BILINEAR or x is None or x.rank < 2:
        return None
    if any(t is not None and (t.rows or t.rank > x.rank) for t in call.x.inputs[1:]):
        return None
    shape = (1, x.shape[1], *(1 for _ in x.shape[2:]))
    factor = _factor(op, call, shape)
    return factor if factor is not None and factor.shape == shape else None


def _factor(op: Ops, call: Call, shape: Sequence[int]) -> Tensor | None:
    """Return what a multiplier of ones becomes; None where it stays."""
    ones, pullback = op.row_constant(np.ones(shape, call.x.y.dtype.numpy())), call.x.pullbacks[0]
    assert pullback is not None
    factor = pullback(ones)
    return None if factor is ones else factor


def _one_to_one(call: Call) -> bool:
    """Tell whether a call works element by element, of the first input alone."""
    x, first, *others = call.x.inputs[0], *call.varying
    whole = x is not None and x.shape == call.x.y.shape
    return first and not any(others) and whole and Trait.ELEMENTWISE in call.rule.traits


def _layers_behind(op: Ops, call: Call, readers: Readers) -> list[Call]:
    """Return the layers that read it, through activations and offsets; none where anything else does."""
    while True:
        reading = readers[call.outputs[0]]
        if reading and all(reader.rule.layer_form is not None for reader in reading):
            return reading
        if len(reading) != 1 or not _one_to_one(reading[0]):
            return []
        call = reading[0]
        if call.rule.kind is Kind.BILINEAR and _factor(op, call, (1,) * call.x.y.rank) is not None:
            return []  # a factor of its own, which has its turn


def _scaled(op: Ops, layer: Call, factor: Tensor) -> Call | None:
    """Return the layer with its columns multiplied; None where its weight has no such columns."""
    x, weight, *others = layer.x.inputs
    if layer.varying[0] is False or any(layer.varying[1:]) or weight is None or weight.rows:
        return None
    assert layer.rule.layer_form is not None
    parts = layer.rule.layer_form(op, weight, others[0] if others else None, **layer.attributes)
    if x is None or parts is None or parts.inputs is None or parts.axis % x.rank != 1:
        return None
    columns = op.Reshape(replace(factor, rows=False), list(parts.inputs))
    attributes = {**layer.attributes, **parts.attributes}
    return _with_weight(op, replace(layer, attributes=attributes), x, op.Mul(parts.weight, columns))


def _with_weight(op: Ops, layer: Call, x: Tensor, weight: Tensor) -> Call:
    """Return the layer with its pullback at another weight; its value stays."""
    at = evaluate(op, layer.rule, [x, weight], layer.attributes, layer.name)
    rest = layer.x.inputs[2:]
    inputs = (x, weight, *(None for _ in rest))
    pullbacks = (at.pullbacks[0], *(None for _ in layer.x.inputs[1:]))
    return replace(layer, x=replace(layer.x, inputs=inputs, pullbacks=pullbacks))


def _means_first(op: Ops, calls: Sequence[Call], kept: Collection[str]) -> list[Call]:
    """Walk a mean over places behind a layer that treats each place alone as if it stood before it.

    On the way back the layer then meets fewer places: a quarter of them for a pool of 2×2.
    """
    readers = readers_of(calls, kept)
    order = list(calls)
    for layer in calls:
        reading = readers[layer.outputs[0]]
        if (
            len(reading) != 1
            or Trait.SPATIAL_MEAN not in reading[0].rule.traits
            or not _at_each_place(op, layer)
        ):
            continue
        before, behind = _exchanged(op, layer, reading[0])
        order = [c for c in order if c is not layer]
        order = [new for c in order for new in ((before, behind) if c is reading[0] else (c,))]
    return order


def _at_each_place(op: Ops, layer: Call) -> bool:
    weight = layer.x.inputs[1] if len(layer.x.inputs) > 1 else None
    form = layer.rule.layer_form
    if form is None or weight is None or not layer.varying[0] or any(layer.varying[1:]):
        return False
    weights = form(op, weight, None, **layer.attributes)
    return weights is not None and weights.placewise


def _exchanged(op: Ops, layer: Call, mean: Call) -> tuple[Call, Call]:
    """Exchange mean(layer(x)) for layer(mean(x)), for pullbacks alone: their values stay as they are."""
    x, weight = layer.x.inputs[:2]
    assert x is not None
    pooled = evaluate(op, mean.rule, [x], mean.attributes, mean.name)
    name = f"{layer.outputs[0]}/pooled"
    applied = evaluate(op, layer.rule, [pooled.y, weight], layer.attributes, layer.name)
    first = replace(mean, inputs=(layer.inputs[0],), outputs=(name,), x=pooled, r=None)
    second = replace(
        layer,
        inputs=(name, *layer.inputs[1:2]),
        outputs=mean.outputs,
        varying=(True, False),
        x=At((pooled.y, weight), mean.x.outputs, applied.pullbacks),
        r=None,
    )
    return first, second
