"""The layers of relevance propagation: normalisations, factors and offsets join the layer beside them.

A convolution and the BatchNormalization behind it are one linear map, and rules that separate signs need its
weights. The model itself does not change; the walk reads a joined call in place of the two.
"""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.methods.environment import Calls, RuleCall, RulePoint
from rationale.rules.rule import Kind, Trait, Weights


@dataclass(frozen=True)
class LinearLayer:
    """A layer y = linear(x, W) + b.

    Attributes:
        call: the call whose rule computes the linear part.
        weights: None if the operator's own weights are equal and positive, such as an average's.
        joined: whether `weights` differ from the call's own.
        nonnegative: whether x is known to be nonnegative; it halves the work of rules that separate signs,
            and does not change results.
    """

    call: RuleCall
    weights: Weights | None
    joined: bool = False
    nonnegative: bool = False

    @property
    def x(self) -> Tensor:
        return self.call.x.first

    @property
    def bias(self) -> Tensor | None:
        return None if self.weights is None else self.weights.bias

    def linear(self, op: Ops, x: Tensor, weight: Tensor | None) -> RulePoint:
        """Call the linear part with another input and other weights."""
        other_inputs = self.call.x.inputs[1:]
        if self.weights is None:
            return self.call.evaluate(op, [x, *other_inputs])
        call = replace(self.call, attributes={**self.call.attributes, **self.weights.attributes})
        return call.evaluate(op, [x, weight, *(None for _ in other_inputs[1:])])


@dataclass(frozen=True)
class Affine:
    """An elementwise map y = factor·x + offset, the same for every row."""

    factor: Tensor
    offset: Tensor


def is_linear(call: RuleCall) -> bool:
    """Tell whether the call is linear in its varying input, or in each of several."""
    if call.rule.kind is Kind.BILINEAR:
        return True
    return Trait.LINEAR_IN_FIRST in call.rule.traits and not any(call.varying[1:])


def is_plain(call: RuleCall) -> bool:
    """Tell whether the call moves its only varying input, or maps it elementwise by an affine function."""
    traits = {Trait.MOVING, Trait.ELEMENTWISE} & call.rule.traits
    return bool(traits) and is_linear(call) and sum(call.varying) == 1 and len(call.outputs) == 1


def is_product(call: RuleCall) -> bool:
    """Tell whether the call multiplies or divides element by element, without a sum."""
    return {Trait.PRODUCT, Trait.ELEMENTWISE} <= call.rule.traits


def summing_calls(calls: Calls) -> list[RuleCall]:
    """Return the linear operators that add values: sums, averages, matrix products, offsets."""
    return [c for c in calls if is_linear(c) and Trait.MOVING not in c.rule.traits and not is_product(c)]


def input_preparations(calls: Calls) -> list[RuleCall]:
    """Return the affine maps at the very start of an input's path, such as (x − mean)/deviation."""
    inputs = {name for call in calls for name in call.inputs} - {n for c in calls for n in c.outputs}
    affine_maps = []
    for call in calls:
        name = call.inputs[call.varying.index(True)]
        if name in inputs and is_plain(call):
            inputs.update(call.outputs)
            if Trait.ELEMENTWISE in call.rule.traits and Trait.NORMALISING not in call.rule.traits:
                affine_maps.append(call)
    return affine_maps


def as_layer(op: Ops, call: RuleCall) -> LinearLayer | None:
    """Return a call with separable weights, or an average, as a layer; None for any other call."""
    if not call.varying[0] or any(call.varying[1:]):
        return None
    if Trait.AVERAGING in call.rule.traits:
        return LinearLayer(call, None)
    if call.rule.layer_form is None:
        return None
    weight, bias = (*call.x.inputs[1:], None)[:2]
    assert weight is not None
    op.scope = f"weights/{call.name}"
    weights = call.rule.layer_form(op, weight, bias, **call.attributes)
    return None if weights is None or weight.rows else LinearLayer(call, weights)


def join_affine_maps(op: Ops, calls: Calls) -> tuple[list[RuleCall], dict[str, LinearLayer]]:
    """Join each affine map to the layer next to it; return the calls, and all layers by their output."""
    readers = Counter(name for call in calls for name in call.sources)
    layers: dict[str, LinearLayer] = {}
    joined: list[RuleCall] = []
    for call in calls:
        before = _sole_source(call, layers, readers)
        layer = as_layer(op, call)
        if layer is None and before is not None:
            layer = _join_behind(op, before, call)
            if layer is not None:
                old = before.call.outputs[0]
                del layers[old]
                joined = [c for c in joined if c is not before.call]
        if layer is not None:
            layers[layer.call.outputs[0]] = layer
        joined.append(call if layer is None else layer.call)
    joined, layers = _join_forward(op, joined, layers, readers)
    return joined, _mark_nonnegative(joined, layers)


def _mark_nonnegative(calls: Calls, layers: dict[str, LinearLayer]) -> dict[str, LinearLayer]:
    """Return the layers, marked if their inputs are known to be nonnegative."""
    nonnegative: set[str | None] = set()
    for call in calls:
        if Trait.NONNEGATIVE in call.rule.traits or (
            _keeps_signs(call) and nonnegative.issuperset(call.sources)
        ):
            nonnegative.update(call.outputs)
    return {n: replace(layer, nonnegative=layer.call.inputs[0] in nonnegative) for n, layer in layers.items()}


def _keeps_signs(call: RuleCall) -> bool:
    """Tell whether nonnegative inputs give y ≥ 0: the call selects, averages, or only moves values."""
    if Trait.MOVING in call.rule.traits:
        constants = zip(call.x.inputs, call.varying, strict=True)
        return not any(
            x is not None and x.dtype.is_floating_point() for x, varying in constants if not varying
        )
    return call.rule.kind is Kind.SELECTION or Trait.AVERAGING in call.rule.traits


def _sole_source(call: RuleCall, layers: dict[str, LinearLayer], readers: Counter[str]) -> LinearLayer | None:
    """Return the layer whose output this call reads, if the call is its only reader."""
    if len(call.sources) != 1 or readers[call.sources[0]] != 1:
        return None
    layer = layers.get(call.sources[0])
    return layer if layer is not None and layer.weights is not None else None


def _affine(op: Ops, call: RuleCall, axis: int) -> Affine | None:
    """Return the affine map of an elementwise call, from its rule at 0 and the pullback of 1, or None.

    Args:
        axis: the channels' axis; the factor must be one number per channel.
    """
    i = call.varying.index(True)
    x = call.x.inputs[i]
    if x is None or Trait.ELEMENTWISE not in call.rule.traits or not is_linear(call):
        return None
    if call.x.y.shape != x.shape or sum(call.varying) != 1:
        return None
    if Trait.NORMALISING in call.rule.traits and axis % x.rank != 1:
        return None
    shape = [n if i == axis % x.rank else 1 for i, n in enumerate(x.shape)]
    op.scope = f"weights/{call.name}"
    zeros, ones = (op.row_constant(np.full(shape, v, x.dtype.numpy())) for v in (0, 1))
    at_zero = call.evaluate(op, [zeros if j == i else v for j, v in enumerate(call.x.inputs)])
    factor, offset = at_zero.pullback(i)(ones), at_zero.y
    if factor.shape != tuple(shape) or factor.batch_axes or offset.batch_axes:
        return None
    return Affine(_as_weight(op, factor), _as_weight(op, offset))


def _as_weight(op: Ops, x: Tensor) -> Tensor:
    """Return a row that is the same in the whole batch, as a weight [1, …]."""
    return replace(op.flat(x), rows=False)


def _join_behind(op: Ops, layer: LinearLayer, call: RuleCall) -> LinearLayer | None:
    """Return the layer joined with the affine map that reads it: W·f, b·f + g."""
    weights = layer.weights
    assert weights is not None
    affine = _affine(op, call, weights.axis)
    if affine is None or weights.outputs is None:
        return None
    weight = op.Mul(weights.weight, op.Reshape(affine.factor, list(weights.outputs)))
    bias = affine.offset
    if weights.bias is not None:
        bias = op.Add(op.Mul(weights.bias, affine.factor), bias)
    point = replace(layer.call.x, outputs=call.x.outputs)
    joined = replace(layer.call, outputs=call.outputs, x=point)
    return LinearLayer(joined, replace(weights, weight=weight, bias=bias), joined=True)


def _join_forward(
    op: Ops, calls: Calls, layers: dict[str, LinearLayer], readers: Counter[str]
) -> tuple[list[RuleCall], dict[str, LinearLayer]]:
    """Join each remaining affine map to the layer behind it: linear(f·x + g) + b."""
    behind = {layer.call.inputs[0]: layer for layer in layers.values() if layer.weights is not None}
    joined_calls = list(calls)
    for call in calls:
        layer = behind.get(call.outputs[0])
        if Trait.NORMALISING not in call.rule.traits or layer is None or readers[call.outputs[0]] != 1:
            continue
        joined = _join_before(op, call, layer)
        if joined is not None:
            joined_calls = [joined.call if c is layer.call else c for c in joined_calls if c is not call]
            layers[joined.call.outputs[0]] = joined
    return joined_calls, layers


def _join_before(op: Ops, call: RuleCall, layer: LinearLayer) -> LinearLayer | None:
    """Return the layer joined with the affine map before it: W·f, and a bias that includes W·g."""
    weights = layer.weights
    assert weights is not None
    affine = _affine(op, call, weights.axis)
    if affine is None or weights.inputs is None or call.x.inputs[0] is None:
        return None
    weight = op.Mul(weights.weight, op.Reshape(affine.factor, list(weights.inputs)))
    offset = op.expand(replace(affine.offset, rows=True), layer.x.shape)
    bias = _as_weight(op, layer.linear(op, offset, weights.weight).y)
    if weights.bias is not None:
        bias = op.Add(bias, weights.bias)
    point = replace(layer.call.x, inputs=(call.x.inputs[0], *layer.call.x.inputs[1:]))
    joined = replace(layer.call, inputs=(call.inputs[0], *layer.call.inputs[1:]), x=point)
    return LinearLayer(joined, replace(weights, weight=weight, bias=bias), joined=True)
