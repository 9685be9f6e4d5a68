"""Normalisations by the statistics of the row itself: Layer-, RMS- and InstanceNormalization.

All are y = γ·d·s + β with d = x − mean x (RMS: d = x) and s = (mean d² + ε)^−½, over some axes.
The operator's own value stays; its pullbacks are written from d and s.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.errors import UnsupportedModelError
from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.rules.rule import Evaluation, Kind, Rule, Trait, rule


@dataclass(frozen=True)
class Standard:
    """How an operator standardises x.

    Attributes:
        axes: over which statistics are taken.
        scale: γ in a shape that broadcasts against x.
        centred: whether the mean is taken off.
    """

    axes: tuple[int, ...]
    epsilon: float
    scale: Tensor
    centred: bool = True


def _deviation(op: Ops, x: Tensor, how: Standard) -> tuple[Tensor, Tensor]:
    """d, and s with 1 on the axes."""
    d = op.Sub(x, op.ReduceMean(x, list(how.axes), keepdims=1)) if how.centred else x
    variance = op.ReduceMean(op.Mul(d, d), list(how.axes), keepdims=1)
    return d, op.Reciprocal(op.Sqrt(op.Add(variance, how.epsilon)))


def _scaled(op: Ops, m: Tensor, how: Standard) -> Tensor:
    """The multiplier of d·s."""
    return op.Mul(m, how.scale)


def _from_centred(op: Ops, m: Tensor, how: Standard) -> Tensor:
    """The multiplier of x from that of d = x − mean x."""
    return op.Sub(m, op.ReduceMean(m, list(how.axes), keepdims=1)) if how.centred else m


def standard_multiplier(op: Ops, m: Tensor, x: Tensor, r: Tensor, how: Standard) -> Tensor:
    """The product d·s at its midpoint, s by its secant −(s·s_r)²/(s + s_r) in mean d², d² by d + d_r.

    At r = x it is the gradient.
    """
    g = _scaled(op, m, how)
    (d, s), (d_r, s_r) = _deviation(op, x, how), _deviation(op, r, how)
    both, total = op.Mul(s, s_r), op.Add(d, d_r)
    slope = op.Div(op.Mul(both, both), op.Add(s, s_r))
    to_s = op.ReduceSum(op.Mul(g, op.Mul(total, 0.5)), list(how.axes), keepdims=1)
    through_s = op.Mul(op.Mul(to_s, op.Mul(slope, -1.0 / math.prod(x.shape[a] for a in how.axes))), total)
    direct = op.Mul(g, op.Mul(op.Add(s, s_r), 0.5))
    return _from_centred(op, op.Add(direct, through_s), how)


def standard_relevance(op: Ops, m: Tensor, x: Tensor, how: Standard) -> Tensor:
    """With s held constant y is linear in x (Ali et al., 2022; AttnLRP, arXiv 2402.05602, section 3.3)."""
    _, s = _deviation(op, x, how)
    return _from_centred(op, op.Mul(_scaled(op, m, how), s), how)


def _axis(x: Tensor, axis: int) -> tuple[int, ...]:
    return tuple(range(axis % x.rank, x.rank))


def _layer(
    op: Ops,
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    **_: Any,
) -> Standard:
    return Standard(_axis(x, axis), epsilon, scale)


def _rms(op: Ops, x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, **_: Any) -> Standard:
    return Standard(_axis(x, axis), epsilon, scale, centred=False)


def _instance(
    op: Ops, x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5, **_: Any
) -> Standard:
    per_channel = op.Reshape(scale, [-1, *(1 for _ in x.shape[2:])])
    return Standard(tuple(range(2, x.rank)), epsilon, per_channel)


def _standardising(op_type: str, formula: str, describe: Any, traits: Iterable[Trait] = ()) -> Rule:
    """Declares a normalisation: its value, and its pullback with r = x."""

    def forward(op: Ops, x: Tensor, *parameters: Tensor | None, **attributes: Any) -> Evaluation:
        how = describe(op, x, *parameters, **attributes)

        def pullback(m: Tensor) -> Tensor:
            return standard_multiplier(op, m, x, x, how)

        pullback.__name__ = f"{op_type.lower()}_pullback"
        y = getattr(op, op_type)(x, *parameters, **attributes)
        return y, (pullback, *(None for _ in parameters))

    def deeplift(
        op: Ops,
        m: Tensor,
        xs: Sequence[Tensor],
        rs: Sequence[Tensor],
        y: Tensor,
        y_r: Tensor,
        **attributes: Any,
    ) -> tuple[Tensor | None, ...]:
        _demand_fixed(xs, rs)
        how = describe(op, *xs, **attributes)
        return standard_multiplier(op, m, xs[0], rs[0], how), *(None for _ in xs[1:])

    def relevance(
        op: Ops, m: Tensor, xs: Sequence[Tensor], y: Tensor, **attributes: Any
    ) -> tuple[Tensor | None, ...]:
        how = describe(op, *xs, **attributes)
        return standard_relevance(op, m, xs[0], how), *(None for _ in xs[1:])

    forward.__doc__ = formula
    declared = rule(op_type, kind=Kind.LOCAL, traits=traits)(forward)
    declared.deeplift(deeplift)
    declared.relevance(relevance)
    return declared


def _demand_fixed(xs: Sequence[Tensor], rs: Sequence[Tensor]) -> None:
    """Raises UnsupportedModelError where scale or bias depends on what is explained."""
    if any(a is not b for a, b in zip(xs[1:], rs[1:], strict=True)):
        raise UnsupportedModelError("its scale or bias depends on what is explained")


_standardising("RMSNormalization", "y = γ·x/√(mean x² + ε) over the last axes.", _rms)
for _op_type, _describe, _over in (
    ("LayerNormalization", _layer, "the last axes"),
    ("InstanceNormalization", _instance, "the places of each channel"),
):
    _formula = f"y = γ·(x − mean x)/√(var x + ε) + β over {_over}."
    _standardising(_op_type, _formula, _describe, [Trait.CENTRING])
