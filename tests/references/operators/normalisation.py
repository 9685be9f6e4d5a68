"""Normalisations, for the float64 interpreter, on torch."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

T = torch.Tensor
# ONNX's defaults, as it has them: in float32
_EPSILON, _LRN_ALPHA = (float(torch.tensor(v, dtype=torch.float32)) for v in (1e-5, 1e-4))


def batch_normalization(
    x: T,
    scale: T,
    bias: T,
    mean: T,
    var: T,
    *,
    epsilon: float = _EPSILON,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> T:
    shape = [-1, *(1 for _ in range(x.ndim - 2))]
    factor = scale / torch.sqrt(var + epsilon)
    return (x - mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape)


def lrn(x: T, *, size: int, alpha: float = _LRN_ALPHA, beta: float = 0.75, bias: float = 1.0) -> T:
    below = (size - 1) // 2
    square = F.pad((x * x).movedim(1, -1), (below, size - 1 - below)).movedim(-1, 1)
    total = sum(square.narrow(1, i, x.shape[1]) for i in range(size))
    return x / (bias + alpha / size * total) ** beta


def layer_normalization(
    x: T, scale: T, bias: T | None = None, *, axis: int = -1, epsilon: float = _EPSILON, stash_type: int = 1
) -> T:
    axes = list(range(axis % x.ndim, x.ndim))
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    y = (x - mean) / torch.sqrt(variance + epsilon) * scale
    return y if bias is None else y + bias


def rms_normalization(x: T, scale: T, *, axis: int = -1, epsilon: float = _EPSILON, stash_type: int = 1) -> T:
    axes = list(range(axis % x.ndim, x.ndim))
    return x / torch.sqrt((x * x).mean(axes, keepdim=True) + epsilon) * scale


NORMALISATIONS: dict[str, Callable[..., Any]] = {
    "BatchNormalization": batch_normalization,
    "GroupNormalization": lambda x, scale, bias, num_groups, epsilon=_EPSILON, stash_type=1: F.group_norm(
        x, num_groups, scale, bias, epsilon
    ),
    "InstanceNormalization": lambda x, scale, bias, epsilon=_EPSILON: F.instance_norm(
        x, weight=scale, bias=bias, eps=epsilon
    ),
    "LayerNormalization": layer_normalization,
    "LogSoftmax": lambda x, axis=-1: torch.log_softmax(x, axis),
    "LRN": lrn,
    "RMSNormalization": rms_normalization,
    "Softmax": lambda x, axis=-1: torch.softmax(x, axis),
}
