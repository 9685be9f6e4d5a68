"""LRP beside zennit: its composites and its single rules, on networks like VGG, ResNet and a perceptron.

zennit merges BatchNorm with ε beside the root of the variance instead of under it, so the networks' ε is
next to nothing here; `test_norms_with_epsilon` shows what that is worth.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from benchmarks.networks import import_torchvision
from rationale import Lrp, compile_model
from rationale.methods.propagation.lrp import rules as lrp
from rationale.methods.propagation.lrp.rules import RelevanceRule
from rationale.methods.propagation.lrp.texts import parse_choice
from tests.grid import grid
from tests.peers.lrp.zennit_values import zennit_gradients, zennit_layers, zennit_values
from tests.peers.networks import (
    CLASSES,
    FEATURES,
    IMAGE,
    Case,
    build,
    export,
    mlp,
    plain_cnn,
    vgg_like,
    without_chatter,
)
from tests.references.deeplift import Concat
from tests.tolerances import ZENNIT_32

pytestmark = pytest.mark.full

with without_chatter():
    torchvision = import_torchvision()
    from zennit import canonizers, composites, rules
    from zennit.torchvision import ResNetCanonizer
    from zennit.types import Activation, AvgPool, Convolution, Linear

LOW, HIGH = -4.0, 4.0
TARGETS = [0, 2]


def without_epsilon(network: nn.Module) -> nn.Module:
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-12
    return network


def relu_cnn() -> nn.Module:
    """`plain_cnn` with ReLUs alone: of others, zennit's ExcitationBackprop takes the gradient."""
    return nn.Sequential(*(nn.ReLU() if isinstance(m, nn.Tanh) else m for m in plain_cnn()))


def resnet() -> nn.Module:
    """torchvision's own blocks, which zennit's canonizer knows."""
    return torchvision.models.resnet.ResNet(
        torchvision.models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=CLASSES
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Any, Callable[[], list[Any]]]] = {
    "mlp": (lambda: mlp(nn.ReLU, CLASSES), FEATURES, list),
    "cnn": (relu_cnn, IMAGE, list),
    "vgg": (vgg_like, IMAGE, lambda: [canonizers.SequentialMergeBatchNorm()]),
    "resnet": (resnet, (3, 33, 42), lambda: [ResNetCanonizer()]),
}


@cache
def case(name: str) -> Case:
    make, shape, _ = NETWORKS[name]
    return build(lambda: without_epsilon(make()), shape)


@cache
def exported(name: str, exporter: str = "torchscript") -> onnx.ModelProto:
    return export(case(name), exporter)


def box(x: np.ndarray) -> dict[str, torch.Tensor]:
    return {"low": torch.full(x.shape, LOW), "high": torch.full(x.shape, HIGH)}


COMPOSITES: dict[str, Callable[..., Any]] = {
    "EpsilonPlus": composites.EpsilonPlus,
    "EpsilonAlpha2Beta1": composites.EpsilonAlpha2Beta1,
    "EpsilonPlusFlat": composites.EpsilonPlusFlat,
    "EpsilonAlpha2Beta1Flat": composites.EpsilonAlpha2Beta1Flat,
    "EpsilonGammaBox": composites.EpsilonGammaBox,
    "ExcitationBackprop": composites.ExcitationBackprop,
}


def assert_agree(ours: np.ndarray, theirs: np.ndarray) -> None:
    scale = np.abs(theirs).max()
    assert scale > 1e-4
    assert np.abs(ours - theirs).max() <= ZENNIT_32 * scale


@grid("name, composite", NETWORKS, COMPOSITES)
def test_composite(name: str, composite: str) -> None:
    sample = case(name)
    options = box(sample.x) if composite == "EpsilonGammaBox" else {}
    theirs = COMPOSITES[composite](canonizers=NETWORKS[name][2](), **options)
    compiled = compile_model(exported(name), Lrp(composite, low=LOW, high=HIGH), targets=TARGETS)
    got = compiled.explain(sample.x)["x_attributions"]
    assert_agree(got, zennit_values(sample.fresh(), theirs, sample.x, TARGETS))


OWN_RULES = (
    "Conv=generalizedgamma(0.3)",
    "Gemm=epsilon:0.1",
    "name:^/7/=zplus()",
    "Conv:2-2=alphabeta(alpha=3, beta=2)",
    "last=epsilon(0.05)",
    "first=zbox(epsilon=1e-5)",
)


def test_a_composite_of_ones_own() -> None:
    """By type, name and place; zennit's finds the same modules by their names."""
    sample = case("vgg")
    method = Lrp("EpsilonAlpha2Beta1", [parse_choice(text) for text in OWN_RULES], low=LOW, high=HIGH)
    compiled = compile_model(exported("vgg"), method, targets=TARGETS)
    by_name = [
        (["7"], rules.ZPlus()),
        (["3"], rules.AlphaBeta(3, 2)),
        (["19"], rules.Epsilon(0.05)),
        (["0"], rules.ZBox(**box(sample.x), stabilizer=1e-5)),
    ]
    by_type = [
        (Activation, rules.Pass()),
        (AvgPool, rules.Norm()),
        (Convolution, rules.Gamma(0.3)),
        (Linear, rules.Epsilon(0.1)),
    ]
    theirs = composites.NameLayerMapComposite(by_name, by_type, canonizers=NETWORKS["vgg"][2]())
    got = compiled.explain(sample.x)["x_attributions"]
    assert_agree(got, zennit_values(sample.fresh(), theirs, sample.x, TARGETS))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_layer(name: str) -> None:
    """Of the walk that also reaches the input; a convolution with its BatchNormalization is one layer."""
    sample = case(name)
    compiled = compile_model(exported(name), Lrp("EpsilonPlus"), targets=TARGETS, layers="all")
    answer = compiled.explain(sample.x)
    theirs = zennit_layers(
        sample.fresh(), composites.EpsilonPlus(canonizers=NETWORKS[name][2]()), sample.x, TARGETS
    )
    layers = compiled.manifest.layers
    assert len(layers) == len(theirs)
    for layer, expected in zip(layers, theirs, strict=True):
        assert_agree(answer[layer.attributions], expected)


@grid("name, composite", ["vgg", "resnet"], ["EpsilonPlus", "EpsilonGammaBox"])
def test_the_other_exporter(name: str, composite: str) -> None:
    """Which leaves BatchNormalization in the graph, or not: relevance is the same."""
    compiled_pair = [
        compile_model(exported(name, exporter), Lrp(composite, low=LOW, high=HIGH), targets=TARGETS)
        for exporter in ("torchscript", "dynamo")
    ]
    x = case(name).x
    assert_agree(*(compiled.explain(x)["x_attributions"] for compiled in compiled_pair))


@pytest.mark.parametrize(
    ("composite", "theirs"),
    [("GuidedBackprop", composites.GuidedBackprop), ("Deconvnet", composites.DeconvNet)],
)
@pytest.mark.parametrize("name", NETWORKS)
def test_other_gradients(name: str, composite: str, theirs: Callable[[], Any]) -> None:
    sample = case(name)
    compiled = compile_model(exported(name), Lrp(composite), targets=TARGETS)
    got = compiled.explain(sample.x)["x_attributions"]
    assert_agree(got, zennit_gradients(sample.fresh(), theirs(), sample.x, TARGETS))


RULES: list[tuple[RelevanceRule, Callable[[np.ndarray], Any]]] = [
    (lrp.Zero(), lambda _: rules.Epsilon(0.0)),
    (lrp.Epsilon(0.1), lambda _: rules.Epsilon(0.1)),
    (lrp.GeneralizedGamma(0.3), lambda _: rules.Gamma(0.3)),
    (lrp.ZPlus(), lambda _: rules.ZPlus()),
    (lrp.AlphaBeta(3, 2), lambda _: rules.AlphaBeta(3, 2)),
    (lrp.WSquare(), lambda _: rules.WSquare()),
    (lrp.Flat(), lambda _: rules.Flat()),
    (lrp.ZBox(LOW, HIGH), lambda x: rules.ZBox(**box(x))),
]


@pytest.mark.parametrize(("ours", "theirs"), RULES, ids=[str(rule) for rule, _ in RULES])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_rule(name: str, ours: RelevanceRule, theirs: Callable[[np.ndarray], Any]) -> None:
    """As the rule of the first layer, under ε everywhere else."""
    sample = case(name)
    layers = [(Activation, rules.Pass()), (AvgPool, rules.Norm()), ((Convolution, Linear), rules.Epsilon())]
    first = [((Convolution, Linear), theirs(sample.x))]
    composite = composites.SpecialFirstLayerMapComposite(layers, first)
    choices = (("first 99", lrp.Epsilon()), ("first", ours))
    got = compile_model(exported(name), Lrp(rules=choices), targets=TARGETS).explain(sample.x)
    assert_agree(got["x_attributions"], zennit_values(sample.fresh(), composite, sample.x, TARGETS))


def test_the_plain_gamma_rule_is_the_generalised_one_for_positive_inputs() -> None:
    """zennit has the generalised rule alone; they part where x, or y with relevance, is negative."""
    x = np.abs(case("mlp").x)
    compiled_pair = [
        compile_model(exported("mlp"), Lrp(rules=[("Gemm", rule)]), targets=TARGETS)
        for rule in (lrp.Gamma(), lrp.GeneralizedGamma())
    ]
    hidden = [compiled.explain(x)["x_attributions"] for compiled in compiled_pair]
    sign = positive_scores(x)
    assert_agree(hidden[0][sign], hidden[1][sign])
    assert np.abs(hidden[0][~sign] - hidden[1][~sign]).max() > 0.01


def positive_scores(x: np.ndarray) -> np.ndarray:
    """[N, T]: where the explained score is positive."""
    with torch.no_grad():
        scores = case("mlp").network(torch.from_numpy(x)).numpy()
    return scores[:, TARGETS] > 0


def test_norms_with_epsilon() -> None:
    """A BatchNorm's ε stands under the root. zennit's merge puts it beside: with PyTorch's 1e-5 they part."""
    sample = build(vgg_like, IMAGE)
    compiled = compile_model(export(sample, "torchscript"), Lrp(), targets=TARGETS)
    theirs = composites.EpsilonPlus(canonizers=[canonizers.SequentialMergeBatchNorm()])
    merged = _merged(sample.fresh())
    got = compiled.explain(sample.x)["x_attributions"]
    assert_agree(got, zennit_values(merged, composites.EpsilonPlus(), sample.x, TARGETS))
    off = np.abs(got - zennit_values(sample.fresh(), theirs, sample.x, TARGETS)).max() / np.abs(got).max()
    assert 2 * ZENNIT_32 < off < 1e-3


def _merged(network: nn.Sequential) -> nn.Module:
    """Each BatchNorm folded into the convolution before it, by PyTorch's own function."""
    layers: list[Any] = []
    for layer in network:
        if isinstance(layer, nn.BatchNorm2d):
            layers[-1] = torch.nn.utils.fusion.fuse_conv_bn_eval(layers[-1], layer)
        else:
            layers.append(layer)
    return nn.Sequential(*layers).eval()


@pytest.mark.parametrize("composite", ["EpsilonPlus", "EpsilonAlpha2Beta1Flat"])
def test_norms_that_are_part_of_no_layer(composite: str) -> None:
    """BatchNorm before each ReLU, behind a concatenation: relevance passes it."""
    sample = build(lambda: without_epsilon(pre_activated()), IMAGE)
    compiled = compile_model(export(sample, "torchscript"), Lrp(composite), targets=TARGETS)
    theirs = COMPOSITES[composite]()
    got = compiled.explain(sample.x)["x_attributions"]
    assert_agree(got, zennit_values(sample.fresh(), theirs, sample.x, TARGETS))


def pre_activated() -> nn.Module:
    def dense(channels: int) -> nn.Module:
        layers = (nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 4, 3, padding=1))
        return Concat(nn.Identity(), nn.Sequential(*layers))

    tail = (nn.BatchNorm2d(14), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(14, CLASSES))
    return nn.Sequential(nn.Conv2d(3, 6, 3), dense(6), dense(10), *tail)
