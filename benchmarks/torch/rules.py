"""What the PyTorch baseline does with each layer: values forward, multipliers back."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # PyTorch's own abbreviation
from torch import Tensor, fx, nn

from benchmarks.torch.forms import backward_forms, forward_forms, last
from benchmarks.torch.walk import Multiplier, Pull, Rule, Value, Walk

B = 2.0**72  # keeps the products of the ReLU's form apart: see `relu`
# |x − r| below which f' in the middle (error d²/24·f‴) beats the quotient.
NEAR = {torch.float32: 1e-3, torch.float64: 1e-5}


def apply(
    walk: Walk, function: Callable[..., Tensor], source: Value, *arguments: Any, **options: Any
) -> Value:
    """The same calls on rows and references."""
    return Value(
        walk.call(function, source.x, *arguments, **options),
        last(function(source.r, *arguments, **options)),
        function(source.like, *arguments, **options),
    )


# -- linear --------------------------------------------------------------------------------------------


def linear(walk: Walk, node: fx.Node, inputs: Sequence[Value]) -> tuple[Value, Pull]:
    """y = W·x + b; Wᵀ·m to x, which for one chosen output is a row of W."""
    (source,) = inputs
    layer: Any = walk.network.get_submodule(str(node.target))
    form = walk.fastest(forward_forms(layer, source.like), source.like, ("forward", str(layer)))
    y = Value(walk.form(form, source.x), last(layer(source.r)), layer(source.like))

    def pull(m: Multiplier) -> Sequence[Multiplier]:
        scale = walk.scales.get(node.all_input_nodes[0])
        if m.chosen is not None and isinstance(layer, nn.Linear) and scale is None:
            weight = walk.constant(layer.weight.detach())
            return [Multiplier(walk.call(torch.index_select, weight, 0, m.chosen), wide=False)]
        example = last(torch.randn(walk.rows_of(m), *y.r.shape[1:], dtype=y.r.dtype))
        forms = backward_forms(layer, scale, source.like[:1], example)
        form = walk.fastest(forms, example, ("backward", str(layer)))
        return [Multiplier(walk.form(form, m.node), m.wide)]

    return y, pull


def batch_norm(walk: Walk, node: fx.Node, inputs: Sequence[Value]) -> tuple[Value, Pull]:
    """One that no convolution precedes: y = a·x + b."""
    (source,) = inputs
    layer: Any = walk.network.get_submodule(str(node.target))
    a = layer.weight.detach() / (layer.running_var + layer.eps).sqrt()
    b = layer.bias.detach() - a * layer.running_mean
    scale, offset = (v.reshape(1, -1, 1, 1) for v in (a, b))
    x = walk.call(torch.addcmul, walk.constant(offset), source.x, walk.constant(scale))
    y = Value(x, last(source.r * scale + offset), source.like * scale + offset)

    def pull(m: Multiplier) -> Sequence[Multiplier]:
        if node in walk.scales:  # the layer that m came from has applied it
            return [m]
        return [Multiplier(walk.call(torch.mul, m.node, walk.constant(scale)), m.wide)]

    return y, pull


def average_pool(walk: Walk, node: fx.Node, inputs: Sequence[Value]) -> tuple[Value, Pull]:
    """Each share of m goes back to the window it came from, divided by its size."""
    (source,) = inputs
    height, width = source.r.shape[2:]
    size, stride, padding = _average_options(walk, node, source)
    y = apply(walk, F.avg_pool2d, source, size, stride, padding)

    def pull(m: Multiplier) -> Sequence[Multiplier]:
        if tuple(size) == (height, width):
            share = walk.call(operator.mul, m.node, 1 / (height * width))
            spread = walk.call(torch.Tensor.expand, share, -1, -1, height, width)
            return [Multiplier(spread, m.wide, owned=False)]
        like = walk.constant(source.r[:1, :1, :1, :1].clone())
        shape = (walk.rows_of(m), *source.r.shape[1:])
        options = {"size": size, "stride": stride, "padding": padding}
        return [Multiplier(walk.call(_average_backward, m.node, like, shape=shape, **options), m.wide)]

    return y, pull


def _average_backward(
    m: Tensor, like: Tensor, shape: Sequence[int], size: Sequence[int], stride: Any, padding: Any
) -> Tensor:
    whole = like.expand(shape)
    y: Tensor = torch.ops.aten.avg_pool2d_backward(m, whole, size, stride, padding, False, True, None)
    return y


def _average_options(walk: Walk, node: fx.Node, source: Value) -> tuple[list[int], list[int], list[int]]:
    """Window, stride, padding."""
    if node.op == "call_module":
        layer: Any = walk.network.get_submodule(str(node.target))
        if isinstance(layer, nn.AvgPool2d):
            if layer.ceil_mode or not layer.count_include_pad or layer.divisor_override is not None:
                raise NotImplementedError(f"the PyTorch baseline has no form for {layer}")
            return _pair(layer.kernel_size), _pair(layer.stride), _pair(layer.padding)
        out = _pair(layer.output_size)
    else:
        out = _pair(node.args[1] if len(node.args) > 1 else node.kwargs["output_size"])
    given = source.r.shape[2:]
    if any(g % o for g, o in zip(given, out, strict=True)):
        raise NotImplementedError(f"the PyTorch baseline has no form for a pool from {given} to {out}")
    size = [g // o for g, o in zip(given, out, strict=True)]
    return size, size, [0, 0]


def _pair(value: Any) -> list[int]:
    return [int(value)] * 2 if isinstance(value, int) else [int(v) for v in value]


def flatten(walk: Walk, node: fx.Node, inputs: Sequence[Value]) -> tuple[Value, Pull]:
    """m in the shape of x."""
    (source,) = inputs
    shape = tuple(source.r.shape[1:])
    y = apply(walk, torch.flatten, source, 1)
    return y, lambda m: [Multiplier(walk.call(_unflattened, m.node, shape=shape), m.wide, m.owned, m.chosen)]


def _unflattened(m: Tensor, shape: Sequence[int]) -> Tensor:
    return last(m.reshape(len(m), *shape))


def identity(walk: Walk, node: fx.Node, inputs: Sequence[Value]) -> tuple[Value, Pull]:
    """m as it is."""
    return inputs[0], lambda m: [m]


# -- several inputs ------------------------------------------------------------------------------------


def add(walk: Walk, node: fx.Node, inputs: Sequence[Value]) -> tuple[Value, Pull]:
    """The same m to both, which neither may overwrite."""
    a, b = inputs
    y = Value(walk.call(torch.add, a.x, b.x), a.r + b.r, a.like + b.like)

    def pull(m: Multiplier) -> Sequence[Multiplier]:
        shared = Multiplier(m.node, m.wide, owned=False)
        return [shared, shared]

    return y, pull


def multiply(walk: Walk, node: fx.Node, inputs: Sequence[Value]) -> tuple[Value, Pull]:
    """At the midpoint: m·(b + b_r)/2 to a, and the sum of m·(a + a_r)/2 over what b was broadcast to."""
    y = Value(
        walk.call(torch.mul, *(v.x for v in inputs)),
        last(inputs[0].r * inputs[1].r),
        inputs[0].like * inputs[1].like,
    )

    def pull(m: Multiplier) -> Sequence[Multiplier]:
        handed = []
        for own, other in (inputs, inputs[::-1]):
            middle = walk.call(torch.add, walk.constant(other.r / 2), walk.beside(other.x), alpha=0.5)
            product = walk.closed(walk.call(torch.mul, walk.opened(m), middle))
            axes = [i for i in range(1, y.r.ndim) if own.r.shape[i] == 1 and y.r.shape[i] > 1]
            summed = walk.call(torch.sum, product.node, axes, keepdim=True) if axes else product.node
            handed.append(Multiplier(summed, wide=True))
        return handed

    return y, pull


def concatenate(walk: Walk, node: fx.Node, inputs: Sequence[Value]) -> tuple[Value, Pull]:
    """m as it is: `Gradients` hands each part its channels."""
    if (node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) != 1:
        raise NotImplementedError("the PyTorch baseline concatenates channels alone")
    y = Value(
        walk.call(torch.cat, [v.x for v in inputs], 1),
        last(torch.cat([v.r for v in inputs], 1)),
        torch.cat([v.like for v in inputs], 1),
    )
    return y, lambda m: [m]


# -- nonlinear -----------------------------------------------------------------------------------------


def relu(walk: Walk, node: fx.Node, inputs: Sequence[Value]) -> tuple[Value, Pull]:
    """m / (1 + α·Γ), α of the row and Γ of the reference.

    Both positive: αΓ = 1/(B²·x·r), nearly 0. Both negative: B²·|x|·|r|, nearly ∞. Else |r|/x or |x|/r.
    """
    (source,) = inputs
    r = source.r
    gamma = torch.where(r > 0, 1 / (r * B), r.abs().clamp_min(1e-18) * B)
    y = apply(walk, torch.relu, source)

    def pull(m: Multiplier) -> Sequence[Multiplier]:
        alpha = walk.call(_relu_factor, source.x)
        one = walk.constant(torch.ones((), dtype=r.dtype))
        slope = walk.call(torch.addcmul, one, walk.beside(alpha), walk.constant(gamma))
        divide = torch.div if walk.portable else _divided
        return [walk.closed(walk.call(divide, walk.opened(m), slope))]

    return y, pull


def _relu_factor(x: Tensor) -> Tensor:
    return torch.maximum(x * -B, (1 / B) / x.clamp_min(1e-26))


def _divided(m: Tensor, slope: Tensor) -> Tensor:
    return torch.div(m, slope, out=slope)


DERIVATIVES: dict[Callable[..., Tensor], Callable[[Tensor], Tensor]] = {
    F.silu: lambda x: torch.sigmoid(x) * (1 + x * torch.sigmoid(-x)),
    torch.sigmoid: lambda x: torch.sigmoid(x) * torch.sigmoid(-x),
    torch.tanh: lambda x: 1 - torch.tanh(x).square(),
}


def smooth(function: Callable[..., Tensor]) -> Rule:
    """The rescale rule, m·(f(x) − f(r))/(x − r), of a function in DERIVATIVES."""
    derivative = DERIVATIVES[function]

    def secant(m: Tensor, x: Tensor, y: Tensor, r: Tensor, y_r: Tensor) -> Tensor:
        """(f(x) − f(r))/(x − r), or f' in the middle."""
        d = x - r
        near = d.abs() < NEAR[d.dtype]
        slope = torch.where(near, derivative(r + 0.5 * d), (y - y_r).div_(d))
        return slope.mul_(m)

    def rule(walk: Walk, node: fx.Node, inputs: Sequence[Value]) -> tuple[Value, Pull]:
        (source,) = inputs
        y = apply(walk, function, source)

        def pull(m: Multiplier) -> Sequence[Multiplier]:
            at_x = (walk.beside(source.x), walk.beside(y.x))
            at_r = (walk.constant(source.r), walk.constant(y.r))
            return [walk.closed(walk.call(secant, walk.opened(m), *at_x, *at_r))]

        return y, pull

    return rule


def max_pool(walk: Walk, node: fx.Node, inputs: Sequence[Value]) -> tuple[Value, Pull]:
    """The cross-maximum c = max(y, y_r): what y gains goes to x's winner, what it loses to r's.

    After a ReLU that nothing else reads both are one: its division cancels, p is what it reads.
    """
    (source,) = inputs
    layer: Any = walk.network.get_submodule(str(node.target))
    options = [_pair(v) for v in (layer.kernel_size, layer.stride, layer.padding, layer.dilation)]
    settings = {"options": options, "ceil": layer.ceil_mode, "rectified": isinstance(layer, ReluMaxPool)}
    y_r, winner_r = _pooled(source.r, **settings)
    both = walk.call(_pooled, source.x, **settings)
    y, winner = (walk.call(operator.getitem, both, i) for i in range(2))

    def pull(m: Multiplier) -> Sequence[Multiplier]:
        at_x = [walk.beside(v) for v in (source.x, y, winner)]
        at_r = [walk.constant(v) for v in (source.r, last(y_r), last(winner_r))]
        back = walk.call(_pool_backward, walk.opened(m), *at_x, *at_r, options=options, ceil=layer.ceil_mode)
        return [Multiplier(back, wide=True)]

    return Value(y, last(y_r), _pooled(source.like, **settings)[0]), pull


class ReluMaxPool(nn.MaxPool2d):
    """The pool of a ReLU."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(torch.relu(x))
        return y


def _pooled(p: Tensor, options: list[list[int]], ceil: bool, rectified: bool) -> tuple[Tensor, Tensor]:
    window, stride, padding, dilation = options
    y, winner = F.max_pool2d_with_indices(p, window, stride, padding, dilation, ceil)
    return torch.relu(y) if rectified else y, winner


def _pool_backward(
    m: Tensor,
    p: Tensor,
    y: Tensor,
    winner: Tensor,
    p_r: Tensor,
    y_r: Tensor,
    winner_r: Tensor,
    options: list[list[int]],
    ceil: bool,
) -> Tensor:
    d = p - p_r
    gain = y - y_r
    chosen = torch.where(gain > 0, winner, winner_r)
    gain.mul_(m)
    if d.ndim == 5:
        d, gain, chosen = d.flatten(0, 1), gain.flatten(0, 1), chosen.flatten(0, 1)
    handed: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(gain, d, *options, ceil, chosen)
    return handed.div_(d).nan_to_num_(nan=0.0)


# -- which rule ----------------------------------------------------------------------------------------

MODULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    nn.Conv2d: linear,
    nn.BatchNorm2d: batch_norm,
    nn.ReLU: relu,
    nn.SiLU: smooth(F.silu),
    nn.Sigmoid: smooth(torch.sigmoid),
    nn.Tanh: smooth(torch.tanh),
    nn.MaxPool2d: max_pool,
    ReluMaxPool: max_pool,
    nn.AvgPool2d: average_pool,
    nn.AdaptiveAvgPool2d: average_pool,
    nn.Flatten: flatten,
    nn.Dropout: identity,
    nn.Identity: identity,
}
FUNCTIONS: dict[Any, Rule] = {
    operator.add: add,
    torch.add: add,
    operator.mul: multiply,
    torch.mul: multiply,
    torch.cat: concatenate,
    torch.flatten: flatten,
    F.adaptive_avg_pool2d: average_pool,
}


def rule_of(network: fx.GraphModule, node: fx.Node) -> Rule:
    """Raises NotImplementedError where there is none."""
    if node.op == "call_module":
        layer = network.get_submodule(str(node.target))
        if type(layer) in MODULES:
            return MODULES[type(layer)]
        raise NotImplementedError(f"the PyTorch baseline has no rule for {layer}")
    if node.op == "call_function" and node.target in FUNCTIONS:
        return FUNCTIONS[node.target]
    name = getattr(node.target, "__name__", node.target)
    raise NotImplementedError(f"the PyTorch baseline has no rule for {name}")
