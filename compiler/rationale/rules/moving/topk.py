"""Operators that depend on the order of values."""

import numpy as np

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules.pointwise.unary import zero_pullback
from rationale.rules.rule import Evaluation, Kind, Trait, rule
from rationale.rules.secants import tiny


@rule("TopK", kind=Kind.LOCAL, traits=[Trait.CONSERVING, Trait.EXPANDED])
def top_k(op: Ops, x: Tensor, k: Tensor, *, axis: int = -1, **options: int) -> Evaluation:
    """Compute y = P·x, the k largest (smallest) along an axis; the selection P is constant around x."""
    y, index = op.emit("TopK", (x, k), {"axis": axis, **options}, outputs=2)

    def top_k_pullback(m: Tensor) -> Tensor:
        return _scatter(op, m, index, x, axis)

    return y, (top_k_pullback, None)


def _scatter(op: Ops, m: Tensor, index: Tensor, x: Tensor, axis: int) -> Tensor:
    """Return Pᵀ·m."""
    zeros = op.row_constant(np.zeros(x.shape, x.dtype.numpy()))
    return op.ScatterElements(zeros, index, op.expand(m, index.shape), axis=axis % x.rank)


@top_k.deeplift
def top_k_multiplier(
    op: Ops,
    m: Tensor,
    xs: list[Tensor],
    rs: list[Tensor],
    y: Tensor,
    y_r: Tensor,
    *,
    axis: int = -1,
    **options: int,
) -> tuple[Tensor, None]:
    """Return ½(P_x + P_r)ᵀ·m, plus the rest of m·Δy spread evenly over |Δ|: exact and bounded."""
    along, (x, r) = [axis % xs[0].rank], (xs[0], rs[0])
    at_x, at_r = (op.emit("TopK", (v, xs[1]), {"axis": axis, **options}, outputs=2)[1] for v in (x, r))
    half = op.Mul(op.Add(_scatter(op, m, at_x, x, axis), _scatter(op, m, at_r, x, axis)), 0.5)
    d = op.Sub(x, r)
    change = op.ReduceSum(op.Mul(m, op.Sub(y, y_r)), along, keepdims=1)
    missing = op.Sub(change, op.ReduceSum(op.Mul(half, d), along, keepdims=1))
    size = op.Max(op.ReduceSum(op.Abs(d), along, keepdims=1), tiny(x))
    return op.Add(half, op.Mul(op.Sign(d), op.Div(missing, size))), None


@rule("Hardmax", kind=Kind.LOCAL)
def hardmax(op: Ops, x: Tensor, *, axis: int = -1) -> Evaluation:
    """Compute y = 1 at the first of the largest along an axis, else 0: a step."""
    return op.Hardmax(x, axis=axis), zero_pullback(op, x)


@hardmax.deeplift
def hardmax_multiplier(
    op: Ops, m: Tensor, xs: list[Tensor], rs: list[Tensor], y: Tensor, y_r: Tensor, *, axis: int = -1
) -> tuple[Tensor]:
    """Compute the secant of a step in the lead of x's winner over r's.

    It is Δy·(Σ m·Δy)/(Σ Δy·Δx); 0 if the same element wins at both.
    """
    along, change = [axis % xs[0].rank], op.Sub(y, y_r)
    gain = op.ReduceSum(op.Mul(m, change), along, keepdims=1)
    lead = op.ReduceSum(op.Mul(change, op.Sub(xs[0], rs[0])), along, keepdims=1)
    decided = op.Greater(lead, 0.0)
    return (op.Mul(change, op.Where(decided, op.Div(gain, op.Where(decided, lead, 1.0)), 0.0)),)
