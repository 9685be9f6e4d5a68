"""Normalisations, by statistics of the row itself or by those of training batches.

Layer-, RMS- and InstanceNormalization are y = γ·d·s + β with d = x − mean x (RMS: d = x) and
s = (mean d² + ε)^−½, over some axes.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rationale.errors import UnsupportedModelError
from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules.defaults import EPSILON, LRN_ALPHA, MOMENTUM
from rationale.rules.rule import Evaluation, Kind, Trait, local, rule
from rationale.rules.secants import exp_secant, log_secant, tiny


@rule("BatchNormalization", kind=Kind.BILINEAR, traits=[Trait.ELEMENTWISE, Trait.NORMALISING])
def batch_normalization(
    op: Ops,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = EPSILON,
    momentum: float = MOMENTUM,
    training_mode: int = 0,
) -> Evaluation:
    """Compute y = (x − mean)·scale/√(variance + ε) + bias, per channel."""
    if training_mode:
        raise UnsupportedModelError(
            "BatchNormalization in training mode mixes rows: export with model.eval()"
        )
    shape = [-1, *(1 for _ in range(x.rank - 2))]

    def batch_normalization_pullback(m: Tensor) -> Tensor:
        factor = op.Div(scale, op.Sqrt(op.Add(variance, epsilon)))
        return op.Mul(m, op.Reshape(factor, shape) if x.rank > 2 else factor)

    y = op.BatchNormalization(x, scale, bias, mean, variance, epsilon=epsilon, momentum=momentum)
    return y, (batch_normalization_pullback, None, None, None, None)


@dataclass(frozen=True)
class NormalisationSpec:
    """The way in which an operator standardises x.

    Attributes:
        axes: the axes of the statistics.
        scale: γ in a shape that broadcasts against x.
        centred: whether the mean is subtracted.
    """

    axes: tuple[int, ...]
    epsilon: float
    scale: Tensor
    centred: bool = True


def _deviation(op: Ops, x: Tensor, spec: NormalisationSpec) -> tuple[Tensor, Tensor]:
    """Return d, and s with length 1 on the axes."""
    d = op.Sub(x, op.ReduceMean(x, list(spec.axes), keepdims=1)) if spec.centred else x
    variance = op.ReduceMean(op.Mul(d, d), list(spec.axes), keepdims=1)
    return d, op.Reciprocal(op.Sqrt(op.Add(variance, spec.epsilon)))


def _from_centred(op: Ops, m: Tensor, spec: NormalisationSpec) -> Tensor:
    """Return the multiplier of x from that of d = x − mean x."""
    return op.Sub(m, op.ReduceMean(m, list(spec.axes), keepdims=1)) if spec.centred else m


def standard_multiplier(op: Ops, m: Tensor, x: Tensor, r: Tensor, spec: NormalisationSpec) -> Tensor:
    """Take the product d·s at its midpoint.

    The factor s enters by its secant −(s·s_r)²/(s + s_r) in mean d², and d² by d + d_r.
    """
    g = op.Mul(m, spec.scale)
    (d, s), (d_r, s_r) = _deviation(op, x, spec), _deviation(op, r, spec)
    product, sums = op.Mul(s, s_r), op.Add(d, d_r)
    slope = op.Div(op.Mul(product, product), op.Add(s, s_r))
    to_s = op.ReduceSum(op.Mul(g, op.Mul(sums, 0.5)), list(spec.axes), keepdims=1)
    through_s = op.Mul(op.Mul(to_s, op.Mul(slope, -1.0 / math.prod(x.shape[a] for a in spec.axes))), sums)
    direct = op.Mul(g, op.Mul(op.Add(s, s_r), 0.5))
    return _from_centred(op, op.Add(direct, through_s), spec)


def standard_relevance(op: Ops, m: Tensor, x: Tensor, spec: NormalisationSpec) -> Tensor:
    """Keep s constant: y is linear in x (Ali et al., 2022; AttnLRP, arXiv 2402.05602, section 3.3)."""
    _, s = _deviation(op, x, spec)
    return _from_centred(op, op.Mul(op.Mul(m, spec.scale), s), spec)


def _layer(
    op: Ops,
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = EPSILON,
    **_: Any,
) -> NormalisationSpec:
    return NormalisationSpec(tuple(range(axis % x.rank, x.rank)), epsilon, scale, centred=True)


def _rms(
    op: Ops, x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = EPSILON, **_: Any
) -> NormalisationSpec:
    return NormalisationSpec(tuple(range(axis % x.rank, x.rank)), epsilon, scale, centred=False)


def _instance(
    op: Ops, x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = EPSILON, **_: Any
) -> NormalisationSpec:
    per_channel = op.Reshape(scale, [-1, *(1 for _ in x.shape[2:])])
    return NormalisationSpec(tuple(range(2, x.rank)), epsilon, per_channel)


def _declare_normalisation(
    op_type: str, formula: str, describe: Callable[..., NormalisationSpec], traits: Iterable[Trait] = ()
) -> None:
    """Declare a normalisation by the way it standardises x; scale and bias are constants."""

    def multiplier(
        op: Ops, m: Tensor, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor, *parameters: Tensor, **options: Any
    ) -> Tensor:
        return standard_multiplier(op, m, x, r, describe(op, x, *parameters, **options))

    def relevance(op: Ops, m: Tensor, xs: list[Tensor], y: Tensor, **options: Any) -> tuple[Tensor]:
        return (standard_relevance(op, m, xs[0], describe(op, *xs, **options)),)

    multiplier.__doc__ = formula
    local(op_type, traits=traits)(multiplier).relevance(relevance)


_declare_normalisation("RMSNormalization", "y = γ·x/√(mean x² + ε) over the last axes.", _rms)
for _op_type, _describe, _over in (
    ("LayerNormalization", _layer, "the last axes"),
    ("InstanceNormalization", _instance, "the places of each channel"),
):
    _formula = f"y = γ·(x − mean x)/√(var x + ε) + β over {_over}."
    _declare_normalisation(_op_type, _formula, _describe, [Trait.CENTRING])


@local("LpNormalization", traits=[Trait.CONSERVING])
def lp_normalization(
    op: Ops, m: Tensor, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor, *, axis: int = -1, p: int = 2
) -> Tensor:
    """Compute y = x/‖x‖_p along an axis; 0 if all are 0.

    The product x·s is taken at its midpoint, s = 1/‖x‖ (0 at 0) by its secant in ‖x‖, and ‖x‖ by its own.
    """
    along = [axis % x.rank]
    (size, s), (size_r, s_r) = (_size(op, v, axis, p) for v in (x, r))
    product = op.Mul(s, s_r)
    slope = op.Where(op.Greater(product, 0.0), op.Neg(product), op.Add(op.Mul(s, s), op.Mul(s_r, s_r)))
    total = op.Add(x, r)
    of_size = [op.Abs(x), op.Abs(r)] if p == 1 else [size, size_r]
    in_x = op.Div(total, op.Add(op.Add(*of_size), tiny(x)))
    to_size = op.Mul(op.ReduceSum(op.Mul(m, op.Mul(total, 0.5)), along, keepdims=1), slope)
    return op.Add(op.Mul(m, op.Mul(op.Add(s, s_r), 0.5)), op.Mul(to_size, in_x))


@lp_normalization.relevance
def lp_normalization_relevance(
    op: Ops, m: Tensor, xs: list[Tensor], y: Tensor, *, axis: int = -1, p: int = 2
) -> tuple[Tensor]:
    """Compute y = x·s with s = 1/‖x‖ constant, like the deviation of other normalisations."""
    return (op.Mul(m, _size(op, xs[0], axis, p)[1]),)


def _size(op: Ops, x: Tensor, axis: int, p: int) -> tuple[Tensor, Tensor]:
    """Return ‖x‖_p along an axis, and its inverse; 0 at 0."""
    size = (op.ReduceL1 if p == 1 else op.ReduceL2)(x, [axis % x.rank], keepdims=1)
    return size, op.Where(op.Greater(size, 0.0), op.Reciprocal(op.Add(size, tiny(x))), 0.0)


@local("LRN", traits=[Trait.CONSERVING])
def lrn(
    op: Ops,
    m: Tensor,
    x: Tensor,
    r: Tensor,
    y: Tensor,
    y_r: Tensor,
    *,
    size: int,
    alpha: float = LRN_ALPHA,
    beta: float = 0.75,
    bias: float = 1.0,
) -> Tensor:
    """Compute y = x · s^−β with s = bias + α/size · Σ_window x², the window running over channels.

    The product x·p is taken at its midpoint, p = e^(−β·ln s) by the chain of secants, s by x² (x + r).
    """
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


@lrn.relevance
def lrn_relevance(
    op: Ops,
    m: Tensor,
    xs: list[Tensor],
    y: Tensor,
    *,
    size: int,
    alpha: float = LRN_ALPHA,
    beta: float = 0.75,
    bias: float = 1.0,
) -> tuple[Tensor]:
    """Compute y = x · s^−β with s constant: relevance that neighbours suppress is not attributed to them."""
    s = op.Add(op.Conv(op.Mul(xs[0], xs[0]), _window(op, xs[0], size, alpha / size)), bias)
    return (op.Mul(m, op.Pow(s, -beta)),)


def _window(op: Ops, x: Tensor, size: int, weight: float, back: bool = False) -> Tensor:
    """Return the sum over neighbouring channels as a 1×1 kernel [C, C, 1, …]; transposed on the way back."""
    channels = x.shape[1]
    below, above = (size - 1) // 2, size - 1 - (size - 1) // 2
    offset = np.arange(channels)[None, :] - np.arange(channels)[:, None]
    band = ((offset >= -below) & (offset <= above)).astype(x.dtype.numpy()) * x.dtype.numpy().type(weight)
    band = band.T if back else band
    return op.constant(np.ascontiguousarray(band).reshape(channels, channels, *(1 for _ in x.shape[2:])))
