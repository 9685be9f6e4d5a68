"""DeepLIFT's multipliers, averaged over references: DeepSHAP.

Shrikumar et al., "Learning Important Features Through Propagating Activation Differences", 2017;
Lundberg and Lee, "A Unified Approach to Interpreting Model Predictions", 2017, section 4.2.
Every rule keeps summation to delta: Σ m·Δx = Δy, so attributions add up to f(x) − mean f(r).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rationale.errors import UnsupportedModelError
from rationale.graph.ops import Ops, mean
from rationale.graph.tensor import Tensor
from rationale.methods.engine import References, WeightedMethod
from rationale.methods.environment import Calls, RuleCall
from rationale.methods.propagation.backward import PropagationMethod, Pull, pull_back
from rationale.methods.propagation.engine import WALK
from rationale.methods.propagation.speed import commute, fuse
from rationale.rules.rule import Kind, Selection, Trait
from rationale.rules.secants import difference, tiny


@dataclass(frozen=True, eq=False)
class DeepShap(WeightedMethod, PropagationMethod):
    """Shapley values of a network, approximated by the DeepLIFT rule over a reference set.

    Exact if the network is a sum of functions of single inputs and of products of two; for other networks
    `rationale evaluate --shapley` measures the error.

    Args:
        references: one array [K, *shape of the input], or a mapping from input name to such an array.
        weights: K weights of the references (they are normalised); None for equal weights.
        standard_error: whether the graph also returns the standard error of the mean over these references,
            as a sample of a population.
    """

    references: References
    weights: npt.ArrayLike | None = None
    standard_error: bool = False

    name: ClassVar[str] = "deepshap"
    engine = WALK
    averages: ClassVar[str] = "K"

    @property
    def options(self) -> dict[str, Any]:
        return {"standard_error": self.standard_error}

    def plan(self, op: Ops, calls: Calls, keep: Collection[str] = ()) -> tuple[Calls, Pull]:
        """Order linear operators by least cost, and fuse operators that have one common multiplier."""
        return fuse(commute(op, calls, keep), keep), self.pull

    def pull(self, op: Ops, call: RuleCall, m: Tensor | tuple[Tensor, ...]) -> Sequence[Tensor | None]:
        return _PULL[Kind.LOCAL if call.rule.deeplift_form else call.rule.kind](op, call, m)

    def attribute(
        self, op: Ops, m: Tensor, x: Tensor, r: Tensor | None, weights: np.ndarray | None
    ) -> Tensor:
        """Return the mean over references of m·(x − r); if m is the same for all of them, m·(x − mean r)."""
        assert r is not None
        if "K" not in m.batch_axes:
            r = mean(op, r, "K", weights)
        return mean(op, op.Mul(m, op.Sub(x, r)), "K", weights)

    def spread(self, op: Ops, m: Tensor, x: Tensor, r: Tensor | None) -> Tensor:
        """Return the attributions by each reference."""
        return op.Mul(m, op.Sub(x, r))


def _bilinear(op: Ops, call: RuleCall, m: Any) -> Sequence[Tensor | None]:
    """Pull m back at the midpoint (x + r)/2: the exact two-player Shapley value of a product."""
    if _indices_differ(call):
        return _between_indices(op, call, m)
    if sum(call.varying) == 1:
        return pull_back(call.x, call, m)
    middle = [
        op.Add(op.Mul(x, 0.5), op.Mul(r, 0.5)) if varying else x  # r/2 is folded: one pass over references
        for x, r, varying in zip(call.x.inputs, call.reference.inputs, call.varying, strict=True)
    ]
    return pull_back(call.evaluate(op, middle), call, m)


def _indices_differ(call: RuleCall) -> bool:
    """Tell whether a fixed input of the operator, such as computed indices, differs at the references."""
    if call.r is None:  # a linear call that changed places with another has no values at references
        return False
    fixed_inputs = [
        (x, r)
        for x, r, varying in zip(call.x.inputs, call.r.inputs, call.varying, strict=True)
        if x is not None and r is not None and not varying
    ]
    # weights may contain a neighbour's factors
    return any(x.value is not r.value and x.batch_axes for x, r in fixed_inputs)


def _between_indices(op: Ops, call: RuleCall, m: Tensor) -> Sequence[Tensor | None]:
    """Return ½(P_x + P_r)ᵀm, plus the rest of m·Δy in proportion to |Δx|: exact and bounded."""
    halves = [pull_back(point, call, op.Mul(m, 0.5)) for point in (call.x, call.reference)]
    means = [None if a is None else op.Add(a, b) for a, b in zip(*halves, strict=True)]
    points = zip(call.x.inputs, call.reference.inputs, means, strict=True)
    deltas = [None if g is None else op.Sub(x, r) for x, r, g in points]
    remaining = _sum(op, op.Mul(m, op.Sub(call.x.y, call.reference.y)))
    total = op.array([0.0], call.x.y)
    for g, d in zip(means, deltas, strict=True):
        if g is not None and d is not None:
            remaining = op.Sub(remaining, _sum(op, op.Mul(g, d)))
            total = op.Add(total, _sum(op, op.Abs(d)))
    share = op.Div(remaining, op.Max(total, tiny(call.x.y)))
    return [
        None if g is None or d is None else op.Add(g, op.Mul(op.Sign(d), op.reshape(share, (1,) * d.rank)))
        for g, d in zip(means, deltas, strict=True)
    ]


def _sum(op: Ops, x: Tensor) -> Tensor:
    """Sum over a whole row: [1]."""
    return op.reshape(op.ReduceSum(x, list(range(x.rank)), keepdims=1), (1,))


def _pointwise(op: Ops, call: RuleCall, m: Tensor) -> Sequence[Tensor | None]:
    """Pull m back by the secant (f(x) − f(r))/(x − r) of a function that is smooth on the scale of 1."""
    if any(call.varying[1:]):
        raise UnsupportedModelError("one of its parameters depends on the explained inputs")
    return [op.Mul(m, _smooth_secant(op, call)), *(None for _ in call.inputs[1:])]


def _smooth_secant(op: Ops, call: RuleCall) -> Tensor:
    """Return (Δy·Δx + ε·f'(x))/(Δx² + ε): the quotient, and f' if the quotient would cancel.

    ε is the rounding of the dtype. Σ m·Δ keeps Δy to its rounding, and the slope of a function on the scale
    of 1 is off by at most √ε/2, at Δx ≈ √ε; there the plain quotient loses all digits.
    """
    x, r = call.x.first, call.reference.first
    epsilon = float(np.finfo(x.dtype.numpy()).eps)
    slope = call.evaluate(op, call.x.inputs).pullback()
    d, change = op.Sub(x, r), op.Sub(call.x.y, call.reference.y)
    rise = op.Add(op.Mul(change, d), slope(op.array([epsilon], x)))
    return op.Div(rise, op.Add(op.Mul(d, d), epsilon))


def _selection(op: Ops, call: RuleCall, m: Tensor) -> Sequence[Tensor | None]:
    """Pull m back by the cross-maximum c = max(y, y_r).

    (c − y_r)·m goes to x's winner, (y − c)·m to r's, both over x − r.

    One of the two is zero, so one value is scattered for each output; and x − r has the sign of y − y_r
    at either winner, so its absolute value may be used for both.
    """
    x, r = call.x.first, call.reference.first
    at_x, at_r = call.x.pullbacks[0], call.reference.pullbacks[0]
    assert isinstance(at_x, Selection)
    assert isinstance(at_r, Selection)
    minus = partial(difference, op) if Trait.MASKED in call.rule.traits else op.Sub
    delta = minus(call.x.y, call.reference.y)
    rises = op.Greater(delta, 0.0)
    winners = op.Where(
        op.reshape(rises, at_x.winners.shape) if rises.shape != at_x.winners.shape else rises,
        at_x.winners,
        at_r.winners,
    )
    relevance = at_x.scatter(op.Mul(m, op.Abs(delta)), winners)
    multiplier = op.Div(relevance, op.Max(op.Abs(minus(x, r)), tiny(x)))
    return [multiplier, *(None for _ in call.x.inputs[1:])]


def _local(op: Ops, call: RuleCall, m: Tensor) -> Sequence[Tensor | None]:
    """Pull m back by the operator's own DeepLIFT rule, for any kind of operator."""
    if call.rule.deeplift_form is None:
        raise UnsupportedModelError("it has a gradient, but no rule that keeps summation to delta")
    at_x, at_r = call.x, call.reference
    xs, rs = list(at_x.inputs), list(at_r.inputs)
    leaving = call.rule.deeplift_form(op, m, xs, rs, at_x.y, at_r.y, **call.attributes)
    if any(call.varying[len(leaving) :]):
        raise UnsupportedModelError("one of its parameters depends on the explained inputs")
    return [g if varying else None for g, varying in zip(leaving, call.varying, strict=False)]


_PULL: dict[Kind, Callable[[Ops, RuleCall, Any], Sequence[Tensor | None]]] = {
    Kind.BILINEAR: _bilinear,
    Kind.POINTWISE: _pointwise,
    Kind.SELECTION: _selection,
    Kind.LOCAL: _local,
}
