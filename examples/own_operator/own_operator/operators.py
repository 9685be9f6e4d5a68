"""The rule of Snake: y = x + sin²(αx)/α.

Ziyin et al., "Neural Networks Fail to Learn Periodic Functions and How to Fix It", 2020.
"""

from typing import Any

from rationale import Kind, Ops, Tensor, Trait, rule


@rule("Snake", domain="own", kind=Kind.POINTWISE, traits=[Trait.RISING])
def snake(op: Ops, x: Tensor, *, alpha: float = 1.0) -> Any:
    """y = x + sin²(αx)/α;  dy/dx = 1 + sin 2αx."""
    sine = op.Sin(op.Mul(x, alpha))

    def snake_pullback(m: Tensor) -> Tensor:
        return op.Mul(m, op.Add(op.Sin(op.Mul(x, 2 * alpha)), 1.0))

    return op.Add(x, op.Div(op.Mul(sine, sine), alpha)), snake_pullback


@snake.secant
def snake_slope(op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor, *, alpha: float = 1.0) -> Tensor:
    """1 + sin α(x + r)·sin α(x − r)/α(x − r), by sin² a − sin² b = sin(a + b)·sin(a − b)."""
    away = op.Mul(op.Sub(x, r), alpha)
    safe = op.Where(op.Equal(away, 0.0), 1.0, away)
    ratio = op.Where(op.Equal(away, 0.0), 1.0, op.Div(op.Sin(safe), safe))
    return op.Add(op.Mul(op.Sin(op.Mul(op.Add(x, r), alpha)), ratio), 1.0)
