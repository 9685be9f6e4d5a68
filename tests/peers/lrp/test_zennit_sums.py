"""LRP beside zennit in float64, where ε could enter twice: sums, averages, standalone norms, activations.

A layer above each sum hands back relevance, or a multiplier, by its rule; what leaves the sum must not depend
on which. Every network is exported with its sums as Add and, as zennit has them, as the ReduceSum of a stack.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from rationale import Lrp, compile_model
from rationale.methods.propagation.lrp import rules as lrp
from rationale.methods.propagation.lrp.rules import RelevanceRule
from tests.grid import grid
from tests.peers.lrp.test_zennit import COMPOSITES, HIGH, LOW, TARGETS, box
from tests.peers.lrp.zennit_values import zennit_values
from tests.peers.networks import CLASSES, FEATURES, Case, build, export, without_chatter
from tests.references.deeplift import Sum
from tests.references.engine import computing_in_float64
from tests.references.interpreter import run64
from tests.tolerances import ZENNIT_64

with without_chatter():
    from zennit import composites, layer, rules
    from zennit.types import Activation, AvgPool, BatchNorm, Convolution, Linear

IMAGE = (3, 6, 8)


class Stacked(Sum):
    """The same sum by zennit's own module."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__(*branches)
        self.total = layer.Sum()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.total(torch.stack([branch(x) for branch in self.branches], dim=-1))


def conv(inputs: int, outputs: int) -> nn.Module:
    return nn.Conv2d(inputs, outputs, 3, padding=1)


def norm(channels: int) -> nn.Module:
    """Its ε is exact in float32, as which ONNX holds it."""
    return nn.BatchNorm2d(channels, eps=2.0**-16)


def pre_activated(add: type[Sum]) -> nn.Module:
    """Residual blocks that start with BatchNorm and ReLU: both are part of no layer."""

    def block(width: int) -> nn.Module:
        layers = (norm(6), nn.ReLU(), conv(6, width), nn.ReLU(), conv(width, 6))
        return add(nn.Identity(), nn.Sequential(*layers))

    tail = (norm(6), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(72, CLASSES))
    return nn.Sequential(conv(3, 6), block(5), block(7), *tail)


def branches(add: type[Sum]) -> nn.Module:
    """Layers side by side, a Tanh behind their sum, an average behind that."""
    summed = add(conv(3, 6), nn.Conv2d(3, 6, 5, padding=2))
    return nn.Sequential(summed, nn.Tanh(), nn.AvgPool2d((3, 4)), nn.Flatten(), nn.Linear(24, CLASSES))


def averages(_: type[Sum]) -> nn.Module:
    """Averages before activations that hand back relevance, one behind the other."""
    ends = (nn.AvgPool2d(3, 1), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, CLASSES))
    return nn.Sequential(conv(3, 6), nn.AvgPool2d(2), norm(6), nn.Tanh(), conv(6, 5), *ends)


def perceptron(add: type[Sum]) -> nn.Module:
    """Layers, and sums of sums, of what is no image."""
    inner = add(nn.Linear(9, 8), nn.Sequential(nn.Tanh(), nn.Linear(9, 8)))
    outer = add(inner, nn.Linear(9, 8))
    return nn.Sequential(nn.Linear(FEATURES, 9), outer, nn.ELU(), nn.Linear(8, CLASSES))


BY_FORM: dict[str, type[Sum]] = {"Add": Sum, "ReduceSum": Stacked}
NETWORKS: dict[str, tuple[Callable[[type[Sum]], nn.Module], Any]] = {
    "pre-activated": (pre_activated, IMAGE),
    "branches": (branches, IMAGE),
    "averages": (averages, IMAGE),
    "perceptron": (perceptron, FEATURES),
}
EXPORTS = [(name, form) for name in NETWORKS for form in BY_FORM if (name, form) != ("averages", "ReduceSum")]


@dataclass(frozen=True)
class Double:
    """A network in float64 with its sums in both forms, and its rows."""

    forms: dict[str, Case]

    @property
    def x(self) -> np.ndarray:
        return self.forms["Add"].x

    def theirs(self, composite: Any) -> np.ndarray:
        return zennit_values(self.forms["ReduceSum"].fresh(), composite, self.x, TARGETS)


@cache
def case(name: str) -> Double:
    make, shape = NETWORKS[name]
    return in_float64({form: build(lambda add=add: make(add), shape) for form, add in BY_FORM.items()})


def in_float64(forms: dict[str, Case]) -> Double:
    return Double(
        {k: replace(v, network=v.network.double(), x=v.x.astype(np.float64)) for k, v in forms.items()}
    )


@cache
def exported(name: str, form: str) -> onnx.ModelProto:
    return export(case(name).forms[form], "torchscript")


@pytest.fixture(autouse=True)
def float64_engine() -> Iterator[None]:
    with computing_in_float64():
        yield


def assert_agree(model: onnx.ModelProto, method: Lrp, x: np.ndarray, want: np.ndarray) -> None:
    compiled = compile_model(model, method, targets=TARGETS)
    got = run64(compiled.model, {"x": x}, ["x_attributions"])["x_attributions"]
    scale = np.abs(want).max()
    assert scale > 1e-4
    assert np.abs(got - want).max() <= ZENNIT_64 * scale


@grid("written, composite", EXPORTS, COMPOSITES)
def test_composite(written: tuple[str, str], composite: str) -> None:
    """zennit's ExcitationBackprop takes gradients of what it does not name: here it is told to hand on."""
    name, form = written
    sample = case(name)
    options: dict[str, Any] = {}
    if composite == "EpsilonGammaBox":
        options = {key: bound.double() for key, bound in box(sample.x).items()}
    if composite == "ExcitationBackprop":
        options = {"layer_map": [((Activation, BatchNorm), rules.Pass())]}
    want = sample.theirs(COMPOSITES[composite](**options))
    assert_agree(exported(name, form), Lrp(composite, low=LOW, high=HIGH), sample.x, want)


RULES: list[tuple[RelevanceRule, Any]] = [
    (lrp.Zero(), rules.Epsilon(0.0)),
    (lrp.Epsilon(0.1), rules.Epsilon(0.1)),
    (lrp.GeneralizedGamma(0.3), rules.Gamma(0.3)),
    (lrp.ZPlus(), rules.ZPlus()),
    (lrp.AlphaBeta(3, 2), rules.AlphaBeta(3, 2)),
    (lrp.WSquare(), rules.WSquare()),
    (lrp.Flat(), rules.Flat()),
    (lrp.ZBox(-9.0, 9.0), rules.ZBox(-9.0, 9.0)),
]


def by_types(of_layers: Any, of_sums: Any) -> Any:
    """zennit's composite with one rule for each kind of module."""
    passing = ((Activation, BatchNorm), rules.Pass())
    return composites.LayerMapComposite(
        [passing, ((AvgPool, layer.Sum), of_sums), ((Convolution, Linear), of_layers)]
    )


@grid("written, rule", EXPORTS, {str(ours): ours for ours, _ in RULES})
def test_rule_of_every_layer(written: tuple[str, str], rule: str) -> None:
    (name, form), (ours, theirs) = written, next(pair for pair in RULES if str(pair[0]) == rule)
    sample = case(name)
    want = sample.theirs(by_types(theirs, rules.Norm()))
    assert_agree(exported(name, form), Lrp(rules=[("first 99", ours)]), sample.x, want)


@grid(
    "name, epsilon, form, above", ["branches", "perceptron"], [0.1, 0.0], BY_FORM, [lrp.Epsilon(), lrp.Flat()]
)
def test_rule_of_every_sum(name: str, epsilon: float, form: str, above: RelevanceRule) -> None:
    """A large ε shows whether it is there once, whatever the layer above hands back."""
    sample = case(name)
    of_layers = rules.Flat() if isinstance(above, lrp.Flat) else rules.Epsilon()
    want = sample.theirs(by_types(of_layers, rules.Norm(epsilon)))
    summing = [(form, lrp.Epsilon(epsilon))] + [("AveragePool", lrp.Epsilon(epsilon))] * (name == "branches")
    assert_agree(exported(name, form), Lrp(rules=[("first 99", above), *summing]), sample.x, want)


ACTIVATIONS = {
    "gelu": nn.GELU,
    "gelu by tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "hard swish": nn.Hardswish,
    "softsign": nn.Softsign,
    "tanhshrink": nn.Tanhshrink,
    "log sigmoid": nn.LogSigmoid,
    "elu": nn.ELU,
    "celu": nn.CELU,
}


@grid("name, composite", ACTIVATIONS, ["EpsilonPlus", "EpsilonPlusFlat"])
def test_activations_hand_relevance_on(name: str, composite: str) -> None:
    """Those as well that exporters write as several operators."""
    activation = ACTIVATIONS[name]

    def network(add: type[Sum]) -> nn.Module:
        summed = add(nn.Linear(9, 8), nn.Linear(9, 8))
        return nn.Sequential(
            nn.Linear(FEATURES, 9), activation(), summed, activation(), nn.Linear(8, CLASSES)
        )

    sample = in_float64(
        {form: build(lambda add=add: network(add), FEATURES) for form, add in BY_FORM.items()}
    )
    want = sample.theirs(COMPOSITES[composite]())
    assert_agree(export(sample.forms["Add"], "torchscript"), Lrp(composite), sample.x, want)
