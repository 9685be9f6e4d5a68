"""The errors of SHAP, captum and Rationale on networks where they differ.

`python -m tests.peers.deepshap.differences` prints the table. The exact values come from
tests/references/deeplift.py, which computes in float64 and shares no code with the three.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import nn

from rationale import DeepShap, compile_model
from tests.peers.agreement import error
from tests.peers.networks import FEATURES, IMAGE, Case, build, export, mlp, plain_cnn, resnet_like
from tests.peers.others import captum_values, shap_values
from tests.references.deeplift import Functional, Product, predict

HIDDEN = 16
RIGHT = 1e-3  # of the largest attribution: what float32 and their thresholds cost, and more


@dataclass(frozen=True)
class Judged:
    """Errors over the largest true attribution, and what is missing over the largest that was due."""

    error: float
    missing: float


def _around(*layers: nn.Module) -> nn.Sequential:
    """A layer on each side, so that there is something to hand back to."""
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), *layers, nn.Linear(HIDDEN, 3))


def _gate() -> nn.Module:
    return Product(
        nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Sigmoid()), nn.Sequential(nn.Linear(HIDDEN, HIDDEN))
    )


def _twice_by(activation: Callable[[], nn.Module]) -> nn.Module:
    return _around(activation(), nn.Linear(HIDDEN, HIDDEN), activation())


def _the_same_twice(activation: nn.Module) -> nn.Module:
    return _around(activation, nn.Linear(HIDDEN, HIDDEN), activation)


def _with_softmax() -> nn.Module:
    return nn.Sequential(*_around(nn.ReLU()), nn.Softmax(dim=-1))


def _spaced_cnn() -> nn.Sequential:
    """`plain_cnn` with its pools apart from its activations, as captum needs it."""
    layers = list(plain_cnn())
    layers.insert(2, nn.AvgPool2d(1))
    return nn.Sequential(*layers)


Make = Callable[[], nn.Module]
AGREED: dict[str, tuple[Make, int | tuple[int, ...]]] = {
    "Linear, ReLU": (lambda: mlp(nn.ReLU, 3), FEATURES),
    "Linear, Sigmoid": (lambda: mlp(nn.Sigmoid, 3), FEATURES),
    "Linear, Tanh": (lambda: mlp(nn.Tanh, 3), FEATURES),
    "Conv, ReLU, pools that do not overlap": (_spaced_cnn, IMAGE),
}
DIFFERENT: dict[str, tuple[Make, int | tuple[int, ...]]] = {
    "max pool with overlapping windows (3×3, stride 2)": (
        lambda: resnet_like(nn.MaxPool2d(3, stride=2, padding=1)),
        IMAGE,
    ),
    "max pool right behind an activation": (plain_cnn, IMAGE),
    "Softmax at the end": (_with_softmax, FEATURES),
    "SiLU (EfficientNet, Llama)": (
        lambda: _around(nn.SiLU(), nn.Linear(HIDDEN, HIDDEN), nn.SiLU()),
        FEATURES,
    ),
    "GELU (BERT, ViT)": (lambda: _around(nn.GELU(), nn.Linear(HIDDEN, HIDDEN), nn.GELU()), FEATURES),
    "LayerNorm": (lambda: _around(nn.LayerNorm(HIDDEN), nn.ReLU()), FEATURES),
    "product of two branches (a gate)": (lambda: _around(_gate()), FEATURES),
    "activation called as a function (`torch.tanh(x)`)": (
        lambda: _twice_by(lambda: Functional(torch.tanh)),
        FEATURES,
    ),
    "one activation module used twice": (lambda: _the_same_twice(nn.Tanh()), FEATURES),
}
CASES = AGREED | DIFFERENT
TOOLS: dict[str, Callable[[Case], np.ndarray]] = {
    "Rationale": lambda c: _ours(c),
    "SHAP": lambda c: shap_values(c.fresh(), c.x, c.references),
    "captum": lambda c: captum_values(c.fresh(), c.x, c.references),
}


def _ours(case: Case) -> np.ndarray:
    compiled = compile_model(export(case, "torchscript"), DeepShap(case.references), targets="all")
    return compiled.explain(case.x)["x_attributions"]


@cache
def case(name: str) -> Case:
    make, shape = CASES[name]
    return build(make, shape)


@cache
def truth(name: str) -> np.ndarray:
    return case(name).truth()


@cache
def judged(name: str, tool: str) -> Judged | str:
    """How far a tool is from the truth; what it says where it gives no answer."""
    sample = case(name)
    try:
        values = TOOLS[tool](sample)
    except (AssertionError, RuntimeError, AttributeError) as refusal:
        return f"{type(refusal).__name__}: {refusal}"
    expected = predict(sample.network, sample.x) - predict(sample.network, sample.references).mean(axis=0)
    missing = values.reshape(*expected.shape, -1).sum(axis=-1) - expected
    return Judged(error(values, truth(name)), float(np.abs(missing).max() / np.abs(expected).max()))


def _cell(result: Judged | str) -> str:
    if isinstance(result, str):
        return "raises"
    return (
        "right"
        if max(result.error, result.missing) <= RIGHT
        else f"{result.error:.0%} / {result.missing:.0%}"
    )


def table() -> str:
    """Markdown: largest error / what is missing of the sum, or "right" where both are below RIGHT."""
    lines = ["| network | " + " | ".join(TOOLS) + " |", "|---|" + "---|" * len(TOOLS)]
    lines += [
        f"| {name} | " + " | ".join(_cell(judged(name, tool)) for tool in TOOLS) + " |" for name in CASES
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table())
