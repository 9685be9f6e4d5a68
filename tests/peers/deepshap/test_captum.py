"""The same attributions as `captum.attr.DeepLiftShap`, and the truth where captum misses it."""

import numpy as np
import pytest
from torch import nn

from rationale import DeepShap, compile_model
from tests.peers.agreement import TRUTH, assert_agree, error
from tests.peers.networks import (
    FEATURES,
    IMAGE,
    NETWORKS,
    Case,
    build,
    case,
    export,
    exported,
    resnet_like,
)
from tests.peers.others import captum_values


def theirs(sample: Case) -> np.ndarray:
    """captum's attributions, each pool kept apart from the activation before it (see the last test)."""
    return captum_values(spaced(sample.fresh()), sample.x, sample.references)


def spaced(network: nn.Sequential) -> nn.Sequential:
    """The same network with an average over windows of one value, which changes nothing, before each pool."""
    return nn.Sequential(
        *(
            layer
            for module in network
            for layer in ([nn.AvgPool2d(1)] * isinstance(module, nn.MaxPool2d) + [module])
        )
    ).eval()


def ours(sample: Case) -> np.ndarray:
    model = export(sample, "torchscript")
    return compile_model(model, DeepShap(sample.references), targets="all").explain(sample.x)[
        "x_attributions"
    ]


@pytest.mark.parametrize("name", NETWORKS)
def test_agrees(name: str) -> None:
    sample = case(name)
    compiled = compile_model(exported(name, "torchscript"), DeepShap(sample.references), targets="all")
    assert_agree(compiled.explain(sample.x)["x_attributions"], theirs(sample))


def test_overlapping_windows() -> None:
    """captum's `max_unpool` overwrites where windows overlap."""
    sample = build(lambda: resnet_like(nn.MaxPool2d(3, stride=2, padding=1)), IMAGE)
    truth = sample.truth()
    assert error(ours(sample), truth) <= TRUTH
    assert error(theirs(sample), truth) > 0.05


def test_softmax() -> None:
    """captum's Softmax subtracts a mean over the whole batch: what a row gets depends on the others."""
    layers = (nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(dim=-1))
    sample = build(lambda: nn.Sequential(*layers), FEATURES)
    alone = Case(sample.network, sample.x[:2], sample.references)
    truth = sample.truth()
    assert error(ours(sample), truth) <= TRUTH
    assert error(ours(alone), truth[:2]) <= TRUTH
    assert error(theirs(sample), truth) > 0.05
    assert error(theirs(alone), theirs(sample)[:2]) > 0.05


def test_activation_beside_pool() -> None:
    """captum's hooks of two nonlinear layers in a row sit on one tensor, and the first reads its gradient
    before the second has replaced it."""
    sample = case("plain")
    truth = sample.truth()
    assert error(ours(sample), truth) <= TRUTH
    assert error(captum_values(sample.fresh(), sample.x, sample.references), truth) > 0.05
