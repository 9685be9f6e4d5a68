"""Options of the gradient family and of standard errors: refusals, digests, verdicts, entries, float32."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rationale import (
    DeepShap,
    Deployment,
    ExpectedGradients,
    IntegratedGradients,
    SmoothGrad,
    compile_model,
)
from rationale.errors import CheckFailedError, InvalidOptionError, InvalidReferencesError
from tests.compiler.gated import K, N, R, gated
from tests.compiler.models import FEATURES, cnn, mlp, parsed, rows
from tests.references.interpreter import run64
from tests.tolerances import PARITY_32

FIRST_ROWS = {name: r[:1] for name, r in R.items()}
TOO_FEW: dict[str, Callable[[], Any]] = {
    "one reference": lambda: DeepShap(FIRST_ROWS, standard_error=True),
    "one, repeated": lambda: DeepShap({n: r[[0, 0]] for n, r in R.items()}, standard_error=True),
    "one of any weight": lambda: DeepShap(R, [0, 1, 0], standard_error=True),
    "a baseline": lambda: IntegratedGradients(0, standard_error=True),
}


@pytest.mark.parametrize("method", [DeepShap, IntegratedGradients, ExpectedGradients])
def test_methods_of_references_are_told_apart_by_what_they_are_not_by_their_rows(method: Any) -> None:
    """Arrays have no truth and no hash."""
    first, other = (method(rows(3, 4)) for _ in range(2))
    assert first != other
    assert len({first, other, first}) == 2


@pytest.mark.parametrize("name", TOO_FEW)
def test_one_reference_has_no_spread(name: str) -> None:
    with pytest.raises(InvalidReferencesError, match="standard error"):
        compile_model(gated(), TOO_FEW[name]())


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "no steps": (lambda: IntegratedGradients(steps=0), r"steps must be a whole number, 1 to 1000, not 0"),
    "half a step": (lambda: IntegratedGradients(steps=2.5), "steps must be a whole number"),
    "steps in words": (lambda: IntegratedGradients(steps="9"), "steps must be a whole number"),
    "true steps": (lambda: IntegratedGradients(steps=True), "steps must be a whole number"),
    "a million steps": (lambda: IntegratedGradients(steps=10**6), "1 to 1000"),
    "one sample": (lambda: ExpectedGradients(R, samples=1), "samples must be a whole number, 2 to 100000"),
    "a negative seed": (lambda: ExpectedGradients(R, seed=-1), "seed must be a whole number, 0 or more"),
    "one noisy copy": (lambda: SmoothGrad(1, 0.1), "samples must be a whole number, 2 to"),
    "no noise": (lambda: SmoothGrad(5, 0), "not zero throughout"),
    "negative noise": (lambda: SmoothGrad(5, -0.1), "not negative"),
    "noise that is no number": (lambda: SmoothGrad(5, float("nan")), "must be finite"),
    "noise in words": (lambda: SmoothGrad(5, "much"), "give numbers in the input's units"),
    "ragged noise": (lambda: SmoothGrad(5, {"a": [[1.0], [1.0, 2.0]]}), "give numbers"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options(name: str) -> None:
    make, words = BAD[name]
    with pytest.raises(InvalidOptionError, match=words):
        make()


def test_sigma_must_fit_the_inputs() -> None:
    with pytest.raises(InvalidOptionError, match=r"sigma\b.*\[3\].*'b', \[4\]"):
        compile_model(gated(), SmoothGrad(5, [1.0, 2.0, 3.0]))
    with pytest.raises(InvalidOptionError, match=r"sigma\b.*'b': \['a'\]"):
        compile_model(gated(), SmoothGrad(5, {"a": 1.0}))


@pytest.mark.parametrize("references", [float("nan"), float("inf"), 1e300])
def test_a_baseline_must_be_a_number_of_the_models_dtype(references: float) -> None:
    with pytest.raises(InvalidReferencesError, match="references of 'x' hold"):
        compile_model(mlp(), IntegratedGradients(references))


def test_every_option_changes_the_digest() -> None:
    methods = [
        *(DeepShap(R), DeepShap(R, standard_error=True)),
        *(IntegratedGradients(R), IntegratedGradients(R, 49), IntegratedGradients(R, standard_error=True)),
        *(ExpectedGradients(R, 9), ExpectedGradients(R, 8), ExpectedGradients(R, 9, 1)),
        *(SmoothGrad(9, 0.1), SmoothGrad(8, 0.1), SmoothGrad(9, 0.2), SmoothGrad(9, 0.1, 1)),
        SmoothGrad(9, {"a": 0.1, "b": np.array([0.1, 0.1, 0.1, 0.2])}),
    ]
    digests = [compile_model(gated(), m).manifest.digests for m in methods]
    assert len({d.options for d in digests}) == len(methods)
    same_options = compile_model(gated(), ExpectedGradients(R, 9))
    assert same_options.manifest.digests == digests[5]
    first = compile_model(gated(), ExpectedGradients(R, 9)).model.SerializeToString(deterministic=True)
    assert same_options.model.SerializeToString(deterministic=True) == first


def test_a_name_is_taken_only_if_it_is_needed() -> None:
    model = parsed("g (double[N, 4] x) => (double[N, 4] x_standard_error) { x_standard_error = Tanh (x) }")
    compile_model(model, DeepShap(R["b"]))
    with pytest.raises(InvalidOptionError, match=r"named \['x_standard_error'\]"):
        compile_model(model, DeepShap(R["b"], standard_error=True))


# -- the check ---------------------------------------------------------------------------------------------


def test_few_steps_are_warned_of_and_not_refused() -> None:
    manifest = compile_model(gated(), IntegratedGradients(R, 1)).manifest
    assert manifest.measured.completeness_gap > 1e-2
    assert len(manifest.warnings) == 1
    assert "steps" in manifest.warnings[0]
    assert compile_model(gated(), IntegratedGradients(R, 20)).manifest.warnings == ()


def test_few_samples_are_a_sampling_error() -> None:
    manifest = compile_model(gated(), ExpectedGradients(R, 20)).manifest
    assert 0 < manifest.measured.gap_in_standard_errors < 5
    assert manifest.measured.completeness_gap > 1e-2
    assert "samples" in manifest.warnings[0]


def test_a_model_of_steps_is_no_sampling_error() -> None:
    """Its gradient is 0 everywhere, so that draws agree on nothing at all: no error, and the whole gap."""
    model = parsed("g (double[N, 4] x) => (double[N, 4] y) { y = Round (x) }")
    manifest = compile_model(model, ExpectedGradients(R["b"] * 3, 50), targets=[2]).manifest
    assert manifest.measured.gap_in_standard_errors > 1e6
    assert "gradient" in manifest.warnings[0]
    manifest = compile_model(model, IntegratedGradients(R["b"] * 3, 50), targets=[2]).manifest
    assert "gradient" in manifest.warnings[0]
    assert compile_model(model, DeepShap(R["b"] * 3), targets=[2]).manifest.warnings == ()


@pytest.mark.parametrize("method", [IntegratedGradients, ExpectedGradients])
def test_attributions_that_are_no_numbers_are_refused(method: Any) -> None:
    """√ at the reference 0: the value is finite, its slope there is not."""
    model = parsed(
        "g (double[N, 4] x) => (double[N, 4] y) { z = Mul (x, zero) s = Sqrt (z) y = Add (s, x) }",
        {"zero": np.zeros(1)},
    )
    with pytest.raises(CheckFailedError, match="not finite"):
        compile_model(model, method(R["b"]), targets=[1])


# -- float32, entries --------------------------------------------------------------------------------------

METHODS_32: dict[str, Callable[[np.ndarray], Any]] = {
    "integrated": lambda r: IntegratedGradients(r, 6, standard_error=True),
    "expected": lambda r: ExpectedGradients(r, 8, standard_error=True),
    "smoothgrad": lambda _: SmoothGrad(8, 0.1, standard_error=True),
    "deepshap": lambda r: DeepShap(r, standard_error=True),
}


@pytest.mark.parametrize("name", METHODS_32)
@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_the_float32_graph_means_what_its_nodes_mean_in_float64(name: str, network: str) -> None:
    model, shape = {"mlp": (mlp(), (FEATURES,)), "cnn": (cnn(), (2, 6, 8))}[network]
    compiled = compile_model(model, METHODS_32[name](rows(K, *shape, seed=1)), targets="all")
    x = rows(N, *shape, seed=2)
    got, want = compiled.explain(x), run64(compiled.model, {"x": x})
    size = max(np.abs(values).max() for values in want.values())
    for output, values in want.items():
        assert np.abs(got[output] - values).max() <= PARITY_32 * size, output
    assert list(got) == [o.name for o in compiled.model.graph.output]
    assert np.abs(want["x_standard_error"]).max() > 1e-3


def test_an_entry_takes_fewer_rows_the_more_points_each_costs(tmp_path: Path) -> None:
    """A batch shall not take more memory than the budget."""
    most = []
    for points in (10, 2_000, 20_000):
        method, small = SmoothGrad(points, 0.1), Deployment(memory_budget=8 << 20)
        entry = compile_model(mlp(), method, deployment=small).write(tmp_path, "m")
        config = (entry / "config.pbtxt").read_text()
        most.append(int(config.split("max_batch_size: ")[1].split()[0]))
    assert most[0] == 64
    assert most[0] > most[1] >= most[2] >= 1
