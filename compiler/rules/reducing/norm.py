"""Normalisations."""

import numpy as np

from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.rules.rule import Evaluation, Kind, Trait, rule
from compiler.rules.secants import exp_secant, log_secant, tiny


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


@rule("LpNormalization", kind=Kind.LOCAL)
def lp_normalization(op: Ops, x: Tensor, *, axis: int = -1, p: int = 2) -> Evaluation:
    """y = x/‖x‖_p along an axis; 0 where all are 0."""

    def lp_normalization_pullback(m: Tensor) -> Tensor:
        return _normalised(op, m, x, x, axis, p)

    return op.LpNormalization(x, axis=axis, p=p), lp_normalization_pullback


@lp_normalization.deeplift
def lp_normalization_multiplier(
    op: Ops,
    m: Tensor,
    xs: list[Tensor],
    rs: list[Tensor],
    y: Tensor,
    y_r: Tensor,
    *,
    axis: int = -1,
    p: int = 2,
) -> tuple[Tensor]:
    """The product x·s at its midpoint, s = 1/‖x‖ (0 at 0) by its secant in ‖x‖, and that by its own."""
    return (_normalised(op, m, xs[0], rs[0], axis, p),)


def _normalised(op: Ops, m: Tensor, x: Tensor, r: Tensor, axis: int, p: int) -> Tensor:
    along, length = [axis % x.rank], op.ReduceL1 if p == 1 else op.ReduceL2
    size, size_r = (length(v, along, keepdims=1) for v in (x, r))
    s, s_r = (op.Where(op.Greater(n, 0.0), op.Reciprocal(op.Add(n, tiny(x))), 0.0) for n in (size, size_r))
    both = op.Mul(s, s_r)
    slope = op.Where(op.Greater(both, 0.0), op.Neg(both), op.Add(op.Mul(s, s), op.Mul(s_r, s_r)))
    total = op.Add(x, r)
    of_size = [op.Abs(x), op.Abs(r)] if p == 1 else [size, size_r]
    in_x = op.Div(total, op.Add(op.Add(*of_size), tiny(x)))
    to_size = op.Mul(op.ReduceSum(op.Mul(m, op.Mul(total, 0.5)), along, keepdims=1), slope)
    return op.Add(op.Mul(m, op.Mul(op.Add(s, s_r), 0.5)), op.Mul(to_size, in_x))


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
