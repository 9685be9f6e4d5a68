"""DeepSHAP in float64 by autograd: the values that every system's attributions are compared with.

Rows and references go through the network side by side, as the halves of one batch. Where a layer is
linear, autograd's backward pass is its rule already; others become functions with a backward pass of their
own, which hands a multiplier to the first half alone.
"""

import copy
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # PyTorch's own abbreviation
from torch import Tensor, fx, nn

from rationale.bench.networks import separated

NEAR = 1e-5  # |x − r| below which f' in the middle (error d²/24·f‴) beats the quotient
AT_ONCE = 1 << 19  # values of the rows and references of one pass
SMOOTH = (nn.SiLU, nn.Sigmoid, nn.Tanh)
LINEAR = (nn.Linear, nn.Conv2d, nn.BatchNorm2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten)
LINEAR_FUNCTIONS = (operator.add, torch.add, torch.cat, torch.flatten, F.adaptive_avg_pool2d)
PRODUCTS = (operator.mul, torch.mul)


def exact(network: nn.Module, rows: Tensor, references: Tensor) -> np.ndarray:
    """Return the attributions [N, …] of each row's predicted output.

    Raises:
        NotImplementedError: there is no rule for a layer.
    """
    layers = Layers(separated(copy.deepcopy(network).double().requires_grad_(False)))
    references = references.double()
    found = []
    for row in rows.double():
        with torch.no_grad():
            target = int(layers.run(torch.stack([row, row]))[0].argmax())
        total = torch.zeros_like(row)
        for some in references.split(max(AT_ONCE // (2 * row.numel()), 1)):  # type: ignore[no-untyped-call]  # torch's
            x = row.expand_as(some).clone().requires_grad_()
            output = layers.run(torch.cat([x, some]))[: len(some), target].sum()
            (m,) = torch.autograd.grad(output, x)
            total += (m * (row - some)).sum(0)
        found.append(total / len(references))
    return torch.stack(found).numpy()


class Layers(fx.Interpreter):
    """Runs a network whose activations are modules, each layer by its rule."""

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        layer = self.fetch_attr(target)
        if isinstance(layer, LINEAR):
            return super().call_module(target, args, kwargs)
        if isinstance(layer, nn.ReLU):
            return Rescale.apply(*args, torch.relu, 0.0)  # type: ignore[no-untyped-call]  # torch's
        if isinstance(layer, SMOOTH):
            return Rescale.apply(*args, layer, NEAR)  # type: ignore[no-untyped-call]  # torch's
        if isinstance(layer, nn.MaxPool2d):
            return CrossMaximum.apply(*args, layer)  # type: ignore[no-untyped-call]  # torch's
        raise NotImplementedError(f"the float64 values have no rule for {layer}")

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in PRODUCTS:
            return Product.apply(*args)  # type: ignore[no-untyped-call]  # torch's
        if target in LINEAR_FUNCTIONS:
            return super().call_function(target, args, kwargs)
        raise NotImplementedError(
            f"the float64 values have no rule for {getattr(target, '__name__', target)}"
        )

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        raise NotImplementedError(f"the float64 values have no rule for {target}")


def beside(m: Tensor) -> Tensor:
    """Return multipliers of both halves; none goes to the references."""
    return torch.cat([m, torch.zeros_like(m)])


class Rescale(torch.autograd.Function):
    """m·(f(x) − f(r))/(x − r), and m·f' in the middle where x and r are at most `near` apart."""

    @staticmethod
    def forward(ctx: Any, both: Tensor, function: Callable[[Tensor], Tensor], near: float) -> Tensor:
        ctx.function, ctx.near = function, near
        y = function(both)
        ctx.save_for_backward(both, y)
        return y

    @staticmethod
    def backward(ctx: Any, m: Tensor) -> Any:
        both, y = ctx.saved_tensors
        (x, r), (y_x, y_r) = both.chunk(2), y.chunk(2)
        with torch.enable_grad():
            middle = ((x + r) / 2).requires_grad_()
            (slope,) = torch.autograd.grad(ctx.function(middle).sum(), middle)
        d = x - r
        secant = torch.where(d.abs() <= ctx.near, slope, (y_x - y_r) / d)
        return beside(m.chunk(2)[0] * secant), None, None


class Product(torch.autograd.Function):
    """At the midpoint: m·(b + b_r)/2 to a, summed over what a was broadcast to, and the same to b."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, m: Tensor) -> Any:
        a, b = ctx.saved_tensors
        handed = []
        for own, other in ((a, b), (b, a)):
            x, r = other.chunk(2)
            handed.append(beside((m.chunk(2)[0] * (x + r) / 2).sum_to_size(own.chunk(2)[0].shape)))
        return tuple(handed)


class CrossMaximum(torch.autograd.Function):
    """What y gains over y_r goes to x's winner, what it loses to r's: each a share of its x − r."""

    @staticmethod
    def forward(ctx: Any, both: Tensor, layer: nn.MaxPool2d) -> Tensor:
        options: Any = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode)
        y, winners = F.max_pool2d_with_indices(both, *options)
        ctx.save_for_backward(both, y, winners)
        return y

    @staticmethod
    def backward(ctx: Any, m: Tensor) -> Any:
        (x, r), (y, y_r), (winner, winner_r) = (each.chunk(2) for each in ctx.saved_tensors)
        gain = y - y_r
        chosen = torch.where(gain > 0, winner, winner_r)
        share = torch.zeros_like(x).flatten(2)
        share.scatter_add_(2, chosen.flatten(2), (gain * m.chunk(2)[0]).flatten(2))
        return beside((share.view_as(x) / (x - r)).nan_to_num(nan=0.0)), None
