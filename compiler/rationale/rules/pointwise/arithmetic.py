"""Sums, products and remainders. The walk undoes broadcasting, so no rule here mentions shapes."""

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules.rule import Evaluation, Kind, Trait, rule
from rationale.rules.secants import jump_secant, relu_secant

BILINEAR = Kind.BILINEAR
ELEMENTWISE = Trait.ELEMENTWISE


def identity_pullback(m: Tensor) -> Tensor:
    return m


@rule("Add", kind=BILINEAR, traits=[ELEMENTWISE])
def add(op: Ops, a: Tensor, b: Tensor) -> Evaluation:
    """Compute y = a + b."""
    return op.Add(a, b), (identity_pullback, identity_pullback)


@rule("Sub", kind=BILINEAR, traits=[ELEMENTWISE])
def sub(op: Ops, a: Tensor, b: Tensor) -> Evaluation:
    """Compute y = a − b."""
    return op.Sub(a, b), (identity_pullback, op.Neg)


@rule("Sum", kind=BILINEAR, traits=[ELEMENTWISE])
def sum_(op: Ops, *xs: Tensor) -> Evaluation:
    """Compute y = Σ x."""
    return op.Sum(*xs), tuple(identity_pullback for _ in xs)


@rule("Neg", kind=BILINEAR, traits=[ELEMENTWISE])
def neg(op: Ops, x: Tensor) -> Evaluation:
    """Compute y = −x."""
    return op.Neg(x), op.Neg


@rule("Mul", kind=BILINEAR, traits=[ELEMENTWISE, Trait.PRODUCT])
def mul(op: Ops, a: Tensor, b: Tensor) -> Evaluation:
    """Compute y = a·b."""

    def mul_pullback_a(m: Tensor) -> Tensor:
        return op.Mul(m, b)

    def mul_pullback_b(m: Tensor) -> Tensor:
        return op.Mul(m, a)

    return op.Mul(a, b), (mul_pullback_a, mul_pullback_b)


@rule("Div", kind=Kind.LOCAL, traits=[ELEMENTWISE, Trait.PRODUCT, Trait.LINEAR_IN_FIRST])
def div(op: Ops, a: Tensor, b: Tensor) -> Evaluation:
    """Compute y = a/b;  dy/da = 1/b, dy/db = −y/b."""
    y = op.Div(a, b)

    def div_pullback_a(m: Tensor) -> Tensor:
        return op.Div(m, b)

    def div_pullback_b(m: Tensor) -> Tensor:
        return op.Neg(op.Mul(m, op.Div(y, b)))

    return y, (div_pullback_a, div_pullback_b)


@div.deeplift
def div_shapley(
    op: Ops, m: Tensor, xs: list[Tensor], rs: list[Tensor], y: Tensor, y_r: Tensor
) -> tuple[Tensor, Tensor]:
    """Take the product a·(1/b) at its midpoint, 1/b by its secant −1/(b·b_r)."""
    (a, b), (a_r, b_r) = xs, rs
    inverse, inverse_r = op.Reciprocal(b), op.Reciprocal(b_r)
    middle = op.Mul(op.Add(inverse, inverse_r), 0.5) if b is not b_r else inverse
    slope = op.Mul(op.Mul(op.Add(a, a_r), -0.5), op.Mul(inverse, inverse_r))
    return op.Mul(m, middle), op.Mul(m, slope)


@rule("Max", kind=Kind.LOCAL, traits=[ELEMENTWISE, Trait.CONSERVING, Trait.EXPANDED])
def maximum(op: Ops, a: Tensor, b: Tensor) -> Evaluation:
    """Compute y = max(a, b); ties go to b."""

    def max_pullback_a(m: Tensor) -> Tensor:
        return op.Where(op.Greater(a, b), m, 0.0)

    def max_pullback_b(m: Tensor) -> Tensor:
        return op.Where(op.Greater(a, b), 0.0, m)

    return op.Max(a, b), (max_pullback_a, max_pullback_b)


@maximum.deeplift
def max_shapley(
    op: Ops, m: Tensor, xs: list[Tensor], rs: list[Tensor], y: Tensor, y_r: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the two-player Shapley value: each operand's slope, averaged over the other at x and at r."""
    (a, b), (a_r, b_r) = xs, rs
    slope_a = op.Add(
        relu_secant(op, op.Sub(a, b), op.Sub(a_r, b)), relu_secant(op, op.Sub(a, b_r), op.Sub(a_r, b_r))
    )
    slope_b = op.Add(
        relu_secant(op, op.Sub(b, a), op.Sub(b_r, a)), relu_secant(op, op.Sub(b, a_r), op.Sub(b_r, a_r))
    )
    return op.Mul(m, op.Mul(slope_a, 0.5)), op.Mul(m, op.Mul(slope_b, 0.5))


def _quotient(op: Ops, a: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """Return the integer q in a = q·b + y."""
    return op.Round(op.Div(op.Sub(a, y), b))


@rule("Mod", kind=Kind.LOCAL, traits=[ELEMENTWISE])
def mod(op: Ops, a: Tensor, b: Tensor, *, fmod: int = 0) -> Evaluation:
    """Compute y = a − q·b with q = ⌊a/b⌋, or fmod's integer part of a/b: a step;  dy/da = 1, dy/db = −q."""
    y = op.Mod(a, b, fmod=1) if fmod else op.Sub(a, op.Mul(b, op.Floor(op.Div(a, b))))

    def mod_pullback_a(m: Tensor) -> Tensor:
        return m

    def mod_pullback_b(m: Tensor) -> Tensor:
        return op.Neg(op.Mul(m, _quotient(op, a, b, y)))

    return y, (mod_pullback_a, mod_pullback_b)


@mod.deeplift
def mod_multiplier(
    op: Ops, m: Tensor, xs: list[Tensor], rs: list[Tensor], y: Tensor, y_r: Tensor, *, fmod: int = 0
) -> tuple[Tensor, Tensor]:
    """Take the product q·b at its midpoint; q by its secant in a/b, and a/b as a product with 1/b."""
    (a, b), (a_r, b_r) = xs, rs
    q, q_r = _quotient(op, a, b, y), _quotient(op, a_r, b_r, y_r)
    inverse, inverse_r = op.Reciprocal(b), op.Reciprocal(b_r)
    step = jump_secant(op, op.Div(a, b), op.Div(a_r, b_r), q, q_r, 0.0)
    middle = op.Mul(op.Add(inverse, inverse_r), 0.5)
    to_ratio = op.Mul(op.Mul(op.Add(b, b_r), -0.5), step)
    slope = op.Mul(op.Mul(op.Add(a, a_r), -0.5), op.Mul(inverse, inverse_r))
    to_b = op.Sub(op.Mul(to_ratio, slope), op.Mul(op.Add(q, q_r), 0.5))
    return op.Mul(m, op.Add(op.Mul(to_ratio, middle), 1.0)), op.Mul(m, to_b)
