"""Products of many: Σ is replaced by Π, and one player's value by what the others leave it."""

import math
from collections.abc import Sequence

import numpy as np

from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.rules.reducing.reduce import kept, reduced_axes
from compiler.rules.rule import Evaluation, Kind, rule


def _before(op: Ops, x: Tensor, back: bool = False) -> Tensor:
    """Π of all that stands before each element on the last axis (behind it, with `back`); 1 for none."""
    x = _shifted(op, x, 1, back)
    step, count = 1, x.shape[-1]
    while step < count:
        x = op.Mul(x, _shifted(op, x, step, back))
        step *= 2
    return x


def _shifted(op: Ops, x: Tensor, by: int, back: bool) -> Tensor:
    """Moved along the last axis, ones moving in."""
    others = [0] * (x.rank - 1)
    begin, end = (-by, by) if back else (by, -by)
    return op.Pad(x, [*others, begin, *others, end], np.asarray(1, x.dtype.numpy()))


def _products_of_others(op: Ops, x: Tensor, r: Tensor) -> Tensor:
    """½(Π_{j<i} r_j·Π_{j>i} x_j + Π_{j<i} x_j·Π_{j>i} r_j): times Δ_i it adds up to Πx − Πr.

    Two telescoping sums, one from either end: exact, without a quotient, the Shapley value of two factors.
    """
    one = op.Mul(_before(op, r), _before(op, x, back=True))
    if r is x:
        return one
    return op.Mul(op.Add(one, op.Mul(_before(op, x), _before(op, r, back=True))), 0.5)


@rule("ReduceProd", kind=Kind.LOCAL)
def reduce_prod(
    op: Ops, x: Tensor, axes: Tensor | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Evaluation:
    """y = Π x over the axes;  dy/dx_i = Π of the others."""
    chosen = reduced_axes(x, axes, noop_with_empty_axes)

    def reduce_prod_pullback(m: Tensor) -> Tensor:
        return _multiplier(op, m, x, x, chosen)

    return op.ReduceProd(x, chosen, keepdims=keepdims, noop_with_empty_axes=1), (reduce_prod_pullback, None)


@reduce_prod.deeplift
def reduce_prod_multiplier(
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
    """Each factor's change, times the others half at x and half at r: two telescoping sums."""
    chosen = reduced_axes(xs[0], xs[1] if len(xs) > 1 else None, noop_with_empty_axes)
    return _multiplier(op, m, xs[0], rs[0], chosen), None


def _multiplier(op: Ops, m: Tensor, x: Tensor, r: Tensor, chosen: Sequence[int]) -> Tensor:
    others = [i for i in range(x.rank) if i not in chosen]
    order = [*others, *chosen]
    lined = [*(x.shape[i] for i in others), math.prod(x.shape[i] for i in chosen)]
    x_lined = op.reshape(op.Transpose(x, perm=order), lined)
    r_lined = x_lined if r is x else op.reshape(op.Transpose(r, perm=order), lined)
    factors = op.reshape(_products_of_others(op, x_lined, r_lined), [x.shape[i] for i in order])
    restored = op.Transpose(factors, perm=[int(i) for i in np.argsort(order)])
    return op.Mul(op.reshape(m, kept(x, chosen)), restored)
