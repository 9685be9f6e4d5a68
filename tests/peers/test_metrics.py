"""Quantus's and captum's metrics ask our graphs, and answer as for captum's attributions of the network."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from captum.attr import Saliency
from captum.metrics import infidelity, sensitivity_max

from benchmarks.networks import import_torchvision
from rationale import Compiled, Gradient, Lrp, compile_model
from rationale.errors import InvalidOptionError
from rationale.testing import captum_explain, quantus_explain, torch_module
from tests.compiler.models import FEATURES, mlp, rows, two_inputs
from tests.needs import need
from tests.peers.networks import case, exported, without_chatter

NETWORK, TARGETS = "resnet_like", np.array([0, 2, 1])


@cache
def quantus() -> Any:
    """Import it. Its OpenCV needs libraries of the system."""
    for library in ("OpenGL", "GLib"):
        need(library)
    with without_chatter():
        import_torchvision()  # which Quantus imports
        import quantus
    return quantus


@cache
def compiled() -> Compiled:
    return compile_model(exported(NETWORK, "torchscript"), Gradient(), targets="all")


def by_captum(inputs: np.ndarray, targets: Any, **_: object) -> np.ndarray:
    x = torch.as_tensor(np.asarray(inputs), dtype=torch.float32).requires_grad_()
    with without_chatter():
        scores = Saliency(case(NETWORK).fresh()).attribute(x, target=[int(t) for t in targets], abs=False)
    values: np.ndarray = scores.detach().numpy()
    return values


METRICS = {
    "faithfulness": lambda: quantus().FaithfulnessCorrelation(
        nr_runs=20, subset_size=12, perturb_baseline="black", disable_warnings=True
    ),
    "pixel flipping": lambda: quantus().PixelFlipping(
        features_in_step=12, perturb_baseline="black", disable_warnings=True
    ),
    "sensitivity": lambda: quantus().MaxSensitivity(nr_samples=3, lower_bound=0.1, disable_warnings=True),
    "infidelity": lambda: quantus().Infidelity(
        perturb_patch_sizes=[2], n_perturb_samples=3, disable_warnings=True
    ),
}


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_of_quantus_answers_as_for_captum(name: str) -> None:
    """The same draws, the same formula: once by our graph alone, once by the network and captum."""
    x, scores = case(NETWORK).x[: len(TARGETS)], []
    for module, explain in (
        (torch_module(compiled()), quantus_explain(compiled())),
        (case(NETWORK).fresh(), by_captum),
    ):
        np.random.seed(0)  # Quantus draws from it
        with without_chatter():
            result = METRICS[name]()(
                model=module, x_batch=x, y_batch=TARGETS, explain_func=explain, device="cpu"
            )
        scores.append(np.asarray(result, np.float64))
    assert np.abs(scores[1]).max() > 1e-3
    np.testing.assert_allclose(*scores, atol=1e-4)


def test_captums_own_metrics() -> None:
    x = torch.from_numpy(case(NETWORK).x[:2])
    explain, module = captum_explain(compiled()), torch_module(compiled())
    torch.manual_seed(0)
    with without_chatter():
        ours = sensitivity_max(explain, x, perturb_radius=0.1, n_perturb_samples=3, target=1)
        torch.manual_seed(0)
        theirs = sensitivity_max(
            lambda i, target: (torch.from_numpy(by_captum(i[0].detach().numpy(), [target] * len(i[0]))),),
            x,
            perturb_radius=0.1,
            n_perturb_samples=3,
            target=1,
        )
    assert (theirs > 1e-3).all()
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-3)

    def perturbed(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        noise = 0.1 * torch.randn_like(inputs)
        return noise, inputs - noise

    scores = []
    for forward in (module, case(NETWORK).fresh()):
        torch.manual_seed(1)
        with without_chatter():
            scores.append(infidelity(forward, perturbed, x, explain(x, target=1), target=1).detach().numpy())
    np.testing.assert_allclose(*scores, rtol=1e-3)


def test_the_module_predicts_what_the_network_does() -> None:
    x = torch.from_numpy(case(NETWORK).x)
    torch.testing.assert_close(torch_module(compiled())(x), case(NETWORK).fresh()(x), atol=1e-5, rtol=1e-5)


def test_what_a_metric_cannot_ask() -> None:
    several = compile_model(two_inputs(), Lrp(), targets=[0])
    for make in (quantus_explain, captum_explain, torch_module):
        with pytest.raises(InvalidOptionError, match=r"\['a', 'b'\]"):
            make(several)
    x = rows(3, FEATURES)
    explain = quantus_explain(compile_model(mlp(), Lrp(), targets=[1]))
    with pytest.raises(InvalidOptionError, match=r"\[0, 2\]"):
        explain(x, [0, 1, 2])
    predicted = compile_model(mlp(last="Identity"), Lrp(), targets="predicted")
    winners = predicted.explain(x)["y"].argmax(axis=1)
    assert quantus_explain(predicted)(x, winners).shape == x.shape
    with pytest.raises(InvalidOptionError, match='targets="all"'):
        quantus_explain(predicted)(x, winners - 1)
