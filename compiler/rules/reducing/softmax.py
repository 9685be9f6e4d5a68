"""Softmax, with DeepLIFT's multiplier in closed form."""

from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.rules.reducing.reduce import log_mean_ratio
from compiler.rules.rule import Evaluation, Kind, Trait, rule
from compiler.rules.secants import difference, phi


@rule("Softmax", kind=Kind.LOCAL, traits=[Trait.SHARING])
def softmax(op: Ops, x: Tensor, *, axis: int = -1) -> Evaluation:
    """p = e^z/Σe^z;  m_z = p·(m − Σ p·m)."""
    axis = axis % x.rank
    p = op.Softmax(x, axis=axis)

    def softmax_pullback(m: Tensor) -> Tensor:
        return _gradient(op, m, p, axis)

    return p, softmax_pullback


def _gradient(op: Ops, m: Tensor, p: Tensor, axis: int) -> Tensor:
    return op.Mul(p, op.Sub(m, op.ReduceSum(op.Mul(p, m), [axis], keepdims=1)))


@softmax.deeplift
def softmax_multiplier(
    op: Ops, m: Tensor, xs: list[Tensor], rs: list[Tensor], y: Tensor, y_r: Tensor, *, axis: int = -1
) -> tuple[Tensor]:
    """m_z,j = L_j·m_j − w_j·Σ_i L_i·m_i: p_i = e^(z_i − LSE) by the chain of secants.

    L_i is the logarithmic mean of p_i and p_i,r; w_j is the multiplier of LSE. Written with
    log p = z − LSE, which keeps its precision where p is near 0 or 1.
    """
    z, z_r = xs[0], rs[0]
    axis = axis % z.rank
    lse, lse_r = (op.ReduceLogSumExp(v, [axis], keepdims=1) for v in (z, z_r))
    d_log_p = op.Sub(difference(op, z, z_r), op.Sub(lse, lse_r))
    mean_p = op.Mul(op.Max(y, y_r), phi(op, d_log_p))
    w = log_mean_ratio(op, z, z_r, lse, lse_r)
    scaled = op.Mul(mean_p, m)
    return (op.Sub(scaled, op.Mul(w, op.ReduceSum(scaled, [axis], keepdims=1))),)


@softmax.relevance
def softmax_relevance(op: Ops, m: Tensor, xs: list[Tensor], y: Tensor, *, axis: int = -1) -> tuple[Tensor]:
    """R_i = z_i·(R_i − p_i·Σ R_j) (AttnLRP, proposition 3.1) with R = m·p: the gradient.

    As a multiplier it needs no care for masks of −inf.
    """
    return (_gradient(op, m, y, axis % y.rank),)
