"""Integrated and expected gradients, SmoothGrad: against torch's own derivatives at the same points."""

from typing import Any

import numpy as np
import pytest

from rationale import (
    DeepShap,
    ExpectedGradients,
    Gradient,
    IntegratedGradients,
    SmoothGrad,
    compile_model,
)
from tests.compiler.gated import A, Arrays, B, K, N, R, T, V, X, derivatives, gated, value
from tests.compiler.models import parsed
from tests.compiler.samples import SAMPLES, Sample, parameters
from tests.references.interpreter import run64
from tests.tolerances import COMPLETE_64


def by_pairs(n: int, starts: Arrays, alphas: np.ndarray) -> dict[str, np.ndarray]:
    """(x − r)·f'(r + α(x − r)) of row n for each pair: [P, T, …]."""
    deltas = {name: X[name][n] - starts[name] for name in "ab"}
    points = {name: starts[name] + alphas[:, None] * deltas[name] for name in "ab"}
    slopes = derivatives(points)
    return {name: slopes[name] * deltas[name][:, None] for name in "ab"}


def explained(method: Any, **options: Any) -> dict[str, np.ndarray]:
    return run64(compile_model(gated(), method, **{"targets": "all", **options}).model, X)


def assert_equal(got: np.ndarray, want: np.ndarray) -> None:
    assert got.shape == want.shape
    assert np.abs(want).max() > 1e-3, "nothing to compare"
    np.testing.assert_allclose(got, want, atol=COMPLETE_64 * max(1.0, np.abs(want).max()), rtol=0)


pytestmark = pytest.mark.usefixtures("float64_engine")


# -- at kinks and steps ----------------------------------------------------------------------------------

PLACES = np.array([-3.0, -2.5, -1.0, -0.5, 0.0, 0.5, 1.0, 2.5, 3.0, 6.0])
HELD = {
    "half": np.asarray(0.5),
    "low": np.asarray(-1.0),
    "high": np.asarray(2.5),
    "two": np.asarray(2.0),
    "quarter": np.asarray(0.25),
    "axis": np.asarray([1]),
    "mixed": np.asarray([2.0, 3.0, 2.0, 1.0, 2.0, 0.5, 2.0, 0.5, 3.0, 1.0]),
}
# The slope at each of PLACES: at a kink that of one side, at a bound and at a step 0.
SLOPES: dict[str, tuple[str, list[float]]] = {
    "Relu": ("Relu (x)", [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]),
    "LeakyRelu": ("LeakyRelu <alpha = 0.25> (x)", [0.25] * 5 + [1] * 5),
    "PRelu": ("PRelu (x, quarter)", [0.25] * 5 + [1] * 5),
    "ThresholdedRelu": ("ThresholdedRelu <alpha = 0.5> (x)", [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]),
    "HardSigmoid": (
        "HardSigmoid <alpha = 0.25, beta = 0.375> (x)",
        [0, 0, 0.25, 0.25, 0.25, 0.25, 0.25, 0, 0, 0],
    ),
    "HardSwish": ("HardSwish (x)", [0, -1 / 3, 1 / 6, 1 / 3, 1 / 2, 2 / 3, 5 / 6, 4 / 3, 1, 1]),
    "Clip": ("Clip (x, low, high)", [0, 0, 0, 1, 1, 1, 1, 0, 0, 0]),
    "Abs": ("Abs (x)", [-1, -1, -1, -1, 0, 1, 1, 1, 1, 1]),
    "Softsign": ("Softsign (x)", [float(1 / (1 + abs(v)) ** 2) for v in PLACES]),
    "Shrink": ("Shrink <lambd = 0.5, bias = 0.25> (x)", [1, 1, 1, 0, 0, 0, 1, 1, 1, 1]),
    "Max": ("Max (x, half)", [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]),
    "Max, the other way round": ("Max (half, x)", [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]),
    "Min": ("Min (x, half)", [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]),
    "Min, the other way round": ("Min (half, x)", [1, 1, 1, 1, 1, 1, 0, 0, 0, 0]),
    "Mod": ("Mod <fmod = 1> (x, two)", [1] * 10),
    "square": ("Pow (x, two)", [float(2 * v) for v in PLACES]),
    "several powers": ("Pow (x, mixed)", [-6, 18.75, -2, 1, 0, 0.5**0.5, 2, 0.5 / 2.5**0.5, 27, 1]),
    **{step: (f"{step} (x)", [0] * 10) for step in ("Sign", "Floor", "Ceil", "Round")},
}


@pytest.mark.parametrize("name", SLOPES)
def test_the_slope_on_both_sides_of_a_kink_and_at_it(name: str) -> None:
    node, slopes = SLOPES[name]
    held = {k: v for k, v in HELD.items() if f" {k}" in node.replace("(", "( ")}
    model = parsed(f"g (double[N, 10] x) => (double[N, 10] y) {{ y = {node} }}", held)
    got = run64(compile_model(model, Gradient(), targets="all").model, {"x": PLACES[None]})
    np.testing.assert_allclose(got["x_attributions"][0], np.diag(slopes), atol=1e-7)


@pytest.mark.parametrize("exponents", [[0.5, 0.5, 0.5], [0.5, 2.0, 1.0], [0.5, 0.25, 3.0]], ids=str)
def test_a_root_of_a_square_has_the_slope_0_at_0(exponents: list[float]) -> None:
    """Whatever powers the other elements have."""
    model = parsed(
        "g (double[N, 3] x) => (double[N, 3] y) { square = Mul (x, x) y = Pow (square, n) }",
        {"n": np.array(exponents)},
    )
    x = np.array([[0.0, 0.0, 0.0], [1.5, -2.0, 0.5]])
    got = run64(compile_model(model, Gradient(), targets="all").model, {"x": x})["x_attributions"]
    n = np.array(exponents)
    slopes = [[0, 0, 0], 2 * n * np.sign(x[1]) * np.abs(x[1]) ** (2 * n - 1)]
    np.testing.assert_allclose(got, [np.diag(each) for each in slopes], atol=COMPLETE_64)


TIED = np.array([[2.0, -4.0, 4.0, -4.0, 4.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
# Over two rows of six: the multiplier of each element.
CHOICES: dict[str, tuple[str, list[list[float]]]] = {
    "ReduceMax": ("ReduceMax (x, axis)", [[0, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]]),
    "ReduceMin": ("ReduceMin (x, axis)", [[0, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]]),
    "ReduceL1": ("ReduceL1 (x, axis)", [[1, -1, 1, -1, 1, 1], [0, 0, 0, 0, 0, 0]]),
    "ReduceL2": ("ReduceL2 (x, axis)", [[float(v / np.sqrt(69)) for v in TIED[0]], [0, 0, 0, 0, 0, 0]]),
}


@pytest.mark.parametrize("name", CHOICES)
def test_of_equal_values_the_first_is_chosen(name: str) -> None:
    node, expected = CHOICES[name]
    model = parsed(f"g (double[N, 6] x) => (double[N, 1] y) {{ y = {node} }}", {"axis": HELD["axis"]})
    got = run64(compile_model(model, Gradient(), targets=[0]).model, {"x": TIED})
    np.testing.assert_allclose(got["x_attributions"][:, 0], expected, atol=COMPLETE_64)


# -- integrated gradients --------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("sample", parameters(s for s in SAMPLES if s.float64))
def test_every_operator_walks_at_the_points(sample: Sample) -> None:
    """Integrated gradients are the gradient graph's own answers at the points, added up."""
    n, steps = 2, 4
    model = sample.model(np.float64)
    output = model.graph.output[0].type.tensor_type.shape.dim[1:]
    targets = sorted({0, int(np.prod([d.dim_value for d in output])) - 1})
    x, r = sample.draw(n, 1, np.float64), sample.draw(K, 2, np.float64)
    got = run64(compile_model(model, IntegratedGradients(r, steps), targets=targets).model, x)
    gradient = compile_model(model, Gradient(), targets=targets).model
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    want = {name: np.zeros((n, len(targets), *a.shape[1:])) for name, a in x.items()}
    for k in range(K):
        start = {name: a[k : k + 1] for name, a in r.items()}
        points = {
            name: np.concatenate([start[name] + (node + 1) / 2 * (a - start[name]) for node in nodes])
            for name, a in x.items()
        }
        slopes = run64(gradient, points)  # [steps·N, T, …]
        for name, a in x.items():
            each = slopes[f"{name}_attributions"].reshape(steps, n, len(targets), *a.shape[1:])
            want[name] += np.tensordot(weights / 2 / K, each, 1) * (a - start[name])[:, None]
    for name, attributions in want.items():
        tolerance = COMPLETE_64 * max(1.0, np.abs(attributions).max())
        np.testing.assert_allclose(got[f"{name}_attributions"], attributions, atol=tolerance, rtol=0)


def test_integrated_gradients_of_several_inputs() -> None:
    answer = explained(IntegratedGradients(R, steps=7))
    nodes, weights = np.polynomial.legendre.leggauss(7)
    base = value(R).mean(axis=0)
    for n in range(N):
        each = [
            by_pairs(n, {name: np.repeat(R[name][k : k + 1], 7, axis=0) for name in "ab"}, (nodes + 1) / 2)
            for k in range(K)
        ]
        for name in "ab":
            want = np.mean([np.tensordot(weights / 2, gradients[name], 1) for gradients in each], axis=0)
            assert_equal(answer[f"{name}_attributions"][n], want)
    assert_equal(answer["base_value"], np.tile(base, (N, 1)))
    assert_equal(answer["explained_value"], value(X))
    total = answer["a_attributions"].sum(-1) + answer["b_attributions"].sum(-1)
    np.testing.assert_allclose(answer["completeness_gap"], value(X) - base - total, atol=COMPLETE_64)


def test_the_gap_closes_with_the_steps() -> None:
    gaps = [np.abs(explained(IntegratedGradients(R, s))["completeness_gap"]).max() for s in (1, 4, 16, 64)]
    assert gaps[0] > 0.1
    assert gaps[1] < gaps[0] / 5
    assert gaps[2] < gaps[1] / 1e4
    assert gaps[3] < COMPLETE_64


@pytest.mark.parametrize(("number", "baseline"), [(0, 0.0), (0.25, 0.25), (np.float32(-1), -1.0)])
def test_a_number_is_a_row(number: float, baseline: float) -> None:
    same = {name: np.full((1, X[name].shape[1]), baseline) for name in "ab"}
    by_number, by_rows = (explained(IntegratedGradients(references, 9)) for references in (number, same))
    for name, values in by_number.items():
        assert np.array_equal(values, by_rows[name]), name
    assert_equal(by_number["base_value"] + 1, np.tile(value(same), (N, 1)) + 1)


def test_the_default_is_zeros_and_fifty_steps() -> None:
    compiled = compile_model(gated(), IntegratedGradients(), targets="all")
    assert compiled.manifest.method.options == {"steps": 50, "standard_error": False}
    assert compiled.manifest.points == 50
    answer = run64(compiled.model, X)
    assert np.array_equal(answer["base_value"], np.zeros((N, T)))
    assert np.abs(answer["completeness_gap"]).max() < 1e-10


def test_only_the_explained_inputs_move() -> None:
    answer = explained(IntegratedGradients({"a": R["a"]}, 5), inputs=["a"])
    nodes, weights = np.polynomial.legendre.leggauss(5)
    want = np.zeros((N, T, A))
    for n in range(N):
        for k in range(K):
            delta = X["a"][n] - R["a"][k]
            points = {"a": R["a"][k] + (nodes[:, None] + 1) / 2 * delta, "b": np.tile(X["b"][n], (5, 1))}
            want[n] += np.tensordot(weights / 2, derivatives(points)["a"], 1) * delta / K
    assert_equal(answer["a_attributions"], want)
    assert "b_attributions" not in answer


def test_predicted_is_the_class_of_the_row_not_of_its_points() -> None:
    everything = explained(IntegratedGradients(R, 3))
    chosen = explained(IntegratedGradients(R, 3), targets="predicted")
    winners = value(X).argmax(axis=1)
    assert len(set(winners)) == T
    assert not np.array_equal(winners, value(R).argmax(axis=1)[np.arange(N) % K])
    for name in ("a_attributions", "base_value", "explained_value", "completeness_gap"):
        np.testing.assert_allclose(
            chosen[name][:, 0], everything[name][np.arange(N), winners], atol=COMPLETE_64
        )


def test_equal_references_are_walked_once() -> None:
    repeated = {name: r[[0, 1, 0, 2, 0]] for name, r in R.items()}
    compiled = compile_model(gated(), IntegratedGradients(repeated, 4, standard_error=True), targets="all")
    assert compiled.manifest.points == K * 4
    got = run64(compiled.model, X)
    each = [explained(IntegratedGradients({n: r[k : k + 1] for n, r in R.items()}, 4)) for k in range(K)]
    stacked = np.stack([each[k]["a_attributions"] for k in (0, 1, 0, 2, 0)])
    assert_equal(got["a_attributions"], stacked.mean(axis=0))
    assert_equal(got["a_standard_error"], stacked.std(axis=0, ddof=1) / np.sqrt(5))


# -- expected gradients ----------------------------------------------------------------------------------


def test_expected_gradients_over_the_same_pairs() -> None:
    method = ExpectedGradients(R, samples=11, seed=4, standard_error=True)
    answer = explained(method)
    places, alphas = method.pairs(K)
    starts = {name: r[places] for name, r in R.items()}
    for n in range(N):
        each = by_pairs(n, starts, alphas)
        for name in "ab":
            assert_equal(answer[f"{name}_attributions"][n], each[name].mean(axis=0))
            error = each[name].std(axis=0, ddof=1) / np.sqrt(11)
            assert_equal(answer[f"{name}_standard_error"][n], error)
        total = sum(each[name].sum(axis=-1) for name in "ab")
        error = total.std(axis=0, ddof=1) / np.sqrt(11)
        assert_equal(answer["completeness_gap_standard_error"][n], error)
    assert_equal(answer["base_value"], np.tile(value(R).mean(axis=0), (N, 1)))


def test_draws_follow_the_weights_of_merged_references() -> None:
    repeated = {name: r[[0] * 97 + [1, 2]] for name, r in R.items()}
    compiled = compile_model(gated(), ExpectedGradients(repeated, samples=50), targets="all")
    assert compiled.manifest.points == 50
    weights = np.array([97, 1, 1]) / 99
    places, alphas = ExpectedGradients(repeated, samples=50).pairs(K, weights)
    assert (places == 0).sum() >= 45
    starts = {name: r[places] for name, r in R.items()}
    want = by_pairs(2, starts, alphas)["a"].mean(axis=0)
    assert_equal(run64(compiled.model, X)["a_attributions"][2], want)


def test_the_gap_is_what_its_standard_error_says() -> None:
    """Over 24 seeds, rows and targets the gap in standard errors scatters as a normal variable does."""
    answers = [explained(ExpectedGradients(R, samples=120, seed=s)) for s in range(24)]
    z = np.array([a["completeness_gap"] / a["completeness_gap_standard_error"] for a in answers])
    assert 0.8 < np.sqrt((z**2).mean()) < 1.2
    assert np.abs(z).max() < 5


# -- SmoothGrad ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sigma", [0.3, {"a": 0.2, "b": [0.1, 0.0, 2.0, 0.5]}], ids=["one", "by input and feature"]
)
def test_smoothgrad_over_the_same_noise(sigma: Any) -> None:
    method = SmoothGrad(samples=9, sigma=sigma, seed=5, standard_error=True)
    answer = explained(method)
    noise = {name: method.noise(name, X[name].shape[1:]) for name in "ab"}
    if isinstance(sigma, dict):
        assert np.array_equal(noise["b"][:, 1], np.zeros(9))
        assert noise["b"][:, 2].std() > 0.8
    for n in range(N):
        slopes = derivatives({name: X[name][n] + noise[name] for name in "ab"})
        for name in "ab":
            assert_equal(answer[f"{name}_attributions"][n], slopes[name].mean(axis=0))
            error = slopes[name].std(axis=0, ddof=1) / 3
            assert_equal(answer[f"{name}_standard_error"][n], error)
    assert sorted(answer) == sorted(
        [
            "y",
            "explained_value",
            *(f"{n}_{kind}" for n in "ab" for kind in ("attributions", "standard_error")),
        ]
    )


def test_noise_is_normal_and_its_own_for_each_input() -> None:
    method = SmoothGrad(samples=4000, sigma=0.5, seed=1)
    a, b = method.noise("a", (4,)), method.noise("b", (4,))
    for noise in (a, b):
        assert abs(noise.mean()) < 5 * 0.5 / np.sqrt(noise.size)
        assert noise.std() == pytest.approx(0.5, rel=0.03)
    assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.05
    alone = explained(SmoothGrad(6, 0.3), inputs=["a"])["a_attributions"]
    noise = SmoothGrad(6, 0.3).noise("a", (A,))
    points = {"a": X["a"][0] + noise, "b": np.tile(X["b"][0], (6, 1))}
    assert_equal(alone[0], derivatives(points)["a"].mean(axis=0))


def test_a_linear_model_has_the_same_gradient_everywhere() -> None:
    model = parsed("g (double[N, 4] x) => (double[N, 2] y) { y = MatMul (x, w) }", {"w": V})
    x = {"x": X["b"]}
    noisy = run64(compile_model(model, SmoothGrad(3, 1.0, standard_error=True), targets="all").model, x)
    assert_equal(noisy["x_attributions"], np.tile(V.T, (N, 1, 1)))
    assert np.array_equal(noisy["x_standard_error"], np.zeros((N, T, B)))
    integrated = compile_model(model, IntegratedGradients(R["b"], 1), targets="all")
    delta = X["b"][:, None] - R["b"].mean(axis=0)
    assert_equal(run64(integrated.model, x)["x_attributions"], delta * V.T)


# -- standard errors of DeepSHAP -------------------------------------------------------------------------


def one_by_one(references: Arrays, **options: Any) -> dict[str, np.ndarray]:
    """DeepSHAP's attributions by each reference alone: [K, N, T, …]."""
    count = len(next(iter(references.values())))
    answers = [
        explained(DeepShap({n: r[k : k + 1] for n, r in references.items()}), **options) for k in range(count)
    ]
    return {name: np.stack([a[f"{name}_attributions"] for a in answers]) for name in references}


def test_deepshaps_error_is_the_spread_over_its_references() -> None:
    answer = explained(DeepShap(R, standard_error=True))
    for name, each in one_by_one(R).items():
        assert_equal(answer[f"{name}_standard_error"], each.std(axis=0, ddof=1) / np.sqrt(K))
        assert_equal(answer[f"{name}_attributions"], each.mean(axis=0))
    plain = explained(DeepShap(R))
    assert set(answer) - set(plain) == {"a_standard_error", "b_standard_error"}


def test_repeated_references_count_as_often_as_they_are_given() -> None:
    order = [0, 1, 0, 2, 1]
    repeated = {name: r[order] for name, r in R.items()}
    got = explained(DeepShap(repeated, standard_error=True))["b_standard_error"]
    each = one_by_one(R)["b"][order]
    assert_equal(got, each.std(axis=0, ddof=1) / np.sqrt(5))


def test_weighted_references_are_worth_fewer() -> None:
    weights = np.array([0.6, 0.3, 0.1])
    answer = explained(DeepShap(R, weights * 7, standard_error=True))
    each = one_by_one(R)["a"]
    mean = np.tensordot(weights, each, 1)
    worth = 1 / (weights**2).sum()
    want = np.sqrt(np.tensordot(weights, (each - mean) ** 2, 1) / (worth - 1))
    assert 1 < worth < K
    assert_equal(answer["a_standard_error"], want)
    assert_equal(answer["a_attributions"], mean)
