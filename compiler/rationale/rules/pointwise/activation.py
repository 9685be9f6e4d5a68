"""Pointwise operators: formulas, derivatives, and closed forms of their secants."""

import math

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules.defaults import FIFTH, HUNDREDTH
from rationale.rules.pointwise.unary import declare_unary
from rationale.rules.rule import Evaluation, Kind, Trait, rule
from rationale.rules.secants import (
    exp_secant,
    jump_secant,
    over_argument,
    relu_secant,
    rescaled_relu,
    tiny,
)

POINTWISE = Kind.POINTWISE


def step(op: Ops, x: Tensor, threshold: float = 0.0) -> Tensor:
    """Return 1 where x > threshold, else 0."""
    return op.Cast(op.Greater(x, threshold), to=int(x.dtype))


@rule("Relu", kind=POINTWISE, traits=[Trait.HOMOGENEOUS, Trait.NONNEGATIVE, Trait.RISING])
def relu(op: Ops, x: Tensor) -> Evaluation:
    """Compute y = max(x, 0);  dy/dx = 1 where x > 0."""

    def relu_pullback(m: Tensor) -> Tensor:
        return op.Mul(m, step(op, x))

    return op.Relu(x), relu_pullback


@relu.deeplift
def relu_multiplier(
    op: Ops, m: Tensor, xs: list[Tensor], rs: list[Tensor], y: Tensor, y_r: Tensor
) -> tuple[Tensor]:
    """Compute the secant (x⁺ − r⁺)/(x − r), in fewer passes over memory than the general form."""
    x, r = xs[0], rs[0]
    return (rescaled_relu(op, m, x, r, geometry=bool(r.batch_axes - m.batch_axes - x.batch_axes)),)


@rule("LeakyRelu", kind=POINTWISE, traits=[Trait.HOMOGENEOUS])
def leaky_relu(op: Ops, x: Tensor, *, alpha: float = HUNDREDTH) -> Evaluation:
    """Compute y = max(x, 0) + α·min(x, 0);  dy/dx = 1 where x > 0, else α."""

    def leaky_relu_pullback(m: Tensor) -> Tensor:
        return op.Mul(m, op.Where(op.Greater(x, 0.0), 1.0, alpha))

    return op.LeakyRelu(x, alpha=alpha), leaky_relu_pullback


@leaky_relu.secant
def leaky_relu_slope(
    op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor, *, alpha: float = HUNDREDTH
) -> Tensor:
    return op.Add(op.Mul(relu_secant(op, x, r), 1 - alpha), alpha)


@rule("PRelu", kind=POINTWISE, traits=[Trait.HOMOGENEOUS])
def prelu(op: Ops, x: Tensor, slope: Tensor) -> Evaluation:
    """Compute y = max(x, 0) + slope·min(x, 0)."""

    def prelu_pullback(m: Tensor) -> Tensor:
        return op.Mul(m, op.Where(op.Greater(x, 0.0), 1.0, slope))

    return op.PRelu(x, slope), (prelu_pullback, None)


@prelu.secant
def prelu_slope(op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor, slope: Tensor) -> Tensor:
    return op.Add(op.Mul(relu_secant(op, x, r), op.Sub(1.0, slope)), slope)


@rule("ThresholdedRelu", kind=POINTWISE)
def thresholded_relu(op: Ops, x: Tensor, *, alpha: float = 1.0) -> Evaluation:
    """Compute y = x where x > α, else 0: it jumps at α."""

    def thresholded_relu_pullback(m: Tensor) -> Tensor:
        return op.Mul(m, step(op, x, alpha))

    return op.ThresholdedRelu(x, alpha=alpha), thresholded_relu_pullback


@thresholded_relu.secant
def thresholded_relu_slope(
    op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor, *, alpha: float = 1.0
) -> Tensor:
    return jump_secant(op, x, r, y, y_r, step(op, x, alpha))


@rule("Shrink", kind=POINTWISE)
def shrink(op: Ops, x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Evaluation:
    """Compute y = x + bias below −λ, x − bias above λ, else 0. It may jump at −λ and λ."""

    def shrink_pullback(m: Tensor) -> Tensor:
        return op.Mul(m, step(op, op.Abs(x), lambd))

    return op.Shrink(x, bias=bias, lambd=lambd), shrink_pullback


@shrink.secant
def shrink_slope(
    op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor, *, bias: float = 0.0, lambd: float = 0.5
) -> Tensor:
    return jump_secant(op, x, r, y, y_r, step(op, op.Abs(x), lambd))


@rule("Abs", kind=POINTWISE, traits=[Trait.HOMOGENEOUS, Trait.NONNEGATIVE])
def absolute(op: Ops, x: Tensor) -> Evaluation:
    """Compute y = |x|;  dy/dx = sign(x)."""

    def abs_pullback(m: Tensor) -> Tensor:
        return op.Mul(m, op.Sign(x))

    return op.Abs(x), abs_pullback


@absolute.secant
def abs_slope(op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor) -> Tensor:
    """Compute the secant by |x| − |r| = (x + r)(x − r)/(|x| + |r|)."""
    return op.Div(op.Add(x, r), op.Add(op.Add(y, y_r), tiny(x)))


@rule("Clip", kind=POINTWISE, traits=[Trait.RISING])
def clip(op: Ops, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Evaluation:
    """Compute y = min(max(x, low), high);  dy/dx = 1 strictly between."""

    def clip_pullback(m: Tensor) -> Tensor:
        for bound, is_inside in ((low, op.Greater), (high, op.Less)):
            if bound is not None:
                m = op.Mul(m, op.Cast(is_inside(x, bound), to=int(x.dtype)))
        return m

    return op.Clip(x, low, high), (clip_pullback, None, None)


@clip.secant
def clip_slope(
    op: Ops,
    x: Tensor,
    r: Tensor,
    y: Tensor,
    y_r: Tensor,
    low: Tensor | None = None,
    high: Tensor | None = None,
) -> Tensor:
    """Compute the secant by min(max(x, l), h) = l + (x − l)⁺ − (x − h)⁺."""
    ones = op.array([1.0], x)
    slope = ones if low is None else relu_secant(op, op.Sub(x, low), op.Sub(r, low))
    return slope if high is None else op.Sub(slope, relu_secant(op, op.Sub(x, high), op.Sub(r, high)))


@rule("HardSigmoid", kind=POINTWISE, traits=[Trait.NONNEGATIVE])
def hard_sigmoid(op: Ops, x: Tensor, *, alpha: float = FIFTH, beta: float = 0.5) -> Evaluation:
    """Compute y = min(max(αx + β, 0), 1)."""
    z = op.Add(op.Mul(x, alpha), beta)

    def hard_sigmoid_pullback(m: Tensor) -> Tensor:
        inside = op.And(op.Greater(z, 0.0), op.Less(z, 1.0))
        return op.Mul(m, op.Mul(op.Cast(inside, to=int(x.dtype)), alpha))

    return op.HardSigmoid(x, alpha=alpha, beta=beta), hard_sigmoid_pullback


@hard_sigmoid.secant
def hard_sigmoid_slope(
    op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor, *, alpha: float = FIFTH, beta: float = 0.5
) -> Tensor:
    z, z_r = (op.Add(op.Mul(v, alpha), beta) for v in (x, r))
    above_one = relu_secant(op, op.Sub(z, 1.0), op.Sub(z_r, 1.0))
    return op.Mul(op.Sub(relu_secant(op, z, z_r), above_one), alpha)


@rule("Sigmoid", kind=POINTWISE, traits=[Trait.NONNEGATIVE, Trait.RISING, Trait.SMOOTH])
def sigmoid(op: Ops, x: Tensor) -> Evaluation:
    """Compute y = σ(x) = 1/(1 + e^−x);  dy/dx = σ(x)σ(−x)."""
    y = op.Sigmoid(x)

    def sigmoid_pullback(m: Tensor) -> Tensor:
        return op.Mul(m, op.Mul(y, op.Sigmoid(op.Neg(x))))

    return y, sigmoid_pullback


@sigmoid.secant
def sigmoid_slope(op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor) -> Tensor:
    """Compute the secant by σ(x) − σ(r) = tanh(Δ/2)·(σ(x)σ(−r) + σ(−x)σ(r))."""
    mixed = op.Add(op.Mul(y, op.Sigmoid(op.Neg(r))), op.Mul(op.Sigmoid(op.Neg(x)), y_r))
    return op.Mul(op.Mul(over_argument(op, "Tanh", op.Mul(op.Sub(x, r), 0.5)), 0.5), mixed)


@rule("Tanh", kind=POINTWISE, traits=[Trait.RISING, Trait.SMOOTH])
def tanh(op: Ops, x: Tensor) -> Evaluation:
    """Compute y = tanh x;  dy/dx = 1 − y²."""
    y = op.Tanh(x)

    def tanh_pullback(m: Tensor) -> Tensor:
        return op.Mul(m, op.Sub(1.0, op.Mul(y, y)))

    return y, tanh_pullback


@tanh.secant
def tanh_slope(op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor) -> Tensor:
    """Compute the secant by tanh x − tanh r = tanh Δ·(1 − tanh x·tanh r)."""
    return op.Mul(over_argument(op, "Tanh", op.Sub(x, r)), op.Sub(1.0, op.Mul(y, y_r)))


def _elu_gradient(op: Ops, x: Tensor, alpha: float) -> Tensor:
    """Return 1 where x > 0, else α·e^x."""
    return op.Where(op.Greater(x, 0.0), 1.0, op.Mul(op.Exp(op.Min(x, 0.0)), alpha))


def _elu_secant(op: Ops, x: Tensor, r: Tensor, alpha: float) -> Tensor:
    """Compute the secant by a chain: x⁺ has the ReLU's secant s, min(x, 0) = x − x⁺ has 1 − s."""
    s = relu_secant(op, x, r)
    u, u_r = op.Min(x, 0.0), op.Min(r, 0.0)
    e = exp_secant(op, op.Sub(u, u_r), op.Exp(u), op.Exp(u_r))
    return op.Add(s, op.Mul(op.Mul(e, op.Sub(1.0, s)), alpha))


@rule("Elu", kind=POINTWISE)
def elu(op: Ops, x: Tensor, *, alpha: float = 1.0) -> Evaluation:
    """Compute y = x⁺ + α·(e^min(x, 0) − 1)."""

    def elu_pullback(m: Tensor) -> Tensor:
        return op.Mul(m, _elu_gradient(op, x, alpha))

    return op.Elu(x, alpha=alpha), elu_pullback


@elu.secant
def elu_slope(op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor, *, alpha: float = 1.0) -> Tensor:
    return _elu_secant(op, x, r, alpha)


SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


@rule("Selu", kind=POINTWISE)
def selu(op: Ops, x: Tensor, *, alpha: float = SELU_ALPHA, gamma: float = SELU_GAMMA) -> Evaluation:
    """Compute y = γ·(x⁺ + α·(e^min(x, 0) − 1))."""

    def selu_pullback(m: Tensor) -> Tensor:
        return op.Mul(op.Mul(m, gamma), _elu_gradient(op, x, alpha))

    return op.Selu(x, alpha=alpha, gamma=gamma), selu_pullback


@selu.secant
def selu_slope(
    op: Ops,
    x: Tensor,
    r: Tensor,
    y: Tensor,
    y_r: Tensor,
    *,
    alpha: float = SELU_ALPHA,
    gamma: float = SELU_GAMMA,
) -> Tensor:
    return op.Mul(_elu_secant(op, x, r, alpha), gamma)


@rule("Softsign", kind=POINTWISE)
def softsign(op: Ops, x: Tensor) -> Evaluation:
    """Compute y = x/(1 + |x|);  dy/dx = 1/(1 + |x|)²."""

    def softsign_pullback(m: Tensor) -> Tensor:
        size = op.Add(op.Abs(x), 1.0)
        return op.Div(m, op.Mul(size, size))

    return op.Softsign(x), softsign_pullback


@softsign.secant
def softsign_slope(op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor) -> Tensor:
    """Compute (1 + (x|r| − r|x|)/(x − r))/((1 + |x|)(1 + |r|)); the inner quotient is bounded."""
    mixed = op.Sub(op.Mul(x, op.Abs(r)), op.Mul(r, op.Abs(x)))
    d = op.Sub(x, r)
    inner = op.Div(mixed, op.Where(op.Equal(d, 0.0), 1.0, d))
    sizes = op.Mul(op.Add(op.Abs(x), 1.0), op.Add(op.Abs(r), 1.0))
    return op.Div(op.Add(inner, 1.0), sizes)


def _jump_slope(op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor) -> Tensor:
    return jump_secant(op, x, r, y, y_r, 0.0)


declare_unary("Sign", "y = sign x;  dy/dx = 0.", None, _jump_slope)
declare_unary("Floor", "y = ⌊x⌋;  dy/dx = 0.", None, _jump_slope)
declare_unary("Ceil", "y = ⌈x⌉;  dy/dx = 0.", None, _jump_slope)
declare_unary("Round", "y = x rounded, halves to even;  dy/dx = 0.", None, _jump_slope)
declare_unary(
    "Softplus", "y = ln(1 + e^x);  dy/dx = σ(x).", lambda op, x: op.Sigmoid(x), traits=[Trait.SMOOTH]
)
declare_unary(
    "Erf",
    "y = erf x;  dy/dx = 2/√π·e^−x².",
    lambda op, x: op.Mul(op.Exp(op.Neg(op.Mul(x, x))), 2 / math.sqrt(math.pi)),
    traits=[Trait.SMOOTH],
)
