"""Every method on every network of the main job."""

from collections.abc import Callable

import numpy as np
import pytest

import compiler
from compiler import compile_model
from compiler.explain.methods import Method
from tests.compiler.networks.test_networks import NETWORKS, rows_of
from tests.networks import data_input

FEW = 3  # points and draws: what is shown here is that the graph is made, runs, and passes its check

METHODS: dict[str, Callable[[np.ndarray], Method]] = {
    "gradient": lambda _: compiler.Gradient(),
    "input x gradient": lambda _: compiler.Gradient(times_input=True),
    "integrated gradients": lambda r: compiler.IntegratedGradients(r[:1], steps=FEW),
    "expected gradients": lambda r: compiler.ExpectedGradients(r, samples=FEW),
    "smoothgrad": lambda _: compiler.SmoothGrad(samples=FEW, sigma=0.1),
    "lrp epsilon plus": lambda _: compiler.Lrp("EpsilonPlus"),
    "lrp epsilon alpha beta": lambda _: compiler.Lrp("EpsilonAlpha2Beta1Flat"),
    "attnlrp": lambda _: compiler.AttnLrp(),
    "cplrp": lambda _: compiler.CpLrp(),
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
