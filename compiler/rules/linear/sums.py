"""Sums along an axis, and products summed over chosen indices."""

import string
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.errors import UnsupportedModelError
from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.rules.moving.shape import ints
from compiler.rules.rule import Evaluation, Kind, Trait, rule


@rule("CumSum", kind=Kind.BILINEAR)
def cumulative_sum(op: Ops, x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Evaluation:
    """y_i = Σ_{j ≤ i} x_j; the adjoint sums from the other end."""
    (along,) = ints(axis, "axes")
    place = np.asarray(along % x.rank, np.int64)

    def cumulative_sum_pullback(m: Tensor) -> Tensor:
        return op.CumSum(m, place, exclusive=exclusive, reverse=1 - reverse)

    return op.CumSum(x, place, exclusive=exclusive, reverse=reverse), (cumulative_sum_pullback, None)


@dataclass(frozen=True)
class Equation:
    """An Einsum's labels, one letter for each axis; an ellipsis has letters of its own."""

    inputs: tuple[str, ...]
    output: str


def parse_equation(equation: str, ranks: Sequence[int]) -> Equation:
    """Writes out what an equation leaves to its reader: the ellipsis and the output."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    free = [c for c in string.ascii_letters if c not in equation]
    widths = [n - len(t.replace("...", "")) for n, t in zip(ranks, terms, strict=True)]
    dots = "".join(free[: max((w for w, t in zip(widths, terms, strict=True) if "..." in t), default=0)])
    if not arrow:
        once = sorted(c for c in set(left) - set(",.") if left.count(c) == 1)
        right = ("..." if "..." in left else "") + "".join(once)
    written = [t.replace("...", dots[len(dots) - w :]) for t, w in zip(terms, widths, strict=True)]
    return Equation(tuple(written), right.replace("...", dots))


@rule("Einsum", kind=Kind.BILINEAR, traits=[Trait.PRODUCT])
def einsum(op: Ops, *xs: Tensor, equation: str) -> Evaluation:
    """y = Σ Π x over the indices that the output lacks; linear in each operand."""
    parsed = parse_equation(equation, [x.rank for x in xs])
    written = f"{','.join(parsed.inputs)}->{parsed.output}"
    y = op.Einsum(*xs, equation=written)
    return y, tuple(_adjoint(op, xs, parsed, i) for i in range(len(xs)))


def _adjoint(op: Ops, xs: Sequence[Tensor], equation: Equation, i: int) -> object:
    def einsum_pullback(m: Tensor) -> Tensor:
        x, others = xs[i], [j for j in range(len(xs)) if j != i]
        terms, tensors = (
            [equation.output, *(equation.inputs[j] for j in others)],
            [m, *(xs[j] for j in others)],
        )
        target, diagonals = _without_repetition(equation.inputs[i], equation)
        for first, second in diagonals:  # x_ii takes what arrives at i where both indices agree
            terms.append(first + second)
            tensors.append(op.constant(np.eye(x.shape[target.index(second)], dtype=x.dtype.numpy())))
        for axis, label in enumerate(target):  # an index of x alone was summed over
            if not any(label in term for term in terms):
                terms.append(label)
                tensors.append(op.constant(np.ones(x.shape[axis], x.dtype.numpy())))
        return op.Einsum(*tensors, equation=f"{','.join(terms)}->{target}")

    return einsum_pullback


def _without_repetition(term: str, equation: Equation) -> tuple[str, list[tuple[str, str]]]:
    """The term with a new letter for each index that comes again, and pairs of old and new."""
    used = set(equation.output).union(*equation.inputs)
    free = iter(c for c in string.ascii_letters if c not in used)
    written, pairs = "", []
    for label in term:
        if label in written:
            fresh = next(free, None)
            if fresh is None:
                raise UnsupportedModelError("an equation with more than 52 indices")
            pairs.append((label, fresh))
            label = fresh
        written += label
    return written, pairs
