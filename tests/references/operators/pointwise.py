"""Operators of one value or of a pair, and products of matrices, for the float64 interpreter, on torch."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

T = torch.Tensor


def gemm(
    a: T, b: T, c: T | None = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> T:
    y = alpha * (a.T if transA else a) @ (b.T if transB else b)
    return y if c is None else y + beta * c


def clip(x: T, low: T | None = None, high: T | None = None) -> T:
    x = x if low is None else torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


def _elu(x: T, alpha: float, scale: float = 1.0, width: float = 1.0) -> T:
    return scale * torch.where(x > 0, x, alpha * torch.expm1(torch.clamp(x, max=0) / width))


def _arg(function: Callable[..., T]) -> Callable[..., T]:
    def run(x: T, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> T:
        return function(x, axis, bool(keepdims))

    return run


def _fold(function: Callable[[T, T], T]) -> Callable[..., T]:
    def run(*xs: T) -> T:
        total = xs[0]
        for x in xs[1:]:
            total = function(total, x)
        return total

    return run


_FIFTH, _HUNDREDTH = (float(torch.tensor(v, dtype=torch.float32)) for v in (0.2, 0.01))  # as ONNX has them

POINTWISE: dict[str, Callable[..., Any]] = {
    "Abs": torch.abs,
    "Add": torch.add,
    "And": torch.logical_and,
    "ArgMax": _arg(torch.argmax),
    "ArgMin": _arg(torch.argmin),
    "Atan": torch.atan,
    "Ceil": torch.ceil,
    "Celu": lambda x, alpha=1.0: _elu(x, alpha, width=alpha),
    "Clip": clip,
    "Cos": torch.cos,
    "Div": lambda a, b: a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc"),
    "Elu": lambda x, alpha=1.0: _elu(x, alpha),
    "Equal": torch.eq,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "Gelu": lambda x, approximate=b"none": F.gelu(x, approximate=approximate.decode()),
    "Gemm": gemm,
    "Greater": torch.gt,
    "HardSigmoid": lambda x, alpha=_FIFTH, beta=0.5: torch.clamp(alpha * x + beta, 0, 1),
    "HardSwish": lambda x: x * torch.clamp(x / 6 + 0.5, 0, 1),
    "LeakyRelu": lambda x, alpha=_HUNDREDTH: torch.where(x > 0, x, alpha * x),
    "Less": torch.lt,
    "Log": torch.log,
    "MatMul": torch.matmul,
    "Max": _fold(torch.maximum),
    "Mean": lambda *xs: sum(xs) / len(xs),
    "Min": _fold(torch.minimum),
    "Mish": F.mish,
    "Mul": torch.mul,
    "Neg": torch.neg,
    "Pow": torch.pow,
    "PRelu": lambda x, slope: torch.where(x > 0, x, slope * x),
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Scaler": lambda x, offset, scale: (
        (x - torch.tensor(offset, dtype=x.dtype)) * torch.tensor(scale, dtype=x.dtype)
    ),
    "Selu": lambda x, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875: _elu(x, alpha, gamma),
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Softplus": F.softplus,
    "Softsign": F.softsign,
    "Sqrt": torch.sqrt,
    "Sub": torch.sub,
    "Sum": _fold(torch.add),
    "Swish": lambda x, alpha=1.0: x * torch.sigmoid(alpha * x),
    "Tanh": torch.tanh,
    "ThresholdedRelu": lambda x, alpha=1.0: torch.where(x > alpha, x, torch.zeros_like(x)),
}
