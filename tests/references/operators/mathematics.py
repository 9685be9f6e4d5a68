"""What functions, reductions, normalisations and steps mean, on torch: part of the interpreter."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

T = torch.Tensor


def _axes(x: T, axes: T | None, noop: int) -> list[int]:
    if axes is None or axes.numel() == 0:
        return [] if noop else list(range(x.ndim))
    return [int(a) % x.ndim for a in axes]


def _reduce(function: Callable[[T, list[int], bool], T], before: Callable[[T], T] | None = None) -> Any:
    def run(x: T, axes: T | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> T:
        chosen = _axes(x, axes, noop_with_empty_axes)
        inner = x if before is None else before(x)
        return function(inner, chosen, bool(keepdims))

    return run


def _unless_none(function: Callable[..., T]) -> Callable[[T, list[int], bool], T]:
    return lambda x, axes, keep: function(x, axes, keep) if axes else x


def _sum(x: T, axes: list[int], keep: bool) -> T:
    return x.sum(axes, keep) if axes else x


def _prod(x: T, axes: list[int], keep: bool) -> T:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def cum_prod(x: T, axis: T, *, exclusive: int = 0, reverse: int = 0) -> T:
    return _cumulative(torch.cumprod, 1.0, x, axis, exclusive, reverse)


def cum_sum(x: T, axis: T, *, exclusive: int = 0, reverse: int = 0) -> T:
    return _cumulative(torch.cumsum, 0.0, x, axis, exclusive, reverse)


def _cumulative(function: Callable[..., T], first: float, x: T, axis: T, exclusive: int, reverse: int) -> T:
    along = int(axis) % x.ndim
    x = x.flip(along) if reverse else x
    y = function(x, along)
    if exclusive:
        start = torch.full_like(y.narrow(along, 0, 1), first)
        y = torch.cat([start, y.narrow(along, 0, y.shape[along] - 1)], along)
    return y.flip(along) if reverse else y


def top_k(x: T, k: T, *, axis: int = -1, largest: int = 1, **_: int) -> tuple[T, T]:
    order = torch.sort(x, dim=axis, descending=bool(largest), stable=True)
    count = int(k)
    return order.values.narrow(axis, 0, count), order.indices.narrow(axis, 0, count)


def hardmax(x: T, *, axis: int = -1) -> T:
    best = x.amax(axis, keepdim=True)
    first = (x == best).to(torch.int8).argmax(axis, keepdim=True)
    return torch.zeros_like(x).scatter(axis, first, 1.0)


def mean_variance_normalization(x: T, *, axes: Sequence[int] = (0, 2, 3)) -> T:
    variance, mean = torch.var_mean(x, list(axes), correction=0, keepdim=True)
    return (x - mean) / (torch.sqrt(variance) + 1e-9)


def shrink(x: T, *, bias: float = 0.0, lambd: float = 0.5) -> T:
    zero = torch.zeros_like(x)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, zero))


def cast(x: T, to: int, **_: Any) -> T:
    """Every float is float64 here, and every whole number int64."""
    return x.to(torch.float64 if to in (1, 10, 11, 16) else torch.bool if to == 9 else torch.int64)


def _along(parameter: T | None, x: T, axis: int) -> T:
    """A scale or a zero point, in a shape that broadcasts."""
    if parameter is None:
        return torch.zeros(())
    shape = [1] * x.ndim
    if parameter.numel() > 1:
        shape[axis] = -1
    return parameter.to(torch.float64).reshape(shape)


def quantize_linear(x: T, scale: T, zero: T | None = None, *, axis: int = 1, **_: Any) -> T:
    """Within the limits of the zero point's type; without one, of 8 bits."""
    limits = torch.iinfo(torch.uint8 if zero is None else zero.dtype)
    steps = torch.round(x / _along(scale, x, axis)) + _along(zero, x, axis)
    return steps.clamp(limits.min, limits.max).to(torch.int64)


def dequantize_linear(x: T, scale: T, zero: T | None = None, *, axis: int = 1, **_: Any) -> T:
    return (x.to(torch.float64) - _along(zero, x, axis)) * _along(scale, x, axis)


MATH: dict[str, Callable[..., Any]] = {
    "Acos": torch.acos,
    "Cast": cast,
    "DequantizeLinear": dequantize_linear,
    "GreaterOrEqual": torch.ge,
    "IsNaN": torch.isnan,
    "LessOrEqual": torch.le,
    "Not": torch.logical_not,
    "Or": torch.logical_or,
    "QuantizeLinear": quantize_linear,
    "Xor": torch.logical_xor,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atanh": torch.atanh,
    "Cosh": torch.cosh,
    "CumProd": cum_prod,
    "CumSum": cum_sum,
    "Det": torch.linalg.det,
    "Einsum": lambda *xs, equation: torch.einsum(equation.decode(), *xs),
    "Hardmax": hardmax,
    "LpNormalization": lambda x, axis=-1, p=2: F.normalize(x, p, axis, eps=1e-300),
    "MeanVarianceNormalization": mean_variance_normalization,
    "Mod": lambda a, b, fmod=0: torch.fmod(a, b) if fmod else torch.remainder(a, b),
    "ReduceLogSumExp": _reduce(_unless_none(torch.logsumexp)),
    "ReduceMax": _reduce(_unless_none(torch.amax)),
    "ReduceMean": _reduce(_unless_none(torch.mean)),
    "ReduceMin": _reduce(_unless_none(torch.amin)),
    "ReduceSum": _reduce(_sum),
    "ReduceL1": _reduce(_sum, torch.abs),
    "ReduceL2": _reduce(lambda x, axes, keep: torch.sqrt(_sum(x, axes, keep)), torch.square),
    "ReduceLogSum": _reduce(lambda x, axes, keep: torch.log(_sum(x, axes, keep))),
    "ReduceProd": _reduce(_prod),
    "ReduceSumSquare": _reduce(_sum, torch.square),
    "Shrink": shrink,
    "Sinh": torch.sinh,
    "Tan": torch.tan,
    "TopK": top_k,
}
