"""Sums, means, products and similar reductions over axes, and sums along one axis."""

import math
from collections.abc import Sequence

import numpy as np

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules.moving.shape import ints
from rationale.rules.rule import Evaluation, Kind, Selection, Trait, local, rule
from rationale.rules.secants import difference, phi, tiny


def reduced_axes(x: Tensor, axes: Tensor | None, noop: int) -> list[int]:
    """Return the axes as non-negative numbers.

    Raises:
        UnsupportedModelError: if they are computed.
    """
    if axes is None or 0 in axes.shape:
        return [] if noop else list(range(x.rank))
    return sorted(a % x.rank for a in ints(axes, "axes"))


def shape_with_ones(x: Tensor, axes: Sequence[int]) -> list[int]:
    """Return the row shape with 1 on the reduced axes."""
    return [1 if i in axes else n for i, n in enumerate(x.shape)]


@rule("ReduceSum", kind=Kind.BILINEAR, traits=[Trait.AVERAGING])
def reduce_sum(
    op: Ops, x: Tensor, axes: Tensor | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Evaluation:
    """Compute y = Σ x over the axes."""
    reduced = reduced_axes(x, axes, noop_with_empty_axes)

    def reduce_sum_pullback(m: Tensor) -> Tensor:
        return op.reshape(m, shape_with_ones(x, reduced))

    y = op.ReduceSum(x, reduced, keepdims=keepdims, noop_with_empty_axes=1)
    return y, (reduce_sum_pullback, None)


@rule("ReduceMean", kind=Kind.BILINEAR, traits=[Trait.AVERAGING])
def reduce_mean(
    op: Ops, x: Tensor, axes: Tensor | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Evaluation:
    """Compute y = the mean of x over the axes."""
    reduced = reduced_axes(x, axes, noop_with_empty_axes)

    def reduce_mean_pullback(m: Tensor) -> Tensor:
        count = math.prod(x.shape[a] for a in reduced)
        return op.reshape(op.Mul(m, 1.0 / count), shape_with_ones(x, reduced))

    y = op.ReduceMean(x, reduced, keepdims=keepdims, noop_with_empty_axes=1)
    return y, (reduce_mean_pullback, None)


@rule("ReduceMax", kind=Kind.SELECTION, traits=[Trait.MASKED])
def reduce_max(
    op: Ops, x: Tensor, axes: Tensor | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Evaluation:
    """Compute y = the largest of x over the axes; each element of y has one winner."""
    reduced = reduced_axes(x, axes, noop_with_empty_axes)
    outer_axes = [i for i in range(x.rank) if i not in reduced]
    order, outer = [*outer_axes, *reduced], [x.shape[i] for i in outer_axes]
    count = math.prod(x.shape[i] for i in reduced)
    flat = op.reshape(op.Transpose(x, perm=order), [*outer, count])
    y = op.ReduceMax(x, reduced, keepdims=keepdims, noop_with_empty_axes=1)
    winners = op.ArgMax(flat, axis=-1, keepdims=1)

    def scatter(v: Tensor, to: Tensor) -> Tensor:
        zeros = op.row_constant(np.zeros((*outer, count), x.dtype.numpy()))
        filled = op.ScatterElements(zeros, to, op.reshape(v, [*outer, 1]), axis=len(outer), reduction="add")
        restored = op.reshape(filled, [x.shape[i] for i in order])
        return op.Transpose(restored, perm=[order.index(i) for i in range(x.rank)])

    return y, (Selection(winners, scatter), None)


@local("ReduceL2", traits=[Trait.NONNEGATIVE, Trait.LENGTH, Trait.CONSERVING, Trait.EXPANDED])
def reduce_l2(
    op: Ops,
    m: Tensor,
    x: Tensor,
    r: Tensor,
    y: Tensor,
    y_r: Tensor,
    axes: Tensor | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Tensor:
    """Compute y = √Σ x² over the axes;  dy/dx = x/y, 0 if all are 0.

    √Σx² − √Σr² = Σ (x + r)(x − r)/(y + y_r).
    """
    reduced = reduced_axes(x, axes, noop_with_empty_axes)
    numerator, total = (x, y) if r is x else (op.Add(x, r), op.Add(y, y_r))
    return op.Mul(op.reshape(op.Div(m, op.Add(total, tiny(y))), shape_with_ones(x, reduced)), numerator)


@local("ReduceLogSumExp")
def reduce_log_sum_exp(
    op: Ops,
    m: Tensor,
    x: Tensor,
    r: Tensor,
    y: Tensor,
    y_r: Tensor,
    axes: Tensor | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Tensor:
    """Compute y = ln Σ e^x over the axes;  dy/dx = e^(x − y).

    The secant is a chain through ln, Σ and exp: w_j = L(e^z, e^z_r)/L(Σ, Σ_r).
    """
    shape = shape_with_ones(x, reduced_axes(x, axes, noop_with_empty_axes))
    weight = log_mean_ratio(op, x, r, op.reshape(y, shape), op.reshape(y_r, shape))
    return op.Mul(op.reshape(m, shape), weight)


def log_mean_ratio(op: Ops, z: Tensor, z_r: Tensor, lse: Tensor, lse_r: Tensor) -> Tensor:
    """Return L(e^z, e^z_r)/L(e^lse, e^lse_r) = e^(max(z, z_r) − max(lse, lse_r))·φ(Δz)/φ(Δlse)."""
    if z_r is z:
        return op.Exp(op.Sub(z, lse))
    size = op.Exp(op.Sub(op.Max(z, z_r), op.Max(lse, lse_r)))
    return op.Mul(size, op.Div(phi(op, difference(op, z, z_r)), phi(op, op.Sub(lse, lse_r))))


@local("ReduceProd")
def reduce_prod(
    op: Ops,
    m: Tensor,
    x: Tensor,
    r: Tensor,
    y: Tensor,
    y_r: Tensor,
    axes: Tensor | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Tensor:
    """Compute y = Π x over the axes;  dy/dx_i = Π of the others.

    Between x and r, one half of that at x and one half at r.
    """
    reduced = reduced_axes(x, axes, noop_with_empty_axes)
    outer_axes = [i for i in range(x.rank) if i not in reduced]
    order = [*outer_axes, *reduced]
    lined = [*(x.shape[i] for i in outer_axes), math.prod(x.shape[i] for i in reduced)]
    x_lined = op.reshape(op.Transpose(x, perm=order), lined)
    r_lined = x_lined if r is x else op.reshape(op.Transpose(r, perm=order), lined)
    factors = op.reshape(_products_of_others(op, x_lined, r_lined), [x.shape[i] for i in order])
    restored = op.Transpose(factors, perm=[int(i) for i in np.argsort(order)])
    return op.Mul(op.reshape(m, shape_with_ones(x, reduced)), restored)


def _products_of_others(op: Ops, x: Tensor, r: Tensor) -> Tensor:
    """Return ½(Π_{j<i} r_j·Π_{j>i} x_j + Π_{j<i} x_j·Π_{j>i} r_j): times Δ_i it adds up to Πx − Πr.

    These are two telescoping sums, one from either end: exact, without a quotient; for two factors, the
    Shapley value.
    """
    products = op.Mul(_before(op, r), _before(op, x, back=True))
    if r is x:
        return products
    return op.Mul(op.Add(products, op.Mul(_before(op, x), _before(op, r, back=True))), 0.5)


def _before(op: Ops, x: Tensor, back: bool = False) -> Tensor:
    """Return Π of all elements before each one on the last axis (behind it, with `back`); 1 for none."""
    x = _shift(op, x, 1, back)
    step, count = 1, x.shape[-1]
    while step < count:
        x = op.Mul(x, _shift(op, x, step, back))
        step *= 2
    return x


def _shift(op: Ops, x: Tensor, by: int, back: bool) -> Tensor:
    """Shift x along the last axis; ones fill the gap."""
    no_pads = [0] * (x.rank - 1)
    begin, end = (-by, by) if back else (by, -by)
    return op.Pad(x, [*no_pads, begin, *no_pads, end], np.asarray(1, x.dtype.numpy()))


@rule("CumSum", kind=Kind.BILINEAR)
def cumulative_sum(op: Ops, x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Evaluation:
    """Compute y_i = Σ_{j ≤ i} x_j; the adjoint sums from the other end."""
    (along,) = ints(axis, "axes")
    axis_of_sum = np.asarray(along % x.rank, np.int64)

    def cumulative_sum_pullback(m: Tensor) -> Tensor:
        return op.CumSum(m, axis_of_sum, exclusive=exclusive, reverse=1 - reverse)

    return op.CumSum(x, axis_of_sum, exclusive=exclusive, reverse=reverse), (cumulative_sum_pullback, None)
