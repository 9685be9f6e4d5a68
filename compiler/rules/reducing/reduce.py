"""Reductions over axes other than the batch's."""

import math
from collections.abc import Sequence

import numpy as np

from compiler.errors import UnsupportedModelError
from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.rules.rule import Evaluation, Kind, Selection, Trait, rule
from compiler.rules.secants import difference, phi, tiny


def reduced_axes(x: Tensor, axes: Tensor | None, noop: int) -> list[int]:
    """The axes as non-negative numbers.

    Raises:
        UnsupportedModelError: they are computed.
    """
    if axes is None or 0 in axes.shape:
        chosen = [] if noop else list(range(x.rank))
    elif axes.constant is None:
        raise UnsupportedModelError("a reduction over computed axes")
    else:
        chosen = sorted(int(a) % x.rank for a in axes.constant.reshape(-1))
    return chosen


def kept(x: Tensor, axes: Sequence[int]) -> list[int]:
    """The row shape with 1 on the reduced axes."""
    return [1 if i in axes else n for i, n in enumerate(x.shape)]


@rule("ReduceSum", kind=Kind.BILINEAR, traits=[Trait.AVERAGING])
def reduce_sum(
    op: Ops, x: Tensor, axes: Tensor | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Evaluation:
    """y = Σ x over the axes."""
    chosen = reduced_axes(x, axes, noop_with_empty_axes)

    def reduce_sum_pullback(m: Tensor) -> Tensor:
        return op.reshape(m, kept(x, chosen))

    y = op.ReduceSum(x, chosen, keepdims=keepdims, noop_with_empty_axes=1)
    return y, (reduce_sum_pullback, None)


@rule("ReduceMean", kind=Kind.BILINEAR, traits=[Trait.AVERAGING])
def reduce_mean(
    op: Ops, x: Tensor, axes: Tensor | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Evaluation:
    """y = the mean of x over the axes."""
    chosen = reduced_axes(x, axes, noop_with_empty_axes)

    def reduce_mean_pullback(m: Tensor) -> Tensor:
        count = math.prod(x.shape[a] for a in chosen)
        return op.reshape(op.Mul(m, 1.0 / count), kept(x, chosen))

    y = op.ReduceMean(x, chosen, keepdims=keepdims, noop_with_empty_axes=1)
    return y, (reduce_mean_pullback, None)


@rule("ReduceMax", kind=Kind.SELECTION, traits=[Trait.MASKED])
def reduce_max(
    op: Ops, x: Tensor, axes: Tensor | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Evaluation:
    """y = the largest over the axes, which are brought last and flattened: one winner for each y."""
    chosen = reduced_axes(x, axes, noop_with_empty_axes)
    others = [i for i in range(x.rank) if i not in chosen]
    order, outer = [*others, *chosen], [x.shape[i] for i in others]
    count = math.prod(x.shape[i] for i in chosen)
    flat = op.reshape(op.Transpose(x, perm=order), [*outer, count])
    y = op.ReduceMax(x, chosen, keepdims=keepdims, noop_with_empty_axes=1)
    winners = op.ArgMax(flat, axis=-1, keepdims=1)

    def scatter(v: Tensor, to: Tensor) -> Tensor:
        zeros = op.row_constant(np.zeros((*outer, count), x.dtype.numpy()))
        filled = op.ScatterElements(zeros, to, op.reshape(v, [*outer, 1]), axis=len(outer), reduction="add")
        restored = op.reshape(filled, [x.shape[i] for i in order])
        return op.Transpose(restored, perm=[order.index(i) for i in range(x.rank)])

    return y, (Selection(winners, scatter), None)


@rule("ReduceL2", kind=Kind.LOCAL, traits=[Trait.NONNEGATIVE])
def reduce_l2(
    op: Ops, x: Tensor, axes: Tensor | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Evaluation:
    """y = √Σ x² over the axes;  dy/dx = x/y, 0 where all are 0."""
    chosen = reduced_axes(x, axes, noop_with_empty_axes)
    y = op.ReduceL2(x, chosen, keepdims=keepdims, noop_with_empty_axes=1)

    def reduce_l2_pullback(m: Tensor) -> Tensor:
        return op.Mul(op.reshape(op.Div(m, op.Add(y, tiny(x))), kept(x, chosen)), x)

    return y, (reduce_l2_pullback, None)


@reduce_l2.deeplift
def reduce_l2_multiplier(
    op: Ops,
    m: Tensor,
    xs: list[Tensor],
    rs: list[Tensor],
    y: Tensor,
    y_r: Tensor,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> tuple[Tensor, None]:
    """√Σx² − √Σr² = Σ (x + r)(x − r)/(y + y_r)."""
    chosen = reduced_axes(xs[0], xs[1] if len(xs) > 1 else None, noop_with_empty_axes)
    share = op.Div(m, op.Add(op.Add(y, y_r), tiny(y)))
    return op.Mul(op.reshape(share, kept(xs[0], chosen)), op.Add(xs[0], rs[0])), None


@rule("ReduceLogSumExp", kind=Kind.LOCAL)
def reduce_log_sum_exp(
    op: Ops, x: Tensor, axes: Tensor | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Evaluation:
    """y = ln Σ e^x over the axes;  dy/dx = e^(x − y)."""
    chosen = reduced_axes(x, axes, noop_with_empty_axes)
    y = op.ReduceLogSumExp(x, chosen, keepdims=keepdims, noop_with_empty_axes=1)

    def reduce_log_sum_exp_pullback(m: Tensor) -> Tensor:
        shape = kept(x, chosen)
        return op.Mul(op.reshape(m, shape), op.Exp(op.Sub(x, op.reshape(y, shape))))

    return y, (reduce_log_sum_exp_pullback, None)


@reduce_log_sum_exp.deeplift
def log_sum_exp_multiplier(
    op: Ops,
    m: Tensor,
    xs: list[Tensor],
    rs: list[Tensor],
    y: Tensor,
    y_r: Tensor,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> tuple[Tensor, None]:
    """ln ∘ Σ ∘ exp by the chain of secants: w_j = L(e^z, e^z_r)/L(Σ, Σ_r)."""
    axes = xs[1] if len(xs) > 1 else None
    shape = kept(xs[0], reduced_axes(xs[0], axes, noop_with_empty_axes))
    total, total_r = op.reshape(y, shape), op.reshape(y_r, shape)
    weight = log_mean_ratio(op, xs[0], rs[0], total, total_r)
    return op.Mul(op.reshape(m, shape), weight), None


def log_mean_ratio(op: Ops, z: Tensor, z_r: Tensor, lse: Tensor, lse_r: Tensor) -> Tensor:
    """L(e^z, e^z_r)/L(e^lse, e^lse_r) = e^(max(z, z_r) − max(lse, lse_r))·φ(Δz)/φ(Δlse)."""
    size = op.Exp(op.Sub(op.Max(z, z_r), op.Max(lse, lse_r)))
    return op.Mul(size, op.Div(phi(op, difference(op, z, z_r)), phi(op, op.Sub(lse, lse_r))))
