"""Every method on every network of the main job."""

from collections.abc import Callable

import numpy as np
import pytest

import rationale
from rationale import compile_model
from rationale.methods.engine import Method
from tests.compiler.networks.test_networks import NETWORKS, rows_of
from tests.models.networks import data_input

FEW = 3  # points and draws: what is shown here is that the graph is made, runs, and passes its check

METHODS: dict[str, Callable[[np.ndarray], Method]] = {
    "gradient": lambda _: rationale.Gradient(),
    "input x gradient": lambda _: rationale.Gradient(times_input=True),
    "integrated gradients": lambda r: rationale.IntegratedGradients(r[:1], steps=FEW),
    "expected gradients": lambda r: rationale.ExpectedGradients(r, samples=FEW),
    "smoothgrad": lambda _: rationale.SmoothGrad(samples=FEW, sigma=0.1),
    "lrp epsilon plus": lambda _: rationale.Lrp("EpsilonPlus"),
    "lrp epsilon alpha beta": lambda _: rationale.Lrp("EpsilonAlpha2Beta1Flat"),
    "attnlrp": lambda _: rationale.AttnLrp(),
    "cplrp": lambda _: rationale.CpLrp(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_every_method_compiles(name: str) -> None:
    model = NETWORKS[name]()
    rows = rows_of(model, 3)
    for method in METHODS.values():
        compiled = compile_model(model, method(rows[:2]))
        attributions = compiled.explain(rows[2:])[f"{data_input(model)}_attributions"]
        assert np.isfinite(attributions).all()
        assert np.abs(attributions).max() > 0
        del compiled, attributions  # large networks fill the memory: one at a time
