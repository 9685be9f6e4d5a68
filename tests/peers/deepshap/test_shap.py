"""The same attributions as `shap.DeepExplainer`, and the truth where SHAP misses it."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.networks import import_torchvision
from rationale import DeepShap, Explanation, compile_model
from tests.peers.agreement import GAP, OUTPUTS, TRUTH, TRUTH_DEEP, assert_agree, error
from tests.peers.networks import (
    EXPORTERS,
    FEATURES,
    IMAGE,
    NETWORKS,
    Case,
    build,
    case,
    each_export,
    export,
    exported,
    mlp,
    resnet_like,
)
from tests.peers.others import shap_values
from tests.references.deeplift import Standardise, predict


@cache
def theirs(name: str) -> np.ndarray:
    sample = case(name)
    return shap_values(sample.fresh(), sample.x, sample.references)


@cache
def truth(name: str) -> np.ndarray:
    return case(name).truth()


def ours(sample: Case, exporter: str = "torchscript") -> Explanation:
    model = export(sample, exporter)
    return compile_model(model, DeepShap(sample.references), targets="all").explain(sample.x)


def differences(sample: Case) -> np.ndarray:
    """explained − base in float64: [N, T]."""
    return predict(sample.network, sample.x) - predict(sample.network, sample.references).mean(axis=0)


def sums(attributions: np.ndarray) -> np.ndarray:
    """Σ over the features: [N, T]."""
    return attributions.reshape(*attributions.shape[:2], -1).sum(axis=-1)


@pytest.mark.parametrize("name", NETWORKS)
def test_truth_adds_up(name: str) -> None:
    np.testing.assert_allclose(sums(truth(name)), differences(case(name)), atol=1e-12)


@each_export
def test_agrees(name: str, exporter: str) -> None:
    sample = case(name)
    compiled = compile_model(exported(name, exporter), DeepShap(sample.references), targets="all")
    answer = compiled.explain(sample.x)
    assert_agree(answer["x_attributions"], theirs(name))
    assert error(answer["x_attributions"], truth(name)) <= TRUTH
    assert error(answer["y"], predict(sample.network, sample.x)) <= OUTPUTS
    assert np.abs(answer["completeness_gap"]).max() <= GAP * np.abs(differences(sample)).max()


@pytest.mark.parametrize("name", NETWORKS)
def test_base_value_is_shaps_expected_value(name: str) -> None:
    sample = case(name)
    compiled = compile_model(exported(name, "torchscript"), DeepShap(sample.references), targets="all")
    answer = compiled.explain(sample.x)
    base = predict(sample.network, sample.references).mean(axis=0)
    np.testing.assert_allclose(answer["base_value"], np.tile(base, (len(sample.x), 1)), rtol=1e-5, atol=1e-6)


def test_chosen_targets_are_slices_of_all() -> None:
    sample, everything = case("tanh_3"), theirs("tanh_3")
    model = exported("tanh_3", "torchscript")
    chosen = compile_model(model, DeepShap(sample.references), targets=[2, 0]).explain(sample.x)
    assert_agree(chosen["x_attributions"], everything[:, [2, 0]])
    predicted = compile_model(model, DeepShap(sample.references), targets="predicted").explain(sample.x)
    winners = predict(sample.network, sample.x).argmax(axis=1)
    assert len(set(winners)) > 1, "every row has the same winner"
    assert_agree(predicted["x_attributions"], everything[np.arange(len(winners)), winners][:, None])


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_scalar_statistics(exporter: str) -> None:
    """(x − 0.5)/2.55, as pixels are scaled: the statistics are scalars, not vectors."""

    def scaled() -> nn.Module:
        return nn.Sequential(Standardise(torch.tensor(0.5), torch.tensor(2.55)), *mlp(nn.ReLU, 3))

    sample = build(scaled, FEATURES)
    answer = ours(sample, exporter)["x_attributions"]
    assert_agree(answer, shap_values(sample.fresh(), sample.x, sample.references))
    assert error(answer, sample.truth()) <= TRUTH


@pytest.mark.full
def test_torchvision_vgg11() -> None:
    """A real architecture, its last pool and classifier cut to the size of a small image."""

    def vgg11() -> nn.Module:
        features = import_torchvision().models.vgg11_bn(weights=None).features
        layers = [nn.ReLU() if isinstance(layer, nn.ReLU) else layer for layer in features]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 3))

    sample = build(vgg11, (3, 32, 32))
    answer = ours(sample)["x_attributions"]
    peer = shap_values(sample.fresh(), sample.x, sample.references)
    assert_agree(answer, peer)
    assert error(answer, sample.truth()) <= TRUTH_DEEP


@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.Tanh, nn.Softplus])
def test_nearer_to_the_truth_where_references_are_near(activation: type[nn.Module]) -> None:
    """Differences of 1e-5 cancel in SHAP's quotient, and those below 1e-6 are its gradient."""
    sample = build(lambda: nn.Sequential(nn.Linear(FEATURES, 24), activation(), nn.Linear(24, 3)), FEATURES)
    steps = np.random.default_rng(3).normal(scale=1e-5, size=(6, FEATURES)).astype(np.float32)
    near = sample.x[0] + steps
    compiled = compile_model(export(sample, "torchscript"), DeepShap(near), targets="all")
    answer = compiled.explain(sample.x[:2])["x_attributions"][:1]
    exact = Case(sample.network, sample.x, near).truth()[:1]
    peer = shap_values(sample.fresh(), sample.x[:2], near)[:1]
    assert error(peer, exact) > 1e-4
    assert error(answer, exact) < 0.1 * error(peer, exact)


def test_overlapping_windows_add_up_here_and_not_in_shap() -> None:
    """`max_unpool` overwrites where windows overlap; see the stem of every ResNet."""
    sample = build(lambda: resnet_like(nn.MaxPool2d(3, stride=2, padding=1)), IMAGE)
    answer, peer, exact = (
        ours(sample),
        shap_values(sample.fresh(), sample.x, sample.references),
        sample.truth(),
    )
    assert error(answer["x_attributions"], exact) <= TRUTH
    assert error(peer, exact) > 0.05
    expected = differences(sample)
    assert np.abs(sums(answer["x_attributions"]) - expected).max() <= GAP * np.abs(expected).max()
    assert np.abs(sums(peer) - expected).max() > 0.05 * np.abs(expected).max()


def test_softmax_sees_the_other_logits_and_shap_does_not() -> None:
    """SHAP takes Softmax element by element: a class whose own logit is constant gets nothing at all."""
    layers = (nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(dim=-1))
    drawn = build(lambda: nn.Sequential(*layers), FEATURES)
    layers[2].weight[0] = 0.0
    sample = Case(drawn.network, drawn.x, drawn.references)
    answer, peer = ours(sample)["x_attributions"], shap_values(sample.fresh(), sample.x, sample.references)
    expected = differences(sample)
    assert error(answer, sample.truth()) <= TRUTH
    assert np.abs(sums(answer) - expected).max() <= GAP * np.abs(expected).max()
    assert np.abs(expected[:, 0]).max() > 0.05
    assert np.abs(peer[:, 0]).max() == 0.0
