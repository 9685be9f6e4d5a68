"""Trigonometric and hyperbolic functions, with secants by their addition theorems."""

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules.pointwise.unary import declare_unary
from rationale.rules.rule import Trait
from rationale.rules.secants import over_argument, tiny


def _half_difference(op: Ops, x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """Return (x + r)/2 and (x − r)/2."""
    return op.Mul(op.Add(x, r), 0.5), op.Mul(op.Sub(x, r), 0.5)


def _below_one(op: Ops, x: Tensor) -> Tensor:
    """Return √(1 − x²), by factors that do not cancel."""
    return op.Sqrt(op.Mul(op.Sub(1.0, x), op.Add(1.0, x)))


def _above_one(op: Ops, x: Tensor) -> Tensor:
    """Return √(x² − 1)."""
    return op.Sqrt(op.Mul(op.Sub(x, 1.0), op.Add(x, 1.0)))


def _tan_gradient(op: Ops, x: Tensor) -> Tensor:
    cosine = op.Cos(x)
    return op.Reciprocal(op.Mul(cosine, cosine))


def _tan_secant(op: Ops, x: Tensor, r: Tensor, *_: Tensor) -> Tensor:
    """Compute the secant by tan x − tan r = sin(x − r)/(cos x·cos r)."""
    return op.Div(over_argument(op, "Sin", op.Sub(x, r)), op.Mul(op.Cos(x), op.Cos(r)))


def _sinh_secant(op: Ops, x: Tensor, r: Tensor, *_: Tensor) -> Tensor:
    """Compute the secant by sinh x − sinh r = 2·cosh((x + r)/2)·sinh((x − r)/2)."""
    middle, half = _half_difference(op, x, r)
    return op.Mul(op.Cosh(middle), over_argument(op, "Sinh", half))


def _cosh_secant(op: Ops, x: Tensor, r: Tensor, *_: Tensor) -> Tensor:
    """Compute the secant by cosh x − cosh r = 2·sinh((x + r)/2)·sinh((x − r)/2)."""
    middle, half = _half_difference(op, x, r)
    return op.Mul(op.Sinh(middle), over_argument(op, "Sinh", half))


def _asin_secant(op: Ops, x: Tensor, r: Tensor, *_: Tensor) -> Tensor:
    """Compute the secant by tan((A − B)/2) = (sin A − sin B)/(cos A + cos B), for |A − B| < π."""
    total = op.Add(op.Add(_below_one(op, x), _below_one(op, r)), tiny(x))
    return op.Mul(over_argument(op, "Atan", op.Div(op.Sub(x, r), total)), op.Div(2.0, total))


def _acos_secant(op: Ops, x: Tensor, r: Tensor, *_: Tensor) -> Tensor:
    """Compute the secant by acos x = π/2 − asin x."""
    return op.Neg(_asin_secant(op, x, r))


def _atanh_secant(op: Ops, x: Tensor, r: Tensor, *_: Tensor) -> Tensor:
    """Compute the secant by atanh x − atanh r = atanh((x − r)/(1 − x·r))."""
    denominator = op.Sub(1.0, op.Mul(x, r))
    return op.Div(over_argument(op, "Atanh", op.Div(op.Sub(x, r), denominator)), denominator)


def _acosh_secant(op: Ops, x: Tensor, r: Tensor, *_: Tensor) -> Tensor:
    """Compute the secant by sinh(A − B) = (x² − r²)/(√(x² − 1)·r + x·√(r² − 1))."""
    mixed = op.Add(op.Mul(_above_one(op, x), r), op.Mul(x, _above_one(op, r)))
    slope = op.Div(op.Add(x, r), op.Add(mixed, tiny(x)))
    return op.Mul(over_argument(op, "Asinh", op.Mul(op.Sub(x, r), slope)), slope)


declare_unary("Sin", "y = sin x;  dy/dx = cos x.", lambda op, x: op.Cos(x), traits=[Trait.SMOOTH])
declare_unary("Cos", "y = cos x;  dy/dx = −sin x.", lambda op, x: op.Neg(op.Sin(x)), traits=[Trait.SMOOTH])
declare_unary("Tan", "y = tan x;  dy/dx = 1/cos² x.", _tan_gradient, _tan_secant)
declare_unary("Sinh", "y = sinh x;  dy/dx = cosh x.", lambda op, x: op.Cosh(x), _sinh_secant)
declare_unary("Cosh", "y = cosh x;  dy/dx = sinh x.", lambda op, x: op.Sinh(x), _cosh_secant)
declare_unary(
    "Asin",
    "y = asin x;  dy/dx = 1/√(1 − x²).",
    lambda op, x: op.Reciprocal(_below_one(op, x)),
    _asin_secant,
)
declare_unary(
    "Acos",
    "y = acos x;  dy/dx = −1/√(1 − x²).",
    lambda op, x: op.Neg(op.Reciprocal(_below_one(op, x))),
    _acos_secant,
)
declare_unary(
    "Atan",
    "y = atan x;  dy/dx = 1/(1 + x²).",
    lambda op, x: op.Reciprocal(op.Add(op.Mul(x, x), 1.0)),
    traits=[Trait.SMOOTH],
)
declare_unary(
    "Asinh",
    "y = asinh x;  dy/dx = 1/√(1 + x²).",
    lambda op, x: op.Reciprocal(op.Sqrt(op.Add(op.Mul(x, x), 1.0))),
    traits=[Trait.SMOOTH],
)
declare_unary(
    "Acosh",
    "y = acosh x;  dy/dx = 1/√(x² − 1).",
    lambda op, x: op.Reciprocal(_above_one(op, x)),
    _acosh_secant,
)
declare_unary(
    "Atanh",
    "y = atanh x;  dy/dx = 1/(1 − x²).",
    lambda op, x: op.Reciprocal(op.Mul(op.Sub(1.0, x), op.Add(1.0, x))),
    _atanh_secant,
)
