"""Integrated and expected gradients and SmoothGrad: captum's integral, captum's own draws, the same draws in
float64."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from rationale import ExpectedGradients, Explanation, IntegratedGradients, SmoothGrad, compile_model
from tests.peers.agreement import GAP, GRADIENT, error
from tests.peers.networks import CNNS, MLPS, Case, K, case, exported
from tests.peers.others import autograd, captum
from tests.references.deeplift import predict
from tests.references.interpreter import run64
from tests.tolerances import FLIPPED_SHARE

pytestmark = pytest.mark.full

STEPS = 13
WIDE = 1e-7
"""The emitted graph in float64, relative to the largest: its weights and points are float32 numbers. At one
of the 13·7·4 points of `plain` a window's two largest values agree to float32, which picks the other one."""
CHOSEN = [*MLPS, "plain", "resnet_like"]
"""Every perceptron; a convolutional network with both kinds of pool, one with residuals and BatchNorm."""


def ours(name: str, method: object) -> Explanation:
    return compile_model(exported(name, "torchscript"), method, targets="all").explain(case(name).x)


def captum_integrated(sample: Case, baseline: np.ndarray) -> np.ndarray:
    """`captum.attr.IntegratedGradients` from one row [1, …], in float64: [N, T, …]."""
    network = sample.fresh().double()
    rows, start = torch.from_numpy(sample.x).double(), torch.from_numpy(baseline).double()
    explainer = captum.attr.IntegratedGradients(network)
    values = [
        explainer.attribute(rows, start, target=t, n_steps=STEPS, method="gausslegendre")
        for t in range(network(rows).shape[1])
    ]
    return torch.stack(values, dim=1).detach().numpy()


def captum_expected(sample: Case, draws: int, target: int) -> np.ndarray:
    """`captum.attr.GradientShap` with draws of its own, without noise, in float64: [N, …]."""
    network, references = sample.fresh().double(), torch.from_numpy(sample.references).double()
    explainer = captum.attr.GradientShap(network)
    rows = torch.from_numpy(sample.x).double()
    return explainer.attribute(rows, references, n_samples=draws, stdevs=0.0, target=target).detach().numpy()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """captum draws from torch's and numpy's global state; both are put back."""
    before = np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(before)


@pytest.mark.parametrize("name", CHOSEN)
def test_integrated_gradients_from_zeros(name: str) -> None:
    sample = case(name)
    answer = ours(name, IntegratedGradients(steps=STEPS))
    assert error(answer["x_attributions"], captum_integrated(sample, np.zeros_like(sample.x[:1]))) <= GRADIENT
    base = predict(sample.network, np.zeros_like(sample.x[:1]))
    np.testing.assert_allclose(answer["base_value"], np.tile(base, (len(sample.x), 1)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["tanh_3", "relu_1", "plain"])
def test_integrated_gradients_from_references(name: str) -> None:
    sample = case(name)
    each = np.stack([captum_integrated(sample, sample.references[k : k + 1]) for k in range(K)])
    expected_outputs = {
        "x_attributions": each.mean(axis=0),
        "x_standard_error": each.std(axis=0, ddof=1) / np.sqrt(K),
    }
    method = IntegratedGradients(sample.references, STEPS, standard_error=True)
    compiled = compile_model(exported(name, "torchscript"), method, targets="all")
    narrow, wide = compiled.explain(sample.x), run64(compiled.model, {"x": sample.x})
    for output, want in expected_outputs.items():
        assert error(wide[output], want) <= WIDE
        off = np.abs(narrow[output] - want) > GRADIENT * np.abs(want).max()
        assert off.mean() <= (FLIPPED_SHARE if name in CNNS else 0)


@pytest.mark.parametrize("name", ["tanh_3", "softplus_1"])
def test_integrated_gradients_add_up(name: str) -> None:
    sample = case(name)
    answer = ours(name, IntegratedGradients(sample.references, 40))
    difference = np.abs(answer["explained_value"] - answer["base_value"]).max()
    assert np.abs(answer["completeness_gap"]).max() <= GAP * difference


@pytest.mark.parametrize("name", [*MLPS, *CNNS])
def test_expected_gradients_over_the_same_pairs(name: str) -> None:
    sample, method = case(name), ExpectedGradients(case(name).references, samples=23, seed=3)
    places, alphas = method.pairs(K)
    each = []
    for place, alpha in zip(places, alphas, strict=True):
        delta = sample.x.astype(np.float64) - sample.references[place]
        slopes = autograd(sample.fresh(), sample.references[place] + alpha * delta)
        each.append(slopes * delta[:, None])
    assert error(ours(name, method)["x_attributions"], np.mean(each, axis=0)) <= GRADIENT


@pytest.mark.parametrize("name", ["tanh_3", "relu_3", "plain"])
def test_expected_gradients_are_within_four_standard_errors_of_captums_draws(name: str) -> None:
    sample, samples, draws = case(name), 400, 2000
    answer = ours(name, ExpectedGradients(sample.references, samples, seed=8, standard_error=True))
    with seeded(0):
        theirs = captum_expected(sample, draws, target=2)
    values, errors = answer["x_attributions"][:, 2], answer["x_standard_error"][:, 2]
    combined = errors * np.sqrt(1 + samples / draws)
    distance = np.abs(values - theirs) / np.where(combined > 0, combined, 1)
    assert errors.max() < 0.1 * np.abs(theirs).max(), "the bound would hold for anything"
    assert distance.max() < 4
    assert 0.7 < np.sqrt((distance**2).mean()) < 1.3


@pytest.mark.parametrize("name", ["tanh_3", "relu_1", "vgg_like"])
def test_smoothgrad_over_the_same_noise(name: str) -> None:
    sample, method = case(name), SmoothGrad(samples=17, sigma=0.2, seed=6)
    noise = method.noise("x", sample.x.shape[1:])
    want = np.mean([autograd(sample.fresh(), sample.x + draw) for draw in noise], axis=0)
    assert error(ours(name, method)["x_attributions"], want) <= GRADIENT
    plain = autograd(sample.fresh(), sample.x)
    assert error(plain, want) > 0.01, "the noise changes nothing"
