"""DeepLIFT's multipliers, averaged over references: DeepSHAP.

Shrikumar et al., "Learning Important Features Through Propagating Activation Differences", 2017;
Lundberg and Lee, "A Unified Approach to Interpreting Model Predictions", 2017, section 4.2.
Every rule keeps summation to delta: Σ m·Δx = Δy, so attributions add up to f(x) − mean f(r).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from compiler.errors import UnsupportedModelError
from compiler.forward import Call
from compiler.graph import Ops
from compiler.methods.base import Gap, References, pull_back
from compiler.rule import Kind, Selection
from compiler.rules.secants import GAUSS, near_threshold
from compiler.tensor import Tensor


@dataclass(frozen=True, eq=False)
class DeepShap:
    """Shapley values of a network by the DeepLIFT rule over a reference set.

    Args:
        references: one array [K, *shape of the input], or a mapping from input name to such an array.
        weights: K weights of the references (they are normalised); None for equal weights.
        standard_error: whether the graph also says how far the mean over these references may be from
            that over all that they stand for.
    """

    references: References
    weights: npt.ArrayLike | None = None
    standard_error: bool = False

    name: ClassVar[str] = "deepshap"
    has_base_value: ClassVar[bool] = True
    gap: ClassVar[Gap | None] = Gap.ROUNDING
    averages: ClassVar[str] = "K"

    @property
    def reference_set(self) -> References:
        return self.references

    @property
    def reference_weights(self) -> npt.ArrayLike | None:
        return self.weights

    @property
    def options(self) -> dict[str, Any]:
        return {"standard_error": self.standard_error}

    def pull(self, op: Ops, call: Call, m: Tensor | tuple[Tensor, ...]) -> Sequence[Tensor | None]:
        return _PULL[call.rule.kind](op, call, m)

    def attribute(
        self, op: Ops, m: Tensor, x: Tensor, r: Tensor | None, weights: np.ndarray | None
    ) -> Tensor:
        """mean over references of m·(x − r); with one m for all of them, m·(x − mean r)."""
        assert r is not None
        if "K" not in m.lead:
            r = op.mean(r, "K", weights)
        return op.mean(op.Mul(m, op.Sub(x, r)), "K", weights)

    def spread(self, op: Ops, m: Tensor, x: Tensor, r: Tensor | None) -> Tensor:
        """The attributions by each reference."""
        return op.Mul(m, op.Sub(x, r))


def _bilinear(op: Ops, call: Call, m: Any) -> Sequence[Tensor | None]:
    """At the midpoint (x + r)/2: the exact two-player Shapley value of a product."""
    if sum(call.varying) == 1:
        return pull_back(call.x, call, m)
    middle = [
        op.Mul(op.Add(x, r), 0.5) if varying else x
        for x, r, varying in zip(call.x.inputs, call.reference.inputs, call.varying, strict=True)
    ]
    return pull_back(call.at(op, middle), call, m)


def _pointwise(op: Ops, call: Call, m: Tensor) -> Sequence[Tensor | None]:
    """The secant (f(x) − f(r))/(x − r)."""
    if any(call.varying[1:]):
        raise UnsupportedModelError("a parameter of it depends on what is explained")
    x, *others = call.x.inputs
    r = call.reference.inputs[0]
    if call.rule.secant_form is None:
        slope = _smooth_secant(op, call)
    else:
        form, y, y_r = call.rule.secant_form, call.x.y, call.reference.y
        slope = form(op, x, r, y, y_r, *others, **call.attributes)
    return [op.Mul(m, slope), *(None for _ in others)]


def _smooth_secant(op: Ops, call: Call) -> Tensor:
    """The quotient, or where it would cancel the mean of f' by two-point Gauss quadrature."""
    x, *others = call.x.inputs
    r = call.reference.inputs[0]
    assert x is not None
    one = op.constant(np.ones((), x.dtype.numpy()))
    d, middle = op.Sub(x, r), op.Mul(op.Add(x, r), 0.5)
    offset = op.Mul(d, GAUSS)
    slopes = []
    for point in (op.Sub(middle, offset), op.Add(middle, offset)):
        pullback = call.at(op, [point, *others]).pullbacks[0]
        assert pullback is not None
        slopes.append(pullback(one))
    near = op.Less(op.Abs(d), near_threshold(x))
    quotient = op.Div(op.Sub(call.x.y, call.reference.y), op.Where(near, 1.0, d))
    return op.Where(near, op.Mul(op.Add(*slopes), 0.5), quotient)


def _selection(op: Ops, call: Call, m: Tensor) -> Sequence[Tensor | None]:
    """The cross-maximum c = max(y, y_r): (c − y_r)·m to x's winner, (y − c)·m to r's, over x − r.

    One of the two is zero, so one value is scattered for each output.
    """
    x, r = call.x.inputs[0], call.reference.inputs[0]
    at_x, at_r = call.x.pullbacks[0], call.reference.pullbacks[0]
    assert isinstance(at_x, Selection)
    assert isinstance(at_r, Selection)
    delta = op.Sub(call.x.y, call.reference.y)
    rises = op.Greater(delta, 0.0)
    winners = op.Where(
        op.reshape(rises, at_x.winners.shape) if rises.shape != at_x.winners.shape else rises,
        at_x.winners,
        at_r.winners,
    )
    relevance = at_x.scatter(op.Mul(m, delta), winners)
    d = op.Sub(x, r)
    multiplier = op.Div(relevance, op.Where(op.Equal(d, 0.0), 1.0, d))
    return [multiplier, *(None for _ in call.x.inputs[1:])]


def _local(op: Ops, call: Call, m: Tensor) -> Sequence[Tensor | None]:
    """The operator's own rule."""
    if call.rule.deeplift_form is None:
        raise UnsupportedModelError("it has a gradient, but no rule that keeps summation to delta")
    at_x, at_r = call.x, call.reference
    xs, rs = list(at_x.inputs), list(at_r.inputs)
    leaving = call.rule.deeplift_form(op, m, xs, rs, at_x.y, at_r.y, **call.attributes)
    return [g if varying else None for g, varying in zip(leaving, call.varying, strict=False)]


_PULL: dict[Kind, Callable[[Ops, Call, Any], Sequence[Tensor | None]]] = {
    Kind.BILINEAR: _bilinear,
    Kind.POINTWISE: _pointwise,
    Kind.SELECTION: _selection,
    Kind.LOCAL: _local,
}
