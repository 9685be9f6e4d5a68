"""Equal multipliers in fewer steps: fusion, and factors that commute.

If only one value enters a group of adjacent elementwise operators and only one leaves it, summation to delta
allows a single multiplier, Δy/Δx, and a walk through the group gives the same. Linear operators are walked in
another order, or merged into a layer: they are products of matrices and diagonals, taken in the cheapest
order. Nothing here depends on the method.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.methods.environment import Calls, RuleCall, RulePoint, evaluate
from rationale.methods.propagation.backward import Readers, readers_of
from rationale.rules.rule import Evaluation, Kind, Rule, Trait

LARGEST_FACTOR = 4.0  # in a group of smooth operators: their secant assumes a scale of about 1


def fuse(calls: Calls, keep: Collection[str]) -> list[RuleCall]:
    """Return the calls, in their order; every group with one common multiplier becomes one call.

    Args:
        keep: names of values that groups must not hide.
    """
    fused: list[RuleCall] = []
    grouped_names: set[str] = set()
    readers = readers_of(calls, keep)
    producers = {name: call for call in calls for name in call.outputs}
    order = {call.outputs[0]: i for i, call in enumerate(calls)}
    for call in reversed(calls):
        if call.outputs[0] in grouped_names:
            continue
        group = _smooth_group(call, readers, producers) or _monotone_selection(call, readers, producers)
        grouped_names.update(name for member in group for name in member.outputs)
        group.sort(key=lambda member: order[member.outputs[0]])
        fused.append(_one_call(group) if len(group) > 1 else call)
    return fused[::-1]


def _monotone_selection(
    call: RuleCall, readers: Readers, producers: Mapping[str, RuleCall]
) -> list[RuleCall]:
    """Return a selection with the function before it, if that function never falls.

    x and y then rise together, so the function cancels.
    """
    source = producers.get(call.sources[0])
    if call.rule.kind is not Kind.SELECTION or source is None or Trait.RISING not in source.rule.traits:
        return []
    alone = len(readers[source.outputs[0]]) == 1 and sum(source.varying) == 1
    return [source, call] if alone else []


def _smooth_group(call: RuleCall, readers: Readers, producers: Mapping[str, RuleCall]) -> list[RuleCall]:
    """Return the smallest group that ends in `call` and reads one value, such as x·σ(x), or an empty list."""
    if not _is_smooth(call):
        return []
    group = [call]
    while True:
        inside = {name for member in group for name in member.outputs}
        entering = {name for member in group for name in member.sources} - inside
        if len(entering) == 1:
            return group if _has_curvature(group) else []
        joining = _next_member(group, entering, readers, producers)
        if joining is None:
            return []
        group.append(joining)


def _next_member(
    group: list[RuleCall], entering: set[str], readers: Readers, producers: Mapping[str, RuleCall]
) -> RuleCall | None:
    """Return a producer that is read only inside the group and that no other producer needs."""
    shape = group[0].x.y.shape
    members = {id(member) for member in group}
    candidates = [producers[name] for name in entering if name in producers]
    for candidate in candidates:
        name = candidate.outputs[0]
        private = all(id(reader) in members for reader in readers[name])
        if private and _is_smooth(candidate) and candidate.x.y.shape == shape:
            return candidate
    return None


def _is_smooth(call: RuleCall) -> bool:
    """Tell whether a call is elementwise, without kinks, and on a scale of about 1."""
    traits = call.rule.traits
    if call.rule.kind is Kind.POINTWISE:
        return Trait.SMOOTH in traits
    constants = [t for t, v in zip(call.x.inputs, call.varying, strict=True) if not v and t is not None]
    small = all(
        t.constant is not None and np.abs(t.constant).max(initial=0) <= LARGEST_FACTOR for t in constants
    )
    return call.rule.kind is Kind.BILINEAR and Trait.ELEMENTWISE in traits and small


def _has_curvature(group: Calls) -> bool:
    """Tell whether fusing a group saves work: groups of only sums and factors are cheap anyway."""
    return len(group) > 1 and any(member.rule.kind is Kind.POINTWISE for member in group)


def _one_call(group: Calls) -> RuleCall:
    """Return the members, in topological order, as one call."""
    first, last = group[0], group[-1]
    if last.rule.kind is Kind.SELECTION:
        return replace(
            last,
            inputs=(first.sources[0], *last.inputs[1:]),
            x=_entering_at(last.x, first.x, first.varying),
            r=_entering_at(last.reference, first.reference, first.varying),
        )
    (name,) = {n for m in group for n in m.sources} - {n for m in group for n in m.outputs}
    reader, i = next((m, m.inputs.index(name)) for m in group if name in m.inputs)
    at_x, at_r = reader.x.inputs[i], reader.reference.inputs[i]
    rule = Rule("group", "", Kind.POINTWISE, _composition(group, name))
    return RuleCall(
        name=last.name,
        rule=rule,
        attributes={},
        inputs=(name,),
        outputs=last.outputs,
        varying=(True,),
        x=RulePoint((at_x,), (last.x.y,), (None,)),
        r=RulePoint((at_r,), (last.reference.y,), (None,)),
    )


def _entering_at(selection: RulePoint, source: RulePoint, varying: Sequence[bool]) -> RulePoint:
    x = next(t for t, v in zip(source.inputs, varying, strict=True) if v)
    return replace(selection, inputs=(x, *selection.inputs[1:]))


def _composition(group: Calls, name: str) -> Callable[..., Evaluation]:
    """Return the group as one rule: values forwards, pullbacks backwards."""

    def evaluate(op: Ops, x: Tensor) -> Evaluation:
        values: dict[str | None, Tensor] = {name: x}
        points: list[RulePoint] = []
        for call in group:
            inputs = [values.get(n, t) for n, t in zip(call.inputs, call.x.inputs, strict=True)]
            points.append(call.evaluate(op, inputs))
            values[call.outputs[0]] = points[-1].y

        def pullback(m: Any) -> Tensor:
            arriving: dict[str | None, Tensor] = {group[-1].outputs[0]: m}
            for call, point in zip(reversed(group), reversed(points), strict=True):
                m_y = arriving[call.outputs[0]]
                for n, v, pull in zip(call.inputs, call.varying, point.pullbacks, strict=True):
                    if v and pull is not None:
                        m_x = pull(m_y)
                        arriving[n] = op.Add(arriving[n], m_x) if n in arriving else m_x
            return arriving[name]

        return points[-1].y, pullback

    return evaluate


def commute(op: Ops, calls: Calls, keep: Collection[str]) -> list[RuleCall]:
    """Move factors of channels into the weights of the layers behind, and means before layers.

    Args:
        keep: names of values whose multipliers must not change.
    """
    return _move_means_first(op, _absorb_factors(op, calls, keep), keep)


def _identity(_op: Ops, x: Tensor, *_: Tensor | None) -> Evaluation:
    return x, lambda m: m


_ABSORBED = Rule("absorbed", "", Kind.BILINEAR, _identity)


def _absorb_factors(op: Ops, calls: Calls, keep: Collection[str]) -> list[RuleCall]:
    """Move a factor of each channel (a BatchNormalization), through a ReLU, into its readers' weights.

    In the walk back the factor would cost one more pass over the references. It commutes with multipliers,
    which are diagonal, so it can scale the columns in which the layer's adjoint ends.
    """
    readers = readers_of(calls, keep)
    changed: dict[str, RuleCall] = {}
    for call in calls:
        factor = _channel_factor(op, call)
        if factor is None:
            continue
        layers = [changed.get(layer.outputs[0], layer) for layer in _layers_behind(op, call, readers)]
        scaled = [_scale_layer(op, layer, factor) for layer in layers]
        if not scaled or any(layer is None for layer in scaled):
            continue
        unchanged_point = replace(call.x, pullbacks=tuple(p and (lambda m: m) for p in call.x.pullbacks))
        changed[call.outputs[0]] = replace(call, rule=_ABSORBED, x=unchanged_point)
        changed.update({layer.outputs[0]: layer for layer in scaled if layer is not None})
    return [changed.get(call.outputs[0], call) for call in calls]


def _channel_factor(op: Ops, call: RuleCall) -> Tensor | None:
    """Return [1, C, 1, …] if `call` multiplies each channel of its only varying input by a constant."""
    x = call.x.inputs[0]
    if not _one_to_one(call) or call.rule.kind is not Kind.BILINEAR or x is None or x.rank < 2:
        return None
    if any(t is not None and (t.rows or t.rank > x.rank) for t in call.x.inputs[1:]):
        return None
    shape = (1, x.shape[1], *(1 for _ in x.shape[2:]))
    factor = _factor(op, call, shape)
    return factor if factor is not None and factor.shape == shape else None


def _factor(op: Ops, call: RuleCall, shape: Sequence[int]) -> Tensor | None:
    """Return the multiplier that the call makes of ones; None if it returns the same ones."""
    ones = op.row_constant(np.ones(shape, call.x.y.dtype.numpy()))
    factor = call.x.pullback()(ones)
    return None if factor is ones else factor


def _one_to_one(call: RuleCall) -> bool:
    """Tell whether a call is elementwise and only its first input varies."""
    x, first, *rest_vary = call.x.inputs[0], *call.varying
    whole = x is not None and x.shape == call.x.y.shape
    return first and not any(rest_vary) and whole and Trait.ELEMENTWISE in call.rule.traits


def _layers_behind(op: Ops, call: RuleCall, readers: Readers) -> list[RuleCall]:
    """Return the layers that read it, through activations and offsets; empty if anything else reads it."""
    while True:
        reading = readers[call.outputs[0]]
        if reading and all(reader.rule.layer_form is not None for reader in reading):
            return reading
        if len(reading) != 1 or not _one_to_one(reading[0]):
            return []
        call = reading[0]
        if call.rule.kind is Kind.BILINEAR and _factor(op, call, (1,) * call.x.y.rank) is not None:
            return []  # that call has a factor of its own, which is moved in its turn


def _scale_layer(op: Ops, layer: RuleCall, factor: Tensor) -> RuleCall | None:
    """Return the layer with its columns multiplied; None if its weight has no such columns."""
    x, weight, *biases = layer.x.inputs
    if layer.varying[0] is False or any(layer.varying[1:]) or weight is None or weight.rows:
        return None
    assert layer.rule.layer_form is not None
    parts = layer.rule.layer_form(op, weight, biases[0] if biases else None, **layer.attributes)
    if x is None or parts is None or parts.inputs is None or parts.axis % x.rank != 1:
        return None
    columns = op.Reshape(replace(factor, rows=False), list(parts.inputs))
    attributes = {**layer.attributes, **parts.attributes}
    return _with_weight(op, replace(layer, attributes=attributes), x, op.Mul(parts.weight, columns))


def _with_weight(op: Ops, layer: RuleCall, x: Tensor, weight: Tensor) -> RuleCall:
    """Return the layer with its pullback at another weight; its value stays the same."""
    point = evaluate(op, layer.rule, [x, weight], layer.attributes, layer.name)
    other_inputs = layer.x.inputs[2:]
    inputs = (x, weight, *(None for _ in other_inputs))
    pullbacks = (point.pullbacks[0], *(None for _ in layer.x.inputs[1:]))
    return replace(layer, x=replace(layer.x, inputs=inputs, pullbacks=pullbacks))


def _move_means_first(op: Ops, calls: Calls, keep: Collection[str]) -> list[RuleCall]:
    """Move a mean over positions from behind a layer that treats each position alone to before it.

    In the walk back the layer then has fewer positions: a quarter of them for a pool of 2×2.
    """
    readers = readers_of(calls, keep)
    order = list(calls)
    for layer in calls:
        reading = readers[layer.outputs[0]]
        if (
            len(reading) != 1
            or Trait.SPATIAL_MEAN not in reading[0].rule.traits
            or not _at_each_position(op, layer)
        ):
            continue
        before, behind = _exchange_mean(op, layer, reading[0])
        order = [c for c in order if c is not layer]
        order = [new for c in order for new in ((before, behind) if c is reading[0] else (c,))]
    return order


def _at_each_position(op: Ops, layer: RuleCall) -> bool:
    weight = layer.x.inputs[1] if len(layer.x.inputs) > 1 else None
    form = layer.rule.layer_form
    if form is None or weight is None or not layer.varying[0] or any(layer.varying[1:]):
        return False
    weights = form(op, weight, None, **layer.attributes)
    return weights is not None and weights.placewise


def _exchange_mean(op: Ops, layer: RuleCall, mean: RuleCall) -> tuple[RuleCall, RuleCall]:
    """Replace mean(layer(x)) by layer(mean(x)), only for pullbacks: the values stay the same."""
    weight = layer.x.inputs[1]
    pooled = evaluate(op, mean.rule, [layer.x.first], mean.attributes, mean.name)
    name = f"{layer.outputs[0]}/pooled"
    applied = evaluate(op, layer.rule, [pooled.y, weight], layer.attributes, layer.name)
    first = replace(mean, inputs=(layer.inputs[0],), outputs=(name,), x=pooled, r=None)
    second = replace(
        layer,
        inputs=(name, *layer.inputs[1:2]),
        outputs=mean.outputs,
        varying=(True, False),
        x=RulePoint((pooled.y, weight), mean.x.outputs, applied.pullbacks),
        r=None,
    )
    return first, second
