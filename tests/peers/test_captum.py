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


def theirs(given: Case) -> np.ndarray:
    """captum's attributions, each pool kept apart from the activation before it (see the last test)."""
    return captum_values(spaced(given.fresh()), given.x, given.references)


def spaced(network: nn.Sequential) -> nn.Sequential:
    """The same network with an average over windows of one value, which changes nothing, before each pool."""
    return nn.Sequential(
        *(
            part
            for layer in network
            for part in ([nn.AvgPool2d(1)] * isinstance(layer, nn.MaxPool2d) + [layer])
        )
    ).eval()


def ours(given: Case) -> np.ndarray:
    model = export(given, "torchscript")
    return compile_model(model, DeepShap(given.references), targets="all").explain(given.x)["x_attributions"]


@pytest.mark.parametrize("name", NETWORKS)
def test_agrees(name: str) -> None:
    given = case(name)
    compiled = compile_model(exported(name, "torchscript"), DeepShap(given.references), targets="all")
    assert_agree(compiled.explain(given.x)["x_attributions"], theirs(given))


def test_overlapping_windows() -> None:
    """captum's `max_unpool` overwrites where windows overlap."""
    given = build(lambda: resnet_like(nn.MaxPool2d(3, stride=2, padding=1)), IMAGE)
    truth = given.truth()
    assert error(ours(given), truth) <= TRUTH
    assert error(theirs(given), truth) > 0.05


def test_softmax() -> None:
    """captum's Softmax subtracts a mean over the whole batch: what a row gets depends on the others."""
    layers = (nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(dim=-1))
    given = build(lambda: nn.Sequential(*layers), FEATURES)
    alone = Case(given.network, given.x[:2], given.references)
    truth = given.truth()
    assert error(ours(given), truth) <= TRUTH
    assert error(ours(alone), truth[:2]) <= TRUTH
    assert error(theirs(given), truth) > 0.05
    assert error(theirs(alone), theirs(given)[:2]) > 0.05


def test_activation_beside_pool() -> None:
    """captum's hooks of two nonlinear layers in a row sit on one tensor, and the first reads its gradient
    before the second has replaced it."""
    given = case("plain")
    truth = given.truth()
    assert error(ours(given), truth) <= TRUTH
    assert error(captum_values(given.fresh(), given.x, given.references), truth) > 0.05
