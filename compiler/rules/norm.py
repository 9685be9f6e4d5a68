"""Normalisations."""

import numpy as np

from compiler.graph import Ops
from compiler.rule import Evaluation, Kind, Trait, rule
from compiler.rules.secants import exp_secant, log_secant
from compiler.tensor import Tensor


@rule("LRN", kind=Kind.LOCAL, traits=[Trait.CONSERVING])
def lrn(
    op: Ops, x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Evaluation:
    """y = x · s^−β with s = bias + α/size · Σ_window x², the window running over channels."""

    def lrn_pullback(m: Tensor) -> Tensor:
        return _multiplier(op, m, x, x, size, alpha, beta, bias)

    return op.LRN(x, size=size, alpha=alpha, beta=beta, bias=bias), lrn_pullback


@lrn.deeplift
def lrn_multiplier(
    op: Ops,
    m: Tensor,
    xs: list[Tensor],
    rs: list[Tensor],
    y: Tensor,
    y_r: Tensor,
    *,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    bias: float = 1.0,
) -> tuple[Tensor]:
    """The product x·p at its midpoint, p = e^(−β·ln s) by the chain of secants, s by x² (x + r)."""
    return (_multiplier(op, m, xs[0], rs[0], size, alpha, beta, bias),)


@lrn.relevance
def lrn_relevance(
    op: Ops,
    m: Tensor,
    xs: list[Tensor],
    y: Tensor,
    *,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    bias: float = 1.0,
) -> tuple[Tensor]:
    """y = x · s^−β with s held constant: what a neuron loses by its neighbours is not theirs to explain."""
    s = op.Add(op.Conv(op.Mul(xs[0], xs[0]), _window(op, xs[0], size, alpha / size)), bias)
    return (op.Mul(m, op.Pow(s, -beta)),)


def _multiplier(
    op: Ops, m: Tensor, x: Tensor, r: Tensor, size: int, alpha: float, beta: float, bias: float
) -> Tensor:
    window = _window(op, x, size, alpha / size)
    s, s_r = (op.Add(op.Conv(op.Mul(v, v), window), bias) for v in (x, r))
    log_s, log_s_r = op.Log(s), op.Log(s_r)
    p, p_r = (op.Exp(op.Mul(v, -beta)) for v in (log_s, log_s_r))
    p_of_log = exp_secant(op, op.Mul(op.Sub(log_s, log_s_r), -beta), p, p_r)
    slope = op.Mul(op.Mul(p_of_log, log_secant(op, s, s_r)), -beta)
    total = op.Add(x, r)
    through_s = op.Conv(
        op.Mul(op.Mul(m, op.Mul(total, 0.5)), slope), _window(op, x, size, alpha / size, back=True)
    )
    return op.Add(op.Mul(m, op.Mul(op.Add(p, p_r), 0.5)), op.Mul(through_s, total))


def _window(op: Ops, x: Tensor, size: int, weight: float, back: bool = False) -> Tensor:
    """The sum over neighbouring channels as a 1×1 kernel [C, C, 1, …]; transposed on the way back."""
    channels = x.shape[1]
    below, above = (size - 1) // 2, size - 1 - (size - 1) // 2
    offset = np.arange(channels)[None, :] - np.arange(channels)[:, None]
    band = ((offset >= -below) & (offset <= above)).astype(x.dtype.numpy()) * x.dtype.numpy().type(weight)
    band = band.T if back else band
    return op.constant(np.ascontiguousarray(band).reshape(channels, channels, *(1 for _ in x.shape[2:])))
