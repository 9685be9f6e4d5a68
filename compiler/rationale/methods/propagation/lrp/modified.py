"""The modified evaluation of a layer by a rule, and the relevance that leaves the layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from rationale.errors import InvalidOptionError
from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.methods.environment import Calls
from rationale.methods.propagation.backward import Carried, Relevance
from rationale.methods.propagation.lrp.layers import LinearLayer, is_plain
from rationale.methods.propagation.lrp.rules import (
    Bound,
    Epsilon,
    Group,
    Modified,
    Operand,
    Parts,
    RelevanceRule,
    Term,
    ZBox,
    Zero,
    high,
    itself,
    low,
    negative,
    positive,
)
from rationale.rules.pointwise.conditions import number
from rationale.rules.rule import Pullback

_READS_X = frozenset({itself, positive, negative})


@dataclass(frozen=True)
class InputBounds:
    """Bounds for ZBox: the rule's own, or those of the model's input, mapped to the layer."""

    calls: Calls
    low: Bound
    high: Bound

    def of(self, op: Ops, rule: ZBox, layer: LinearLayer) -> dict[Operand, Tensor]:
        """Return the lowest and highest values of a layer's input.

        Raises:
            InvalidOptionError: if there are none, or they do not fit the layer's input.
        """
        who = f"ZBox at {layer.call.rule.op_type} {layer.call.name!r}"
        if rule.low is not None:
            ends = _bound_row(op, rule.low, layer.x, who), _bound_row(op, rule.high, layer.x, who)
        elif self.low is not None:
            ends = self._mapped_bounds(op, str(layer.call.inputs[0]), layer.x, who)
        else:
            raise InvalidOptionError(
                f"{who} needs the smallest and largest value an input may take: low and high "
                "(--low, --high), or ZBox(low, high) (first=zbox:LOW:HIGH)."
            )
        return dict(zip((low, high), ends, strict=True))

    def _mapped_bounds(self, op: Ops, name: str, x: Tensor, who: str) -> tuple[Tensor, Tensor]:
        """Return the bounds of a value that moves and elementwise affine maps compute from the input."""
        call = next((c for c in self.calls if name in c.outputs), None)
        if call is None:
            return _bound_row(op, self.low, x, who), _bound_row(op, self.high, x, who)
        if not is_plain(call):
            raise InvalidOptionError(
                f"{who}: low and high are bounds of the model's input, but {call.rule.op_type} "
                f"{call.name!r} changes the values before this layer. Give bounds of the layer's own "
                "input: ZBox(low, high) (SELECTOR=zbox:LOW:HIGH)."
            )
        i = call.varying.index(True)
        source = call.x.inputs[i]
        assert source is not None
        ends = self._mapped_bounds(op, str(call.inputs[i]), source, who)
        a, b = (
            call.evaluate(op, [end if j == i else v for j, v in enumerate(call.x.inputs)]).y for end in ends
        )
        return op.Min(a, b), op.Max(a, b)


def _bound_row(op: Ops, bound: Bound, x: Tensor, who: str) -> Tensor:
    try:
        array = np.broadcast_to(np.asarray(bound, x.dtype.numpy()), x.shape)
    except ValueError as error:
        raise InvalidOptionError(
            f"{who}: a bound of shape {list(np.shape(np.asarray(bound)))} does not broadcast to its input "
            f"{list(x.shape)}."
        ) from error
    return op.row_constant(np.ascontiguousarray(array))


def relevance_of(op: Ops, m: Carried, y: Tensor) -> Tensor:
    """Return the relevance of y, from relevance or a multiplier; y may hold integers."""
    return m.tensor if isinstance(m, Relevance) else op.Mul(m, number(op, y))


def multiplier(op: Ops, m: Carried, y: Tensor, rule: RelevanceRule) -> Tensor:
    """Return the multiplier of y, from relevance or a multiplier.

    It is R/(y + ε·sign y), with the rule's ε; ε is used nowhere else.
    """
    if isinstance(m, Relevance) or (isinstance(rule, Zero | Epsilon) and not _divides_by_y(rule)):
        return op.Div(relevance_of(op, m, y), _denominator(op, rule, number(op, y)))
    return m


def _divides_by_y(rule: RelevanceRule) -> bool:
    """Tell whether the rule needs only R/y, which is the multiplier itself."""
    return type(rule) in (Zero, Epsilon) and not getattr(rule, "epsilon", 0.0)


def _denominator(op: Ops, rule: RelevanceRule, z: Tensor) -> Tensor:
    """Return a rule's denominator; raise InvalidOptionError if it is no tensor of z's shape."""
    denominator = rule.modify_denominator(op, z)
    if not isinstance(denominator, Tensor) or denominator.shape != z.shape:
        fault = (
            f"of shape {list(denominator.shape)}" if isinstance(denominator, Tensor) else repr(denominator)
        )
        raise InvalidOptionError(
            f"rule {rule}: modify_denominator(op, z) must return a tensor of z's shape {list(z.shape)}, not "
            f"{fault}."
        )
    return denominator


def through_layer(
    op: Ops, rule: RelevanceRule, layer: LinearLayer, m: Carried, bounds: InputBounds
) -> Carried:
    """Return a multiplier of x if all terms of the rule read x itself, else relevance."""
    if _divides_by_y(rule) and not isinstance(m, Relevance):
        return _pullback(op, layer)(m)
    y = layer.call.x.y
    relevance = relevance_of(op, m, y)
    groups = rule.groups()
    stand_ins = _operands(op, groups, layer, bounds.of(op, rule, layer) if isinstance(rule, ZBox) else {})
    leaving: dict[Operand, Tensor] = {}
    for group in groups:
        z, pullbacks = _evaluate_group(op, layer, group, stand_ins)
        if z is None:
            continue
        s = op.Div(_share(op, relevance, y, group), _denominator(op, rule, z))
        for operand, pullback in pullbacks:
            c = pullback(s)
            leaving[operand] = op.Add(leaving[operand], c) if operand in leaving else c
    if leaving.keys() <= _READS_X:
        return _as_multiplier(op, layer, leaving)
    return Relevance(reduce(op.Add, [op.Mul(stand_ins[operand], c) for operand, c in leaving.items()]))


def _share(op: Ops, relevance: Tensor, y: Tensor, group: Group) -> Tensor:
    if group.only:
        beyond = op.Greater(y, 0.0) if group.only > 0 else op.Less(y, 0.0)
        relevance = op.Where(beyond, relevance, 0.0)
    return relevance if group.share == 1 else op.Mul(relevance, group.share)


def _operands(
    op: Ops, groups: Sequence[Group], layer: LinearLayer, bounds: dict[Operand, Tensor]
) -> dict[Operand, Tensor]:
    """Return the tensor for each operand of the rule's terms, in this layer."""
    known_x = bounds | ({positive: layer.x} if layer.nonnegative else {})
    used = dict.fromkeys(term.operand for group in groups for term in group.terms)
    return {operand: known_x[operand] if operand in known_x else operand(op, layer.x) for operand in used}


def _evaluate_group(
    op: Ops, layer: LinearLayer, group: Group, stand_ins: Mapping[Operand, Tensor]
) -> tuple[Tensor | None, list[tuple[Operand, Pullback]]]:
    """Return z of the group and each term's pullback; z is None if no modified weights remain."""
    if group.terms in _UNMODIFIED:
        return layer.call.x.y, [(itself, _pullback(op, layer))]
    parts: list[Tensor] = []
    pullbacks: list[tuple[Operand, Pullback]] = []
    for term in group.terms:
        if term.operand is negative and layer.nonnegative:
            continue
        term_result = _evaluate_term(op, layer, term, stand_ins[term.operand])
        if term_result is None:
            continue
        y, pullback = term_result
        bias = None if layer.bias is None or term.bias is None else modify_weights(op, layer.bias, term.bias)
        if bias is not None:
            y = op.Add(y, bias)
        parts.append(_scaled(op, y, term.sign))
        pullbacks.append((term.operand, pullback))
    return (reduce(op.Add, parts) if parts else None), pullbacks


_UNMODIFIED = {Zero().groups()[0].terms}


def _evaluate_term(op: Ops, layer: LinearLayer, term: Term, x: Tensor) -> tuple[Tensor, Pullback] | None:
    """Return ρ(W)·x and its pullback with the term's sign; None if ρ(W) = 0."""
    scale = 1.0
    if layer.weights is None:  # equal and positive weights: ρ can only scale them
        scale = term.weight.positive if isinstance(term.weight, Parts) else 1.0
        if scale == 0:
            return None
        point = layer.linear(op, x, None)
    else:
        point = layer.linear(op, x, modify_weights(op, layer.weights.weight, term.weight))
    unsigned_pullback = point.pullback()

    def pullback(s: Tensor) -> Tensor:
        return _scaled(op, unsigned_pullback(s), scale * term.sign)

    return _scaled(op, point.y, scale), pullback


def _pullback(op: Ops, layer: LinearLayer) -> Pullback:
    """Return the pullback of the layer with unmodified weights."""
    point = layer.call.x
    if layer.joined and layer.weights is not None:
        point = layer.linear(op, layer.x, layer.weights.weight)
    return point.pullback()


def _as_multiplier(op: Ops, layer: LinearLayer, leaving: Mapping[Operand, Tensor]) -> Tensor:
    """Return a group's c as a multiplier of x.

    max(x, 0) and min(x, 0) are nonzero at different places; at each place, the operand's c is x's multiplier.
    """
    x = layer.x
    if itself in leaving:
        return leaving[itself]
    if layer.nonnegative and positive in leaving:
        return leaving[positive]
    zero = op.array([0.0], x)
    return op.Where(op.Greater(x, 0.0), leaving.get(positive, zero), leaving.get(negative, zero))


def modify_weights(op: Ops, w: Tensor, modification: Modified) -> Tensor:
    """Return the weights as a rule modifies them, ρ(W)."""
    if not isinstance(modification, Parts):
        return modification(op, w)
    parts = [
        _scaled(op, clip(w, 0.0), factor)
        for clip, factor in ((op.Max, modification.positive), (op.Min, modification.negative))
        if factor
    ]
    return w if modification == Parts() else reduce(op.Add, parts)


def _scaled(op: Ops, x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else op.Neg(x) if factor == -1 else op.Mul(x, factor)
