"""The gradient family on whole networks: the gradient graph's own answers at the same points, in float64.

In float64 because the same window or ReLU must be chosen at each point by both graphs.
"""

from typing import Any

import numpy as np
import pytest

from rationale import ExpectedGradients, Gradient, IntegratedGradients, SmoothGrad, compile_model
from rationale.methods.propagation.gradients import path_quadrature
from tests.compiler.models import with_floats_in
from tests.compiler.networks.test_networks import NETWORKS, rows_of
from tests.models.networks import data_input
from tests.references.interpreter import run64

N, K = 2, 3
TARGET = [1]
SAME = 1e-9  # over the largest: the same numbers added up in another order


@pytest.mark.slow  # 40 s of one core each
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.usefixtures("float64_engine")
def test_network(name: str) -> None:
    model = with_floats_in(NETWORKS[name](), np.float64)  # else the filters of one form are rounded once more
    x_name = data_input(model)
    rows = rows_of(model, K + N)
    r, x = rows[:K], rows[K:].astype(np.float64)
    gradient = compile_model(model, Gradient(), targets=TARGET).model

    def attributions(graph: Any, points: np.ndarray) -> np.ndarray:
        output = f"{x_name}_attributions"
        return run64(graph, {x_name: points}, [output])[output]

    def on_path(start: np.ndarray, alpha: np.float64) -> np.ndarray:
        delta = x - start
        return attributions(gradient, start + float(alpha) * delta) * delta[:, None]

    integrated = IntegratedGradients(r[:1], steps=2)
    expected = ExpectedGradients(r, samples=2, seed=2)
    noisy = SmoothGrad(samples=2, sigma=0.1)
    alphas, weights = path_quadrature(2)
    places, draws = expected.pairs(K)
    noise = noisy.noise(x_name, x.shape[1:])
    expected_answers: dict[Any, np.ndarray] = {
        integrated: sum(w * on_path(r[0], a) for a, w in zip(alphas, weights, strict=True)),
        expected: sum(on_path(r[k], a) / 2 for k, a in zip(places, draws, strict=True)),
        noisy: sum(attributions(gradient, x + sample_noise) / 2 for sample_noise in noise),
    }
    for method, want in expected_answers.items():
        got = attributions(compile_model(model, method, targets=TARGET).model, x)
        assert np.abs(want).max() > 0
        assert np.abs(got - want).max() <= SAME * np.abs(want).max(), method.name
