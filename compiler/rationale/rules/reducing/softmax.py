"""Softmax, with DeepLIFT's multiplier in closed form."""

import math

import numpy as np

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules.rule import Evaluation, Kind, Trait, rule
from rationale.rules.secants import phi

SHORT = 32  # elements of a row up to which operators run along the references instead


@rule("Softmax", kind=Kind.LOCAL, traits=[Trait.SHARING, Trait.EXPANDED])
def softmax(op: Ops, x: Tensor, *, axis: int = -1) -> Evaluation:
    """Compute p = e^z/Σe^z;  m_z = p·(m − Σ p·m).

    Relevance R_i = z_i·(R_i − p_i·Σ R_j) (AttnLRP, proposition 3.1) with R = m·p is the same rule; in
    multiplier form it needs no care for masks of −inf.
    """
    axis = axis % x.rank
    p = op.Softmax(x, axis=axis)

    def softmax_pullback(m: Tensor) -> Tensor:
        return op.Mul(p, op.Sub(m, op.ReduceSum(op.Mul(p, m), [axis], keepdims=1)))

    return p, softmax_pullback


@softmax.deeplift
def softmax_multiplier(
    op: Ops, m: Tensor, xs: list[Tensor], rs: list[Tensor], y: Tensor, y_r: Tensor, *, axis: int = -1
) -> tuple[Tensor]:
    """Compute m_z,j = L_j·m_j − w_j·Σ_i L_i·m_i, with p_i = e^(z_i − LSE) by the chain of secants."""
    axis = axis % xs[0].rank
    operands = (m, xs[0], rs[0], y, y_r)
    if "K" not in y_r.batch_axes or math.prod(y_r.shape) > SHORT:
        return (_multiplier(op, axis, *operands, at_once=False),)
    return (op.from_columns(_multiplier(op, axis, *map(op.in_columns, operands), at_once=True)),)


def _multiplier(
    op: Ops, axis: int, m: Tensor, z: Tensor, z_r: Tensor, p: Tensor, p_r: Tensor, *, at_once: bool
) -> Tensor:
    """Compute the multiplier of z by logarithmic means.

    L_i is the logarithmic mean of p_i and p_i,r, and w_j the multiplier of LSE, a quotient of such means:
    L(e^z_j, e^z_j,r)/L(Σ e^z, Σ e^z_r). Both use L(e^a, e^b) = e^max(a, b)·φ(a − b).

    The form with log p = z − LSE keeps its precision if p is near 0 or 1.

    Args:
        at_once: whether φ is computed for all differences at once.
    """
    z, z_r = (op.Max(v, float(np.finfo(z.dtype.numpy()).min) / 8) for v in (z, z_r))  # masks of −inf
    lse, lse_r = (op.ReduceLogSumExp(v, [axis], keepdims=1) for v in (z, z_r))
    d_z, d_lse = op.Sub(z, z_r), op.Sub(lse, lse_r)
    changes = [op.Sub(d_z, d_lse), d_z, d_lse]
    if at_once:
        lengths = [v.shape[axis] for v in changes]
        phis = op.emit("Split", [phi(op, op.Concat(*changes, axis=axis)), lengths], {"axis": axis}, outputs=3)
    else:
        phis = [phi(op, d) for d in changes]
    of_p, of_z, of_lse = phis
    w = op.Mul(op.Exp(op.Sub(op.Max(z, z_r), op.Max(lse, lse_r))), op.Div(of_z, of_lse))
    scaled = op.Mul(op.Mul(op.Max(p, p_r), of_p), m)
    return op.Sub(scaled, op.Mul(w, op.ReduceSum(scaled, [axis], keepdims=1)))
