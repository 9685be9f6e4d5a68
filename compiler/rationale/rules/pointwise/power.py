"""Exponentials, logarithms and powers."""

from rationale.errors import UnsupportedModelError
from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules.rule import Evaluation, Kind, rule
from rationale.rules.secants import exp_secant, log_secant, tiny

POINTWISE = Kind.POINTWISE
MOST_EXPONENTS = 8


@rule("Exp", kind=POINTWISE)
def exp(op: Ops, x: Tensor) -> Evaluation:
    """Compute y = e^x = dy/dx."""
    y = op.Exp(x)

    def exp_pullback(m: Tensor) -> Tensor:
        return op.Mul(m, y)

    return y, exp_pullback


@exp.secant
def exp_slope(op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor) -> Tensor:
    return exp_secant(op, op.Sub(x, r), y, y_r)


@rule("Log", kind=POINTWISE)
def log(op: Ops, x: Tensor) -> Evaluation:
    """Compute y = ln x;  dy/dx = 1/x."""

    def log_pullback(m: Tensor) -> Tensor:
        return op.Div(m, x)

    return op.Log(x), log_pullback


@log.secant
def log_slope(op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor) -> Tensor:
    return log_secant(op, x, r)


@rule("Sqrt", kind=POINTWISE)
def sqrt(op: Ops, x: Tensor) -> Evaluation:
    """Compute y = √x;  dy/dx = 1/(2√x). It stays finite at 0, so that √(x²) has the derivative 0 there."""
    y = op.Sqrt(x)

    def sqrt_pullback(m: Tensor) -> Tensor:
        return op.Div(m, op.Add(op.Mul(y, 2.0), tiny(x)))

    return y, sqrt_pullback


@sqrt.secant
def sqrt_slope(op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor) -> Tensor:
    """Compute the secant 1/(√x + √r)."""
    return op.Reciprocal(op.Add(op.Add(y, y_r), tiny(x)))


@rule("Reciprocal", kind=POINTWISE)
def reciprocal(op: Ops, x: Tensor) -> Evaluation:
    """Compute y = 1/x;  dy/dx = −y²."""
    y = op.Reciprocal(x)

    def reciprocal_pullback(m: Tensor) -> Tensor:
        return op.Neg(op.Mul(m, op.Mul(y, y)))

    return y, reciprocal_pullback


@reciprocal.secant
def reciprocal_slope(op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor) -> Tensor:
    """Compute the secant −1/(x·r)."""
    return op.Neg(op.Mul(y, y_r))


def exponents(power: Tensor) -> list[float]:
    """Return the distinct exponents of a Pow.

    Raises:
        UnsupportedModelError: if they are computed, or too many.
    """
    value = power.constant
    distinct = [] if value is None else sorted({float(v) for v in value.reshape(-1)})
    if not 1 <= len(distinct) <= MOST_EXPONENTS:
        raise UnsupportedModelError(f"Pow needs one to {MOST_EXPONENTS} different constant exponents")
    return distinct


def _integer_power_secant(op: Ops, x: Tensor, r: Tensor, n: int) -> Tensor:
    """Compute (xⁿ − rⁿ)/(x − r) = sₙ, by s₁ = 1, s₂ₙ = sₙ·(xⁿ + rⁿ) and sₙ₊₁ = sₙ·x + rⁿ."""
    slope, x_n, r_n = op.array([1.0], x), x, r
    for bit in bin(n)[3:]:
        slope, x_n, r_n = op.Mul(slope, op.Add(x_n, r_n)), op.Mul(x_n, x_n), op.Mul(r_n, r_n)
        if bit == "1":
            slope, x_n, r_n = op.Add(op.Mul(slope, x), r_n), op.Mul(x_n, x), op.Mul(r_n, r)
    return slope


@rule("Pow", kind=POINTWISE)
def power(op: Ops, x: Tensor, n: Tensor) -> Evaluation:
    """Compute y = xⁿ;  dy/dx = n·xⁿ⁻¹. For 0 < n < 1 it stays finite at 0: (x²)^½ has the derivative 0."""
    distinct = exponents(n)
    power = n if n.dtype == x.dtype else op.Cast(n, to=int(x.dtype))

    def pow_pullback(m: Tensor) -> Tensor:
        base = x
        if any(0 < exponent < 1 for exponent in distinct):
            is_root = op.And(op.Greater(power, 0.0), op.Less(power, 1.0))
            base = op.Max(x, tiny(x)) if len(distinct) == 1 else op.Where(is_root, op.Max(x, tiny(x)), x)
        return op.Mul(m, op.Mul(op.Pow(base, op.Sub(power, 1.0)), power))

    return op.Pow(x, n), (pow_pullback, None)


@power.secant
def pow_slope(op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor, n: Tensor) -> Tensor:
    """Compute the secant of each element by its exponent."""
    first, *further = exponents(n)
    slope = _power_secant(op, x, r, y, y_r, first)
    for c in further:
        slope = op.Where(op.Equal(n, c), _power_secant(op, x, r, y, y_r, c), slope)
    return slope


def _power_secant(op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor, c: float) -> Tensor:
    """Compute integer powers by a sum of products, others (x, r ≥ 0, or > 0) through e^(n·ln x)."""
    if c in (0.0, 1.0):
        return op.array([c], x)
    if c.is_integer():
        if c > 0:
            return _integer_power_secant(op, x, r, int(c))
        inner = _integer_power_secant(op, x, r, int(-c)) if c < -1 else 1.0
        return op.Neg(op.Mul(op.Mul(y, y_r), inner))
    if c > 0:  # avoids ln 0 = −∞ if both are 0
        x, r = (op.Max(v, tiny(v)) for v in (x, r))
    d = op.Mul(op.Sub(op.Log(x), op.Log(r)), c)
    return op.Mul(exp_secant(op, d, y, y_r), op.Mul(log_secant(op, x, r), c))
