"""DeepSHAP in float64 by autograd: reference values for every system's attributions.

A row and K references go through the network as one batch [1 + K, …]. Where a layer is linear, autograd's
backward pass is its rule already; others become functions with a backward pass of their own. Multipliers
are those of the row against each reference, and stand in the reference's place.
"""

import copy
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # PyTorch's own abbreviation
from torch import Tensor, fx, nn

from benchmarks.networks import separated

Function = Callable[[Tensor], Tensor]
NEAR = 1e-5  # |x − r| below which f' in the middle (error d²/24·f‴) beats the quotient
AT_ONCE = 1 << 18  # values of the references of one pass
SMOOTH = (nn.SiLU, nn.Sigmoid, nn.Tanh, nn.GELU)
LINEAR = (nn.Linear, nn.Conv2d, nn.BatchNorm2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten)
LINEAR_FUNCTIONS = (
    *(operator.add, operator.getitem, torch.add, torch.cat, torch.flatten),
    F.adaptive_avg_pool2d,
)
LINEAR_METHODS = ("transpose", "reshape", "flatten")
PRODUCTS = (operator.mul, torch.mul)
MATRIX_PRODUCTS = (operator.matmul, torch.matmul)


def exact(network: nn.Module, rows: Tensor, references: Tensor) -> np.ndarray:
    """Return the attributions [N, …] of each row's predicted output.

    Raises:
        NotImplementedError: if a layer has no rule.
    """
    explain = walk(copy.deepcopy(network).double(), references.double(), AT_ONCE)
    return explain(rows.double()).numpy()


def walk(network: nn.Module, references: Tensor, at_once: int | None = None) -> Callable[[Tensor], Tensor]:
    """Return a function from rows [N, …] to attributions [N, …], in references' dtype and on their device.

    Args:
        at_once: how many values of references one pass takes; None: all of them.
    """
    layers = Layers(separated(network.requires_grad_(False)))
    chunks = references.split(max((at_once or references.numel()) // references[0].numel(), 1))  # type: ignore[no-untyped-call]  # torch's

    def explain(rows: Tensor) -> Tensor:
        return torch.stack([_attribute(layers, row[None], chunks) for row in rows])

    return explain


def _attribute(layers: "Layers", row: Tensor, chunks: Sequence[Tensor]) -> Tensor:
    """Return the mean over all references of m·(x − r), for the predicted output."""
    total = torch.zeros_like(row[0])
    for references in chunks:
        batch = torch.cat([row, references]).requires_grad_()
        y = layers.run(batch)
        (m,) = torch.autograd.grad(y[1:, y[0].argmax()].sum(), batch)
        total += (m[1:] * (row - references)).sum(0)
    return total / sum(map(len, chunks))


class Layers(fx.Interpreter):
    """A runner of a network with modules as activations, which applies each layer's rule."""

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        layer = self.fetch_attr(target)
        if isinstance(layer, LINEAR):
            return super().call_module(target, args, kwargs)
        if isinstance(layer, nn.ReLU):
            return apply(Rescale, *args, torch.relu, lambda x: (x > 0).to(x), 0.0)
        if isinstance(layer, SMOOTH):
            return smooth(args[0], layer)
        if isinstance(layer, nn.MaxPool2d):
            return apply(CrossMaximum, *args, layer)
        if isinstance(layer, nn.Softmax) and layer.dim is not None:
            return softmax(args[0], layer.dim)
        if isinstance(layer, nn.LayerNorm):
            return layer_norm(args[0], layer)
        raise NotImplementedError(f"there is no rule for {layer}")

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        tensors = sum(isinstance(argument, Tensor) for argument in args)
        if target in PRODUCTS and tensors > 1:
            return apply(MidpointProduct, *args)
        if target in MATRIX_PRODUCTS:
            return apply(MatrixProduct, *args)
        scales = target in (operator.truediv, *PRODUCTS) and tensors == 1 and isinstance(args[0], Tensor)
        if target in LINEAR_FUNCTIONS or target is getattr or scales or not tensors:
            return super().call_function(target, args, kwargs)
        raise NotImplementedError(f"there is no rule for {getattr(target, '__name__', target)}")

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in LINEAR_METHODS:
            return super().call_method(target, args, kwargs)
        raise NotImplementedError(f"there is no rule for {target}")


def smooth(x: Tensor, f: Function) -> Tensor:
    """Return f(x), whose multiplier is its secant, or its slope if rounding would swamp the secant."""

    def slope(x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(f(x).sum(), x)
        return gradient

    return apply(Rescale, x, f, slope, NEAR)


def softmax(z: Tensor, axis: int) -> Tensor:
    """Return p = e^(z − LSE z), each function by its secant."""
    total = smooth(z, torch.exp).sum(axis, keepdim=True)
    lse = smooth(total, torch.log)
    return smooth(z - lse, torch.exp)


def layer_norm(x: Tensor, layer: nn.LayerNorm) -> Tensor:
    """Return y = γ·d·s + β with d = x − mean x and s = (mean d² + ε)^−½.

    Products are taken at midpoints, and s by its secant.
    """
    axes = tuple(range(-len(layer.normalized_shape), 0))
    d = x - x.mean(axes, keepdim=True)
    variance = apply(MidpointProduct, d, d).mean(axes, keepdim=True)
    s = smooth(variance + layer.eps, torch.rsqrt)
    return layer.weight * apply(MidpointProduct, d, s) + layer.bias


# Each takes a batch of the row and K references, and multipliers m of the references' places alone.


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    """Return a function's value, with its own backward pass."""
    value: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]  # torch's
    return value


def among(m: Tensor) -> Tensor:
    """Return multipliers [1 + K, …] of a batch; none goes to the row's own place."""
    return torch.cat([torch.zeros_like(m[:1]), m])


class Rescale(torch.autograd.Function):
    """m·(f(x) − f(r))/(x − r), or m·f' in the middle if x and r are at most `near` apart."""

    @staticmethod
    def forward(ctx: Any, batch: Tensor, f: Function, slope: Function, near: float) -> Tensor:
        ctx.slope, ctx.near = slope, near
        y = f(batch)
        ctx.save_for_backward(batch, y)
        return y

    @staticmethod
    def backward(ctx: Any, m: Tensor) -> Any:
        batch, y = ctx.saved_tensors
        x, r = batch[:1], batch[1:]
        d = x - r
        secant = torch.where(d.abs() <= ctx.near, ctx.slope((x + r) / 2), (y[:1] - y[1:]) / d)
        return among(m[1:] * secant), None, None, None


class MidpointProduct(torch.autograd.Function):
    """a·b at the midpoint: m·(b + b_r)/2 to a, summed over the axes to which a was broadcast; b likewise."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, m: Tensor) -> Any:
        a, b = ctx.saved_tensors
        handed = []
        for factor, other in ((a, b), (b, a)):
            middle = (other[:1] + other[1:]) / 2
            handed.append(among((m[1:] * middle).sum_to_size(factor[1:].shape)))
        return tuple(handed)


class MatrixProduct(torch.autograd.Function):
    """A·B at the midpoint: M·Bᵀ to A and Aᵀ·M to B, with means of the row's matrices and a reference's."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx: Any, m: Tensor) -> Any:
        a, b = ((x[:1] + x[1:]) / 2 for x in ctx.saved_tensors)
        return among(m[1:] @ b.mT), among(a.mT @ m[1:])


class CrossMaximum(torch.autograd.Function):
    """Cross-maximum pooling: y's gain over y_r goes to x's winner, its loss to r's, as shares of x − r."""

    @staticmethod
    def forward(ctx: Any, batch: Tensor, layer: nn.MaxPool2d) -> Tensor:
        options: Any = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode)
        y, winners = F.max_pool2d_with_indices(batch, *options)
        ctx.save_for_backward(batch, y, winners)
        return y

    @staticmethod
    def backward(ctx: Any, m: Tensor) -> Any:
        batch, y, winners = ctx.saved_tensors
        x, r = batch[:1], batch[1:]
        gain = y[:1] - y[1:]
        chosen = torch.where(gain > 0, winners[:1], winners[1:])
        share = torch.zeros_like(r).flatten(2)
        share.scatter_add_(2, chosen.flatten(2), (gain * m[1:]).flatten(2))
        return among((share.view_as(r) / (x - r)).nan_to_num(nan=0.0)), None
