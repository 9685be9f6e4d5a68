"""Conditions: comparisons, logic and choices. A condition counts as 1 if it is true, else as 0.

Attributions add up through a condition that flips between x and its reference; its gradient is 0.
"""

from collections.abc import Callable

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules.pointwise.unary import zero_pullback
from rationale.rules.rule import Evaluation, Kind, Trait, rule
from rationale.rules.secants import difference

DISCRETE, ELEMENTWISE = Trait.DISCRETE, Trait.ELEMENTWISE


def number(op: Ops, x: Tensor) -> Tensor:
    """Return `x` as floats: conditions become 0 and 1, integers keep their value."""
    return x if x.dtype.is_floating_point() else op.Cast(x, to=int(op.dtype))


def halfway(op: Ops, a: Tensor, a_r: Tensor) -> Tensor:
    """Return (a + a_r)/2 as floats."""
    a = number(op, a)
    return a if a_r is a else op.Mul(op.Add(a, number(op, a_r)), 0.5)


def _declare_comparison(op_type: str, formula: str) -> None:
    """Declare a comparison: a step of the difference of its operands."""

    def forward(op: Ops, a: Tensor, b: Tensor) -> Evaluation:
        return getattr(op, op_type)(a, b), (zero_pullback(op, a), zero_pullback(op, b))

    def deeplift(
        op: Ops, m: Tensor, xs: list[Tensor], rs: list[Tensor], y: Tensor, y_r: Tensor
    ) -> tuple[Tensor, Tensor]:
        rises = [difference(op, number(op, x), number(op, r)) for x, r in zip(xs, rs, strict=True)]
        distance = op.Sub(*rises)
        still = op.Equal(distance, 0.0)
        change = op.Sub(number(op, y), number(op, y_r))
        slope = op.Where(still, 0.0, op.Div(change, op.Where(still, 1.0, distance)))
        to_a = op.Mul(m, slope)
        return to_a, op.Neg(to_a)

    forward.__doc__ = formula
    rule(op_type, kind=Kind.LOCAL, traits=[DISCRETE, ELEMENTWISE])(forward).deeplift(deeplift)


_declare_comparison("Greater", "y = 1 if a > b, else 0: a step of a − b.")
_declare_comparison("Less", "y = 1 if a < b, else 0: a step of a − b.")
_declare_comparison("GreaterOrEqual", "y = 1 if a ≥ b, else 0: a step of a − b.")
_declare_comparison("LessOrEqual", "y = 1 if a ≤ b, else 0: a step of a − b.")
_declare_comparison("Equal", "y = 1 if a = b, else 0: a step of a − b up to 0, and one down.")


@rule("Not", kind=Kind.BILINEAR, traits=[DISCRETE, ELEMENTWISE])
def not_(op: Ops, a: Tensor) -> Evaluation:
    """Compute y = 1 − a."""
    return op.Not(a), op.Neg


def _declare_logic(op_type: str, formula: str, slope: Callable[[Ops, Tensor], Tensor]) -> None:
    """Declare a logical operator as a product: linear in each operand, with a slope by the other."""

    def forward(op: Ops, a: Tensor, b: Tensor) -> Evaluation:
        def pullback_a(m: Tensor) -> Tensor:
            return op.Mul(m, slope(op, number(op, b)))

        def pullback_b(m: Tensor) -> Tensor:
            return op.Mul(m, slope(op, number(op, a)))

        return getattr(op, op_type)(a, b), (pullback_a, pullback_b)

    def deeplift(
        op: Ops, m: Tensor, xs: list[Tensor], rs: list[Tensor], y: Tensor, y_r: Tensor
    ) -> tuple[Tensor, Tensor]:
        a, b = (halfway(op, x, r) for x, r in zip(xs, rs, strict=True))
        return op.Mul(m, slope(op, b)), op.Mul(m, slope(op, a))

    forward.__doc__ = formula
    rule(op_type, kind=Kind.LOCAL, traits=[DISCRETE, ELEMENTWISE])(forward).deeplift(deeplift)


_declare_logic("And", "y = a·b.", lambda _, other: other)
_declare_logic("Or", "y = a + b − a·b.", lambda op, other: op.Sub(1.0, other))
_declare_logic("Xor", "y = a + b − 2·a·b.", lambda op, other: op.Sub(1.0, op.Mul(other, 2.0)))


@rule(
    "Where", kind=Kind.LOCAL, traits=[DISCRETE, ELEMENTWISE, Trait.CONSERVING, Trait.EXPANDED, Trait.CHOOSING]
)
def where(op: Ops, condition: Tensor, a: Tensor, b: Tensor) -> Evaluation:
    """Compute y = c·a + (1 − c)·b with a condition c."""

    def where_pullback_c(m: Tensor) -> Tensor:
        return op.Mul(m, op.Sub(a, b))

    def where_pullback_a(m: Tensor) -> Tensor:
        return op.Where(condition, m, 0.0)

    def where_pullback_b(m: Tensor) -> Tensor:
        return op.Where(condition, 0.0, m)

    return op.Where(condition, a, b), (where_pullback_c, where_pullback_a, where_pullback_b)


@where.deeplift
def where_multiplier(
    op: Ops, m: Tensor, xs: list[Tensor], rs: list[Tensor], y: Tensor, y_r: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Take the product at its midpoint; c has a multiplier only if it flips: a and b may be infinite."""
    (c, a, b), (c_r, a_r, b_r) = xs, rs
    if c_r is c:
        return m, op.Where(c, m, 0.0), op.Where(c, 0.0, m)
    to_a = op.Mul(m, halfway(op, c, c_r))
    gain = op.Sub(halfway(op, a, a_r), halfway(op, b, b_r))
    to_c = op.Where(op.Xor(c, c_r), op.Mul(m, gain), 0.0)
    return to_c, to_a, op.Sub(m, to_a)
