"""Exponentials, logarithms and powers."""

import numpy as np

from compiler.errors import UnsupportedModelError
from compiler.graph import Ops
from compiler.rule import Evaluation, Kind, rule
from compiler.rules.secants import exp_secant, log_secant, tiny
from compiler.tensor import Tensor

POINTWISE = Kind.POINTWISE


@rule("Exp", kind=POINTWISE)
def exp(op: Ops, x: Tensor) -> Evaluation:
    """y = e^x = dy/dx."""
    y = op.Exp(x)

    def exp_pullback(m: Tensor) -> Tensor:
        return op.Mul(m, y)

    return y, exp_pullback


@exp.secant
def exp_slope(op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor) -> Tensor:
    return exp_secant(op, op.Sub(x, r), y, y_r)


@rule("Log", kind=POINTWISE)
def log(op: Ops, x: Tensor) -> Evaluation:
    """y = ln x;  dy/dx = 1/x."""

    def log_pullback(m: Tensor) -> Tensor:
        return op.Div(m, x)

    return op.Log(x), log_pullback


@log.secant
def log_slope(op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor) -> Tensor:
    return log_secant(op, x, r)


@rule("Sqrt", kind=POINTWISE)
def sqrt(op: Ops, x: Tensor) -> Evaluation:
    """y = √x;  dy/dx = 1/(2√x)."""
    y = op.Sqrt(x)

    def sqrt_pullback(m: Tensor) -> Tensor:
        return op.Div(m, op.Mul(y, 2.0))

    return y, sqrt_pullback


@sqrt.secant
def sqrt_slope(op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor) -> Tensor:
    """1/(√x + √r)."""
    return op.Reciprocal(op.Add(op.Add(y, y_r), tiny(x)))


@rule("Reciprocal", kind=POINTWISE)
def reciprocal(op: Ops, x: Tensor) -> Evaluation:
    """y = 1/x;  dy/dx = −y²."""
    y = op.Reciprocal(x)

    def reciprocal_pullback(m: Tensor) -> Tensor:
        return op.Neg(op.Mul(m, op.Mul(y, y)))

    return y, reciprocal_pullback


@reciprocal.secant
def reciprocal_slope(op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor) -> Tensor:
    """−1/(x·r)."""
    return op.Neg(op.Mul(y, y_r))


def exponent(power: Tensor) -> float:
    """The one exponent of a Pow.

    Raises:
        UnsupportedModelError: the exponent is computed, or differs between elements.
    """
    value = power.constant
    if value is None or np.unique(value).size != 1:
        raise UnsupportedModelError("Pow needs one constant exponent")
    return float(value.flat[0])


def _integer_power_secant(op: Ops, x: Tensor, r: Tensor, n: int) -> Tensor:
    """(xⁿ − rⁿ)/(x − r) = Σ_{i<n} xⁱ rⁿ⁻¹⁻ⁱ, by Horner's scheme in x with the powers of r."""
    total, r_power = op.Mul(op.Add(x, r), 1.0), r
    for _ in range(n - 2):
        r_power = op.Mul(r_power, r)
        total = op.Add(op.Mul(total, x), r_power)
    return total


@rule("Pow", kind=POINTWISE)
def power(op: Ops, x: Tensor, n: Tensor) -> Evaluation:
    """y = xⁿ;  dy/dx = n·xⁿ⁻¹."""
    c = exponent(n)

    def pow_pullback(m: Tensor) -> Tensor:
        return op.Mul(m, op.Mul(op.Pow(x, c - 1), c))

    return op.Pow(x, n), (pow_pullback, None)


@power.secant
def pow_slope(op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor, n: Tensor) -> Tensor:
    """Integers by a sum of products; any other exponent (x, r > 0) through e^(n·ln x)."""
    c = exponent(n)
    if c in (0.0, 1.0):
        return op.array([c], x)
    if c.is_integer() and abs(c) <= 16:
        if c > 0:
            return _integer_power_secant(op, x, r, int(c))
        inner = _integer_power_secant(op, x, r, int(-c)) if c < -1 else 1.0
        return op.Neg(op.Mul(op.Mul(y, y_r), inner))
    d = op.Mul(op.Sub(op.Log(x), op.Log(r)), c)
    return op.Mul(exp_secant(op, d, y, y_r), op.Mul(log_secant(op, x, r), c))
