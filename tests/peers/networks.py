"""The networks that are explained by us and by our peers, their rows, and their exports.

No two sizes are equal and none is 1, so that a mixed-up axis shows. Weights are redrawn so that the signal
neither vanishes nor explodes, and `Case` asserts that it is there. Peers follow modules by hooks, so each
activation is a module of its own.
"""

import contextlib
import copy
import io
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from tests.references.deeplift import Concat, Sum, deepshap, predict

N, K = 4, 7
FEATURES = 11
IMAGE = (3, 20, 24)
CLASSES = 5
EXPORTERS = ("torchscript", "dynamo")
LEAST_SIGNAL = 0.05  # of |explained − base|, with outputs of the order of 1

ACTIVATIONS = {
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "leaky_relu": lambda: nn.LeakyReLU(0.15),
    "elu": lambda: nn.ELU(0.8),
    "softplus": nn.Softplus,
}


@dataclass(frozen=True)
class Case:
    """A network with what it is explained on.

    Attributes:
        x: [N, …]; references: [K, …]; both float32.
    """

    network: nn.Module
    x: np.ndarray
    references: np.ndarray

    def __post_init__(self) -> None:
        difference = predict(self.network, self.x) - predict(self.network, self.references).mean(axis=0)
        assert np.abs(difference).max() > LEAST_SIGNAL, "the network says the same of everything"

    def fresh(self) -> nn.Module:
        """A copy for a peer: their hooks leave attributes behind."""
        return copy.deepcopy(self.network)

    def truth(self) -> np.ndarray:
        """Float64 attributions [N, T, …]."""
        return deepshap(self.network, self.x, self.references)


def mlp(activation: Callable[[], nn.Module], outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(FEATURES, 24), activation(), nn.Linear(24, 16), activation(), nn.Linear(16, outputs)
    )


def plain_cnn() -> nn.Sequential:
    """Both kinds of pool, a convolution with stride and groups, two linear layers."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 6, 3, padding=(1, 0), groups=2), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(6 * 5 * 5, 14), nn.ReLU(), nn.Linear(14, CLASSES)),
    )


def vgg_like() -> nn.Sequential:
    """Pairs of convolutions before a pool, with BatchNorm, a global average and dropout."""
    return nn.Sequential(
        *(*_conv(3, 8), nn.ReLU(), *_conv(8, 8), nn.ReLU(), nn.MaxPool2d(2)),
        *(*_conv(8, 12), nn.ReLU(), *_conv(12, 12), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.3)),
        nn.Linear(16, CLASSES),
    )


def resnet_like(stem_pool: nn.Module | None = None) -> nn.Sequential:
    """A stem, a plain block, a block that halves the image; the stem's pool does not overlap by default."""
    return nn.Sequential(
        *(*_conv(3, 8), nn.ReLU(), stem_pool or nn.MaxPool2d(2)),
        *(Sum(_block(8, 8), nn.Identity()), nn.ReLU()),
        *(Sum(_block(8, 12, stride=2), nn.Sequential(*_conv(8, 12, 1, stride=2))), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, CLASSES)),
    )


def densenet_like() -> nn.Sequential:
    """BatchNorm and ReLU before each convolution, and what came before passed on beside the new."""
    return nn.Sequential(
        *_conv(3, 6),
        Concat(nn.Identity(), nn.Sequential(nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3, padding=1))),
        Concat(nn.Identity(), nn.Sequential(nn.BatchNorm2d(10), nn.ReLU(), nn.Conv2d(10, 4, 3, padding=1))),
        *(nn.BatchNorm2d(14), nn.ReLU(), nn.Conv2d(14, 7, 1), nn.AvgPool2d(2)),
        *(nn.BatchNorm2d(7), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(7, CLASSES)),
    )


def _conv(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return convolution, nn.BatchNorm2d(outputs)


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(*_conv(inputs, outputs, stride=stride), nn.ReLU(), *_conv(outputs, outputs))


MLPS: dict[str, Callable[[], nn.Module]] = {
    f"{name}_{outputs}": lambda a=activation, t=outputs: mlp(a, t)
    for name, activation in ACTIVATIONS.items()
    for outputs in (1, 3)
}
CNNS: dict[str, Callable[[], nn.Module]] = {
    "plain": plain_cnn,
    "vgg_like": vgg_like,
    "resnet_like": resnet_like,
    "densenet_like": densenet_like,
}
NETWORKS = MLPS | CNNS

# In every run: each architecture and activation once, by one exporter; the others in `make test-full`.
_OFTEN = [name for name in NETWORKS if not name.endswith("_1")]
_IN_EVERY_RUN = {(name, EXPORTERS[i % len(EXPORTERS)]) for i, name in enumerate(_OFTEN)}
each_export = pytest.mark.parametrize(
    ("name", "exporter"),
    [
        pytest.param(*pair, marks=() if pair in _IN_EVERY_RUN else pytest.mark.full, id="-".join(pair))
        for pair in itertools.product(NETWORKS, EXPORTERS)
    ],
)


@cache
def case(name: str) -> Case:
    return build(NETWORKS[name], FEATURES if name in MLPS else IMAGE)


def build(make: Callable[[], nn.Module], shape: int | tuple[int, ...], seed: int = 0) -> Case:
    """A network with redrawn weights, N rows and K references, all from `seed`; torch's own state is kept."""
    size = (shape,) if isinstance(shape, int) else shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = make()
        redraw(network, torch.randn(16, *size))
        x, references = torch.randn(N, *size), 0.7 * torch.randn(K, *size) + 0.2
    return Case(network, x.numpy(), references.numpy())


def redraw(network: nn.Module, rows: torch.Tensor) -> None:
    """Xavier weights, small biases, and BatchNorm statistics taken from `rows` [16, …]; ends in eval mode."""
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_normal_(module.weight, gain=1.6)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            module.momentum = 1.0  # the statistics of the last batch, whole
        if getattr(module, "bias", None) is not None:
            nn.init.normal_(module.bias, std=0.3)
    with torch.no_grad():
        network.train()(rows)
    network.eval()
    network.requires_grad_(False)


@contextlib.contextmanager
def without_chatter() -> Iterator[None]:
    """Silences what exporters and peers print and warn about; what they return is checked instead."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


@cache
def exported(name: str, exporter: str) -> onnx.ModelProto:
    """The export of a named network, made once."""
    return export(case(name), exporter)


def export(sample: Case, exporter: str) -> onnx.ModelProto:
    """The network as ONNX with a symbolic batch, by one of PyTorch's two exporters."""
    options = {
        "torchscript": {"dynamo": False, "dynamic_axes": {"x": {0: "n"}, "y": {0: "n"}}},
        "dynamo": {"dynamo": True, "dynamic_shapes": ({0: torch.export.Dim("n")},), "verbose": False},
    }[exporter]
    with TemporaryDirectory() as folder, without_chatter():
        path = Path(folder) / "model.onnx"
        example = (torch.from_numpy(sample.x),)
        torch.onnx.export(sample.fresh(), example, path, input_names=["x"], output_names=["y"], **options)
        return onnx.load(path)
