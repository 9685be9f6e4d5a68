"""The remainder of a division."""

from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.rules.rule import Evaluation, Kind, Trait, rule
from compiler.rules.secants import jump_secant


def _quotient(op: Ops, a: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """The whole number q in a = q·b + y."""
    return op.Round(op.Div(op.Sub(a, y), b))


@rule("Mod", kind=Kind.LOCAL, traits=[Trait.ELEMENTWISE])
def mod(op: Ops, a: Tensor, b: Tensor, *, fmod: int = 0) -> Evaluation:
    """y = a − q·b with q = ⌊a/b⌋, or with fmod the whole part of a/b: a step;  dy/da = 1, dy/db = −q."""
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
    """The product q·b at its midpoint; q by its secant in a/b, and a/b as a product with 1/b."""
    (a, b), (a_r, b_r) = xs, rs
    q, q_r = _quotient(op, a, b, y), _quotient(op, a_r, b_r, y_r)
    inverse, inverse_r = op.Reciprocal(b), op.Reciprocal(b_r)
    step = jump_secant(op, op.Div(a, b), op.Div(a_r, b_r), q, q_r, 0.0)
    middle = op.Mul(op.Add(inverse, inverse_r), 0.5)
    to_ratio = op.Mul(op.Mul(op.Add(b, b_r), -0.5), step)
    slope = op.Mul(op.Mul(op.Add(a, a_r), -0.5), op.Mul(inverse, inverse_r))
    to_b = op.Sub(op.Mul(to_ratio, slope), op.Mul(op.Add(q, q_r), 0.5))
    return op.Mul(m, op.Add(op.Mul(to_ratio, middle), 1.0)), op.Mul(m, to_b)
