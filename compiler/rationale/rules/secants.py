"""Slopes (f(x) − f(r))/(x − r) in forms that do not cancel as r → x.

Most of them are chains of the few below: the secant of a composition is the product of the secants.
"""

from dataclasses import dataclass

import numpy as np

from rationale.graph.ops import Ops, typical_size
from rationale.graph.tensor import Tensor
from rationale.graph.variants import Site, Task


def tiny(x: Tensor) -> float:
    """Return a divisor guard: smaller than any difference that matters, but not 0."""
    info = np.finfo(x.dtype.numpy())
    return float(info.smallest_subnormal) if info.bits < 32 else float(info.tiny) * 2.0**20


def difference(op: Ops, z: Tensor, z_r: Tensor) -> Tensor:
    """Compute z − z_r, 0 if both are equal, also for masks of −inf."""
    return op.Where(op.Equal(z, z_r), 0.0, op.Sub(z, z_r))


def relu_secant(op: Ops, x: Tensor, r: Tensor) -> Tensor:
    """Compute (x⁺ + r⁺)/(|x| + |r|): no difference is formed, so nothing cancels; 0 at x = r = 0."""
    above = op.Add(op.Relu(x), op.Relu(r))
    size = op.Add(op.Abs(x), op.Add(op.Abs(r), tiny(x)))
    return op.Div(above, size)


# its geometry: whether all references still share m, as they do behind the last layer
rescaled_relu = Task("rescale rule of a ReLU")


@rescaled_relu.variant("quotient of baked and x", cost=lambda _: 1.0)
def relu_by_quotient(op: Ops, m: Tensor, x: Tensor, r: Tensor, _: bool) -> Tensor:
    """Compute m·(x⁺ − r⁺)/(x − r) in three passes over the references, as m/(1 + α·Γ) with a constant Γ.

    α depends only on x. B is so large that 1/B² underflows and B² overflows: α = 1/(Bx) or −Bx, and Γ =
    1/(Br) or −Br, for positive and negative values. So α·Γ is ~0 if both are positive, overwhelms 1 if both
    are negative, and is the exact −r/x or −x/r if the signs differ. Ties take the gradient at the reference.
    x and r are scaled by the size of the references, so that this holds at any scale; values below
    `_Span.least` of that size count as 0.
    """
    span = _VANISHING[_bits(x)]
    gamma, factor, least = _of_reference(op, r, span)
    below = op.Mul(op.Sub(least, x), factor)
    alpha = op.Max(below, op.Div(-1.0, below))
    return op.Div(m, op.Add(op.Mul(alpha, gamma), 1.0))


@rescaled_relu.variant("quotient of sums", fits=lambda shared: shared, cost=lambda _: 0.7)
def relu_by_sums(op: Ops, m: Tensor, x: Tensor, r: Tensor, _: bool) -> Tensor:
    """Compute `relu_by_quotient` as m·β/(β + Γ) with β = 1/α.

    This takes two passes if m·β takes one row instead of K.

    If both are negative, m/B² remains of m, so B² must leave room for it at either end of the dtype.
    """
    span = _NORMAL[_bits(x)]
    gamma, factor, least = _of_reference(op, r, span)
    above = op.Mul(op.Sub(x, least), factor)
    beta = op.Max(above, op.Div(-1.0, above))
    return op.Div(op.Mul(m, beta), op.Add(beta, gamma))


def _of_reference(op: Ops, r: Tensor, span: "_Span") -> tuple[Tensor, Tensor, Tensor]:
    """Return Γ, B relative to the size of the references, and the size that counts as 0."""
    size = op.Min(op.Max(typical_size(op, r), span.smallest), span.largest)
    factor, least = op.Div(span.large, size), op.Mul(size, span.least)
    grown = op.Mul(op.Max(op.Abs(r), least), factor)
    gamma = op.Where(op.Greater(r, 0.0), op.Reciprocal(grown), grown)
    return gamma, factor, least


def _clip_cost(site: Site) -> float:
    """Return the cost: least if r must fit float16, or if a runtime may not keep infinities."""
    bounded = site.deployment.storage == "float16" or site.deployment.runtime in ("tensorrt", "any")
    return 0.5 if bounded else 2.0


@rescaled_relu.variant("clipped quotient", cost=_clip_cost)
def relu_by_clip(op: Ops, m: Tensor, x: Tensor, r: Tensor, _: bool) -> Tensor:
    """Compute m·clip(max(x, r)/|x − r|, 0, 1): only r is constant, so float16 can hold it; seven passes."""
    size = op.Max(op.Abs(op.Sub(x, r)), tiny(x))
    return op.Mul(m, op.Clip(op.Div(op.Max(x, r), size), 0.0, 1.0))


@dataclass(frozen=True)
class _Span:
    """The powers that keep α and Γ within a dtype's range.

    Attributes:
        large: B, relative to the size of the references.
        least: least size of x and r, relative to that size; 1/(B·least)² is less than rounding.
        smallest, largest: limits to which the size of the references is clipped.
    """

    large: float
    least: float
    smallest: float
    largest: float


# 1/B² is below every subnormal, not just below 1: processors take ten times as long over a subnormal
_VANISHING = {
    32: _Span(large=2.0**85, least=2.0**-48, smallest=2.0**-42, largest=2.0**50),
    64: _Span(large=2.0**560, least=2.0**-250, smallest=2.0**-200, largest=2.0**200),
}
# 1/B² is a normal number, with room for its factors
_NORMAL = {
    32: _Span(large=2.0**50, least=2.0**-37, smallest=2.0**-42, largest=2.0**50),
    64: _Span(large=2.0**400, least=2.0**-250, smallest=2.0**-200, largest=2.0**200),
}


def _bits(x: Tensor) -> int:
    """Return 64, or 32 for narrower types."""
    return 64 if np.finfo(x.dtype.numpy()).maxexp > 128 else 32


def over_argument(op: Ops, op_type: str, u: Tensor) -> Tensor:
    """Compute f(u)/u for an odd f with f'(0) = 1; 1 at 0."""
    size = op.Max(op.Abs(u), tiny(u))
    return op.Div(getattr(op, op_type)(size), size)


def phi(op: Ops, d: Tensor) -> Tensor:
    """Compute φ(d) = (1 − e^−|d|)/|d|, 1 at 0; by 1 − e^−2h = 2t/(1 + t) with h = |d|/2 and t = tanh h."""
    half = op.Max(op.Abs(op.Mul(d, 0.5)), tiny(d))
    t = op.Tanh(half)
    return op.Div(t, op.Mul(op.Add(t, 1.0), half))


def exp_secant(op: Ops, d: Tensor, y: Tensor, y_r: Tensor) -> Tensor:
    """Compute the logarithmic mean of y = e^x and y_r = e^r, with d = x − r: max(y, y_r)·φ(d)."""
    return op.Mul(op.Max(y, y_r), phi(op, d))


def log_secant(op: Ops, x: Tensor, r: Tensor) -> Tensor:
    """Compute ln(x/r)/(x − r) for x, r > 0; by 2·atanh(v), v = (x − r)/(x + r), if they are near."""
    d, total = op.Sub(x, r), op.Add(x, r)
    v = op.Div(d, total)
    near = op.Less(op.Abs(v), 0.5)
    size = op.Max(op.Min(op.Abs(v), 0.5), tiny(v))
    by_series = op.Div(op.Mul(op.Div(op.Atanh(size), size), 2.0), total)
    direct = op.Div(op.Sub(op.Log(x), op.Log(r)), op.Where(near, 1.0, d))
    return op.Where(near, by_series, direct)


def jump_secant(op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor, at_tie: Tensor | float) -> Tensor:
    """Compute the plain quotient, for every x ≠ r: steps and jumps have no better form."""
    d = op.Sub(x, r)
    tie = op.Equal(d, 0.0)
    return op.Where(tie, at_tie, op.Div(op.Sub(y, y_r), op.Where(tie, 1.0, d)))
