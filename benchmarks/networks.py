"""The networks of the benchmark: real architectures, with weights that keep the signal alive."""

import importlib
import operator
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # PyTorch's own abbreviation
from torch import Tensor, fx, nn

GAIN = 0.2  # what rows have in common may be blown up by no more than 1/GAIN: pooled features differ little
SAMPLES = 64  # values of a channel from which its mean is taken; fewer would be learnt by heart


def import_torchvision() -> ModuleType:
    """Import torchvision and return it.

    torchvision's wheel from the package index is built for CUDA: its compiled operators do not load beside
    the CPU build of torch, and describing their shapes (`torch.library.register_fake`) then fails the
    import. The architectures need none of these operators, so the descriptions are skipped.
    """
    described = torch.library.register_fake
    torch.library.register_fake = _describe_nothing
    try:
        return importlib.import_module("torchvision")
    finally:
        torch.library.register_fake = described


def _describe_nothing(*_args: object, **_kwargs: object) -> Callable[[object], object]:
    return lambda function: function


def vision(name: str, size: int) -> nn.Module:
    """Return a torchvision architecture for images [3, size, size].

    VGG's pool would stretch the last features of a small image; its classifier is cut to the image instead.
    """
    network: Any = getattr(import_torchvision().models, name)(weights=None)
    if name.startswith("vgg") and size != 224:
        side = size // 32
        network.avgpool = nn.Identity()
        network.classifier[0] = nn.Linear(512 * side * side, 4096)
    module: nn.Module = network
    return module


def perceptron(sizes: Sequence[int]) -> nn.Sequential:
    """Return linear layers of these sizes with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Encoder(nn.Module):
    """A small BERT over embeddings [N, tokens, width]: post-norm blocks, two classes off the first token."""

    def __init__(self, width: int, blocks: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads) for _ in range(blocks)))
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.blocks(x)[:, 0])
        return y


class EncoderBlock(nn.Module):
    """Attention, then two layers with GELU; each adds its input to its output and normalises the sum."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.act, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.softmax, self.norm1, self.norm2 = nn.Softmax(-1), nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._split(layer(x)) for layer in (self.query, self.key, self.value))
        scores = query @ key.transpose(2, 3) / (x.shape[-1] / self.heads) ** 0.5
        mixed = (self.softmax(scores) @ value).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.out(mixed))
        y: Tensor = self.norm2(x + self.down(self.act(self.up(x))))
        return y

    def _split(self, x: Tensor) -> Tensor:
        """Reshape [N, tokens, width] → [N, heads, tokens, width / heads]."""
        return x.reshape(-1, x.shape[1], self.heads, x.shape[2] // self.heads).transpose(1, 2)


# -- signal --------------------------------------------------------------------------------------------


def scale_and_mean(y: Tensor, *, recentred: bool) -> tuple[float, Tensor]:
    """Return a factor by which a layer's output y [N, C, …] varies by 1, and the channel means [C] before.

    The means are zeros if the layer is not `recentred`, or has too few values to estimate them.
    """
    axes = [0, *range(2, y.ndim)]
    has_samples = recentred and y[:, 0].numel() >= SAMPLES
    mean = y.mean(axes) if has_samples else y.new_zeros(y.shape[1])
    centred = y - mean.reshape([1, -1, *(1 for _ in axes[1:])])
    return 1 / max(float(centred.std()), GAIN * float(y.std())), mean


@torch.no_grad()
def keep_signal(network: nn.Module, rows: Tensor) -> None:
    """Rescale and recentre every linear layer in place, front to back, on `rows` [N, …]; end in eval mode.

    Default initialisation lets the signal of a deep network vanish or explode, and every row then gets the
    same output. BatchNormalization takes its statistics from the rows.
    """

    def settle(layer: Any, inputs: tuple[Tensor, ...], y: Tensor) -> Tensor:
        if isinstance(layer, nn.BatchNorm2d):
            x = inputs[0]
            layer.running_mean = x.mean((0, 2, 3))
            layer.running_var = x.var((0, 2, 3), unbiased=False) + 1e-3
            return F.batch_norm(x, layer.running_mean, layer.running_var, layer.weight, layer.bias)
        last = isinstance(layer, nn.Linear)  # its channels are, of tokens too
        factor, mean = scale_and_mean(y.movedim(-1, 1) if last else y, recentred=layer.bias is not None)
        if layer.bias is not None:
            layer.bias.copy_((layer.bias - mean) * factor)
        layer.weight.mul_(factor)
        return (y - (mean if last else mean.reshape([1, -1, *(1 for _ in y.shape[2:])]))) * factor

    network.eval().requires_grad_(False)
    kinds = (nn.Linear, nn.Conv2d, nn.BatchNorm2d)
    hooks = [m.register_forward_hook(settle) for m in network.modules() if isinstance(m, kinds)]
    network(rows)
    for hook in hooks:
        hook.remove()


# -- one module for each call --------------------------------------------------------------------------

ACTIVATIONS: dict[Any, type[nn.Module]] = {
    F.relu: nn.ReLU,
    torch.relu: nn.ReLU,
    F.silu: nn.SiLU,
    torch.sigmoid: nn.Sigmoid,
    torch.tanh: nn.Tanh,
}
IDENTITIES = (nn.Dropout, nn.Identity)


class Apart(nn.Module):
    """A copy of a tensor, so that two hooks do not meet on one."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view_as(x)


def separated(network: nn.Module) -> fx.GraphModule:
    """Return the same network with a module of its own for each activation, nothing in place, nothing idle.

    SHAP and captum follow modules by hooks: torchvision's shared and functional activations would be missed.
    """
    traced = fx.symbolic_trace(network.eval())
    for node in list(traced.graph.nodes):
        layer = traced.get_submodule(str(node.target)) if node.op == "call_module" else None
        idle = isinstance(layer, IDENTITIES) or getattr(node.target, "__name__", "") == "stochastic_depth"
        if idle:
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
        elif node.target is operator.iadd:
            node.target = operator.add
        elif layer is not None and isinstance(layer, tuple(ACTIVATIONS.values())):
            _own_module(traced, node, type(layer)())
        elif node.target in ACTIVATIONS:
            _own_module(traced, node, ACTIVATIONS[node.target]())
    traced.graph.lint()
    traced.recompile()
    return traced.eval()


def _own_module(traced: fx.GraphModule, node: fx.Node, module: nn.Module) -> None:
    traced.add_module(node.name, module)
    with traced.graph.inserting_before(node):
        module_node = traced.graph.call_module(node.name, (node.args[0],))
    node.replace_all_uses_with(module_node)
    traced.graph.erase_node(node)


def pools_apart(network: fx.GraphModule) -> fx.GraphModule:
    """Give each max pool its own tensor: captum's hooks of an activation and the pool after it collide."""
    for node in list(network.graph.nodes):
        if node.op == "call_module" and isinstance(network.get_submodule(str(node.target)), nn.MaxPool2d):
            name = f"{node.name}_apart"
            network.add_module(name, Apart())
            with network.graph.inserting_before(node):
                node.args = (network.graph.call_module(name, (node.args[0],)),)
    network.recompile()
    return network
