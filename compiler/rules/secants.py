"""Slopes (f(x) − f(r))/(x − r) in forms that do not cancel as r → x.

Most are chains of the few below: the secant of a composition is the product of the secants.
"""

import math

import numpy as np

from compiler.graph import Ops
from compiler.tensor import Tensor

GAUSS = 1 / math.sqrt(12)  # nodes of the two-point Gauss–Legendre rule, as a fraction of x − r


def tiny(x: Tensor) -> float:
    """A divisor guard: below any difference that matters, and no 0 itself."""
    info = np.finfo(x.dtype.numpy())
    return float(info.smallest_subnormal) if info.bits < 32 else float(info.tiny) * 2.0**20


def relu_secant(op: Ops, x: Tensor, r: Tensor) -> Tensor:
    """(x⁺ + r⁺)/(|x| + |r|): no difference is formed, so nothing cancels; 0 at x = r = 0."""
    above = op.Add(op.Relu(x), op.Relu(r))
    size = op.Add(op.Abs(x), op.Add(op.Abs(r), tiny(x)))
    return op.Div(above, size)


def tanh_over(op: Ops, u: Tensor) -> Tensor:
    """tanh(u)/u, 1 at 0."""
    size = op.Max(op.Abs(u), tiny(u))
    return op.Div(op.Tanh(size), size)


def phi(op: Ops, d: Tensor) -> Tensor:
    """φ(d) = (1 − e^−|d|)/|d|, 1 at 0; by 1 − e^−u = 2t/(1 + t) with t = tanh(u/2)."""
    size = op.Max(op.Abs(d), tiny(d))
    t = op.Tanh(op.Mul(size, 0.5))
    return op.Div(op.Div(op.Mul(t, 2.0), op.Add(t, 1.0)), size)


def exp_secant(op: Ops, d: Tensor, y: Tensor, y_r: Tensor) -> Tensor:
    """The logarithmic mean of y = e^x and y_r = e^r, with d = x − r: max(y, y_r)·φ(d)."""
    return op.Mul(op.Max(y, y_r), phi(op, d))


def log_secant(op: Ops, x: Tensor, r: Tensor) -> Tensor:
    """ln(x/r)/(x − r) for x, r > 0; by 2·atanh(v), v = (x − r)/(x + r), where they are near."""
    d, total = op.Sub(x, r), op.Add(x, r)
    v = op.Div(d, total)
    near = op.Less(op.Abs(v), 0.5)
    size = op.Max(op.Min(op.Abs(v), 0.5), tiny(v))
    by_series = op.Div(op.Mul(op.Div(op.Atanh(size), size), 2.0), total)
    direct = op.Div(op.Sub(op.Log(x), op.Log(r)), op.Where(near, 1.0, d))
    return op.Where(near, by_series, direct)


def jump_secant(op: Ops, x: Tensor, r: Tensor, y: Tensor, y_r: Tensor, at_tie: Tensor | float) -> Tensor:
    """The plain quotient, for every x ≠ r: steps and jumps have no form that is better."""
    d = op.Sub(x, r)
    tie = op.Equal(d, 0.0)
    return op.Where(tie, at_tie, op.Div(op.Sub(y, y_r), op.Where(tie, 1.0, d)))


def near_threshold(x: Tensor) -> float:
    """|x − r| below which two-point Gauss quadrature of f' (error d⁴/4320·f⁗′) beats the quotient (ε/d)."""
    return float((320 * np.finfo(x.dtype.numpy()).eps) ** 0.2)
