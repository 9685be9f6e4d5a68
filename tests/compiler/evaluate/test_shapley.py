"""`rationale evaluate --shapley`: sampled Shapley values against all coalitions, closed forms, bad input."""

import csv
import itertools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from rationale import DeepShap, ExactShap, Gradient, IntegratedGradients, compile_model
from rationale.errors import InvalidOptionError
from rationale.evaluate.evaluate import EvaluationSettings, evaluate
from rationale.evaluate.explained_model import ExplainedModel, GivenReferences, evaluated_pairs
from rationale.evaluate.shapley import (
    LEAST_ROUNDS,
    PRECISE,
    ReasonAgreement,
    ShapleyComparison,
    compare,
    enumerate_coalitions,
    rounds_within,
    sample,
)
from rationale.methods.engine import Method
from rationale.terminal import print_report
from rationale_service.cli.main import app
from tests.compiler.models import FEATURES, NAMES, mlp, parsed, rows, two_inputs

WEIGHTS = np.array([0.5, 0.2, 0.3])
MANY = 13  # features, of which not every coalition is asked about


def exact(answer: Callable[[np.ndarray], np.ndarray], x: np.ndarray, references: np.ndarray) -> np.ndarray:
    """[t, F]: Shapley values of v(S) = Σ_k w_k·f(x_S, r_k elsewhere), from their definition."""
    features = len(x)
    values = np.zeros((answer(x[None]).shape[1], features))
    for i in range(features):
        other_features = [j for j in range(features) if j != i]
        for size in range(features):
            share = math.factorial(size) * math.factorial(features - size - 1) / math.factorial(features)
            for chosen in itertools.combinations(other_features, size):
                without = references.copy()
                without[:, chosen] = x[list(chosen)]
                with_ = without.copy()
                with_[:, i] = x[i]
                values[:, i] += share * WEIGHTS @ (answer(with_) - answer(without))
    return values


def network(features: int = 6, outputs: int = 2) -> Callable[[np.ndarray], np.ndarray]:
    random = np.random.default_rng(3)
    first, second = random.standard_normal((features, 8)), random.standard_normal((8, outputs))
    return lambda x: np.tanh(np.tanh(2 * x @ first) @ second)


def drawn(count: int, features: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, features))


# -- sampling ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_sampled_values_are_within_a_few_standard_errors(seed: int) -> None:
    answer, x, references = network(), drawn(1, 6, seed)[0], drawn(3, 6, seed + 10)
    sampled = sample(answer, x, references, WEIGHTS, 3000, np.random.default_rng(seed))
    expected = exact(answer, x, references)
    assert np.abs((sampled.values - expected) / sampled.errors).max() < 4
    assert (np.linalg.norm(sampled.errors, axis=1) <= PRECISE * np.linalg.norm(sampled.values, axis=1)).all()
    assert LEAST_ROUNDS < sampled.rounds < 3000


def test_the_standard_error_is_that_of_many_samples() -> None:
    answer, x, references = network(), drawn(1, 6, 0)[0], drawn(3, 6, 10)
    many = [sample(answer, x, references, WEIGHTS, 20, np.random.default_rng(seed)) for seed in range(200)]
    spread = np.std([sampled.values for sampled in many], axis=0)
    np.testing.assert_allclose(np.mean([sampled.errors for sampled in many], axis=0), spread, rtol=0.2)


def test_values_add_up_however_few_the_rounds() -> None:
    answer, x, references = network(), drawn(1, 6, 0)[0], drawn(3, 6, 1)
    sampled = sample(answer, x, references, WEIGHTS, 1, np.random.default_rng(0))
    expected = answer(x[None])[0] - WEIGHTS @ answer(references)
    np.testing.assert_allclose(sampled.values.sum(axis=1), expected, atol=1e-13)


@pytest.mark.parametrize("terms", ["one feature each", "two features each"])
def test_an_antithetic_pair_is_exact_for(terms: str) -> None:
    """Of two features each comes first once: what is left to chance are terms of three and more."""

    def answer(x: np.ndarray) -> np.ndarray:
        alone = np.sin(x[:, :1]) + x[:, 1:2] ** 2 - np.exp(x[:, 4:])
        return (
            alone
            if terms.startswith("one")
            else alone + x[:, 2:3] * np.tanh(x[:, :1]) - x[:, 1:2] * x[:, 3:4]
        )

    x, references = drawn(1, 5, 0)[0], drawn(3, 5, 1)
    sampled = sample(answer, x, references, WEIGHTS, 1000, np.random.default_rng(0))
    assert sampled.rounds == LEAST_ROUNDS
    np.testing.assert_allclose(sampled.values, exact(answer, x, references), atol=1e-13)
    assert sampled.errors.max() < 1e-13


def test_a_single_feature_has_the_whole_difference() -> None:
    answer, x, references = network(1), drawn(1, 1, 0)[0], drawn(3, 1, 1)
    sampled = sample(answer, x, references, WEIGHTS, 5, np.random.default_rng(0))
    np.testing.assert_allclose(sampled.values[:, 0], answer(x[None])[0] - WEIGHTS @ answer(references))


@pytest.mark.parametrize("owner", [[0, 1, 2, 3, 4, 5], [0, 1, 0, 2, 1, 3]])
def test_every_coalition_is_the_definition(owner: list[int]) -> None:
    answer, x, references = network(), drawn(1, 6, 0)[0], drawn(3, 6, 10)
    owners = np.array(owner)
    shapley = enumerate_coalitions(answer, x, references, WEIGHTS, owners)
    if owner == [*range(6)]:
        np.testing.assert_allclose(shapley.values, exact(answer, x, references), atol=1e-13)
    many = sample(answer, x, references, WEIGHTS, 3000, np.random.default_rng(0), owners)
    assert np.abs((many.values - shapley.values) / many.errors).max() < 4
    assert (shapley.errors.max(), shapley.rounds) == (0, 0)


# -- entries -------------------------------------------------------------------------------------------


def compared(
    method: Method,
    model: object,
    references: GivenReferences,
    x: object,
    seed: int = 0,
    most: int = 4_000_000,
) -> ShapleyComparison:
    compiled = compile_model(model, method, targets="all")
    subject = ExplainedModel(compiled, compiled.fit(x))
    return compare(subject, evaluated_pairs(subject), references, most, seed, lambda *_: None)[0]


def test_deepshap_of_a_product_is_exact() -> None:
    text = """g (float[N, 4] x) => (float[N, 2] y)
        { a, b = Split <axis = 1, num_outputs = 2> (x) y = Mul (a, b) }"""
    references = rows(3, 4, seed=1)
    comparison = compared(DeepShap(references), parsed(text), GivenReferences({"x": references}), rows(5, 4))
    assert len(comparison.distances) == 10
    assert max(comparison.distances) < 1e-5
    assert max(comparison.errors) < 1e-5
    assert (comparison.first, comparison.players, comparison.rounds) == (1.0, 4, 0)
    assert comparison.largest is None  # the four largest of four are always the same
    assert comparison.evaluations == 5 * 3 * 2**4


def test_the_distance_is_that_of_all_coalitions() -> None:
    """Weighted references, as centroids have, and several targets."""
    references, x = rows(3, FEATURES, seed=1), rows(4, FEATURES, seed=2)
    method = DeepShap(references, WEIGHTS)
    comparison = compared(method, mlp(), GivenReferences({"x": references}, 7 * WEIGHTS), x)
    compiled = compile_model(mlp(), method, targets="all")
    attributions = compiled.explain(x)["x_attributions"].astype(np.float64)

    def answer(z: np.ndarray) -> np.ndarray:
        return compiled.explain(z.astype(np.float32))["y"].astype(np.float64)

    expected = np.stack([exact(answer, row, references.astype(np.float64)) for row in x])
    distances = np.linalg.norm(attributions - expected, axis=2) / np.linalg.norm(expected, axis=2)
    assert np.sort(comparison.distances) == pytest.approx(np.sort(distances.reshape(-1)), abs=1e-5)
    assert max(comparison.errors) == comparison.rounds == 0
    assert distances.max() > 0.05
    largest = np.abs(attributions).argmax(axis=2) == np.abs(expected).argmax(axis=2)
    assert comparison.first == pytest.approx(largest.mean())


def test_several_inputs_are_players_together() -> None:
    model = two_inputs()
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim[1:]] for v in model.graph.input}
    references = {name: rows(3, *shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    x = {name: rows(4, *shape, seed=9 + i) for i, (name, shape) in enumerate(shapes.items())}
    comparison = compared(DeepShap(references), model, GivenReferences(references), x, most=100_000)
    features = sum(math.prod(shape) for shape in shapes.values())
    assert comparison.evaluations == 4 * 3 * 2**features
    assert max(comparison.distances) < 1
    assert min(comparison.correlations) > 0.5


def test_the_same_seed_samples_the_same_for_every_method() -> None:
    model, references = mlp((MANY, 8, 3)), rows(3, MANY, seed=1)
    background, x = GivenReferences({"x": references}), rows(4, MANY)
    shap, path = DeepShap(references), IntegratedGradients(references, steps=5)
    first, two, other = (compared(shap, model, background, x, seed, 10_000) for seed in (1, 1, 2))
    assert first == two
    assert first.errors != other.errors
    assert first.evaluations == 4 * (4 + first.rounds * 2 * 3 * (MANY - 1)) <= 10_000
    beside = compared(path, model, background, x, 1, 10_000)
    assert beside.errors == first.errors
    assert beside.distances != first.distances


def test_a_constant_model_has_nothing_to_compare() -> None:
    text = "g (float[N, 3] x) => (float[N, 2] y) { z = Sub (x, x) y = MatMul (z, w) }"
    references = rows(3, 3, seed=1)
    background = GivenReferences({"x": references})
    comparison = compared(DeepShap(references), parsed(text, {"w": rows(3, 2)}), background, rows(4, 3))
    assert (comparison.distances, comparison.correlations, comparison.rounds) == ((), (), 0)


def test_reasons_of_declines_are_those_of_exact_values(tmp_path: Path) -> None:
    """Against exactshap's own: by code, in order and in any order, after the least share."""
    references, x = rows(6, FEATURES, seed=1), rows(40, FEATURES, seed=9)
    profile = {
        "output": "y",
        "threshold": 0.5,
        "adverse": "above",
        "max_reasons": 3,
        "least_share": 0.2,
        "features": {name: {"reason": code} for name, code in zip(NAMES, "ABCDA", strict=True)},
        "reasons": {code: f"text {code}" for code in "ABCD"},
    }
    model = mlp((FEATURES, 64, 64, 1), last="Sigmoid")
    codes = {}
    for name, method in (("deep", DeepShap(references)), ("exact", ExactShap(references))):
        compiled = compile_model(model, method, feature_names=NAMES, decision=profile)
        compiled.write(tmp_path / "repo", name)
        codes[name] = [
            [r.code for r in decision.reasons]
            for decision in compiled.decide(x)
            if decision.decision == "decline"
        ]
    np.save(tmp_path / "r.npy", references)
    np.save(tmp_path / "x.npy", x)
    agreements = {
        evaluation.name: evaluation.shapley.reasons
        for evaluation in evaluate(
            tmp_path / "repo",
            ["deep", "exact"],
            tmp_path / "x.npy",
            [tmp_path / "r.npy"],
            EvaluationSettings(shapley=True, orders=1),
        )
        if isinstance(evaluation.shapley, ShapleyComparison)
    }
    pairs = [*zip(codes["deep"], codes["exact"], strict=True)]
    lists = np.mean([ours == theirs for ours, theirs in pairs])
    sets = np.mean([{*ours} == {*theirs} for ours, theirs in pairs])
    assert 0 < lists < sets < 1
    assert agreements == {
        "deep": ReasonAgreement(len(pairs), lists, sets),
        "exact": ReasonAgreement(len(pairs), 1, 1),
    }


def test_whole_numbers_are_players(tmp_path: Path) -> None:
    """Of m·y, whose Shapley values ExactShap has; noise is added to y alone."""
    text = """g (int64[N, 1] m, float[N, 1] y) => (float[N, 1] z) { f = Cast <to = 1> (m)  z = Mul (f, y) }"""
    rows_by_input = {"m": np.arange(7)[:, None], "y": rows(7, 1)}
    compile_model(parsed(text), ExactShap(rows_by_input)).write(tmp_path, "whole")
    np.savez(tmp_path / "x.npz", **rows_by_input)
    file = tmp_path / "x.npz"
    (evaluation,) = evaluate(tmp_path, ["whole"], file, [file], EvaluationSettings(shapley=True, orders=1))
    assert isinstance(evaluation.shapley, ShapleyComparison)
    assert max(evaluation.shapley.distances) < 1e-5


# -- the command ---------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    references, weights = rows(4, FEATURES, seed=1), np.array([0.4, 0.3, 0.2, 0.1])
    compile_model(mlp(), DeepShap(references, weights)).write("model_repository", "m")
    compile_model(mlp(), Gradient()).write("model_repository", "g")
    np.savez("r.npz", x=references, reference_weights=weights)
    np.save("x.npy", rows(6, FEATURES, seed=9))
    return tmp_path


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["evaluate", *arguments, "--input", "x.npy", "--rows", "5"])


@pytest.mark.full
def test_the_command_and_its_files(place: Path) -> None:
    result = call("m", "g", "--references", "r.npz", "--shapley", "--out", "out")
    assert result.exit_code == 0, result.output
    assert "Shapley values ↓" in result.stdout
    assert "5 players, 640 answers" in " ".join(result.stderr.split())
    assert "g: no Shapley values" in result.stderr
    row, other = csv.DictReader((place / "out/evaluation.csv").read_text().splitlines())
    assert (
        "m: 5 players are few enough for exact Shapley values: compile with --method exactshap"
        in result.output
    )
    assert 0 < float(row["shapley_distance_least"]) <= float(row["shapley_distance"]) < 1
    assert float(row["shapley_standard_error_largest"]) <= PRECISE
    assert other["shapley_distance"] == ""
    held = json.loads((place / "out/evaluation.json").read_text())
    assert len(held["entries"][0]["shapley"]["distances"]) == 5
    assert held["entries"][1]["shapley"] is None
    assert "Shapley" not in call("m").stdout


def test_the_compile_says_that_deepshap_approximates(capsys: pytest.CaptureFixture[str]) -> None:
    for method in (DeepShap(rows(4, FEATURES)), Gradient()):
        print_report(compile_model(mlp(), method).manifest)
    lines = [line for line in capsys.readouterr().out.splitlines() if "approximates Shapley values" in line]
    assert len(lines) == 1
    assert "rationale evaluate --shapley" in lines[0]


REFUSED = {
    "no references": (("m",), "give --references FILE"),
    "no entry with references": (("g",), "compares with no references"),
    "few evaluations": (
        ("m", "--references", "r.npz", "--evaluations", "639"),
        r"5 rows of 5 features against 4 references need .*640 answers .* than --evaluations 639",
    ),
    "none": (("m", "--references", "r.npz", "--evaluations", "0"), "--evaluations"),
}


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_sampled_is_refused_at_once(name: str) -> None:
    arguments, words = REFUSED[name]
    result = call(*arguments, "--shapley")
    assert result.exit_code == 2, result.output
    assert re.search(words, " ".join(result.stderr.split())), result.stderr
    assert result.stdout == ""


def test_an_image_is_refused_unless_told() -> None:
    """150,528 features: 300,000 answers for each reference and round."""
    with pytest.raises(InvalidOptionError, match="150528 features against 10 references"):
        rounds_within(EvaluationSettings().evaluations, 10, 150_528, 10)
    assert rounds_within(10**10, 10, 150_528, 10) >= LEAST_ROUNDS


def test_as_many_answers_as_are_needed_suffice() -> None:
    """Check two games: all coalitions of three features, and the fewest orders of many features."""
    assert rounds_within(2 * 4 * 2**3, 2, 3, 4) == 0
    with pytest.raises(InvalidOptionError, match=r"need at least 64 answers of the model, more than .* 63"):
        rounds_within(2 * 4 * 2**3 - 1, 2, 3, 4)
    least = 2 * (1 + 4 + LEAST_ROUNDS * 2 * 4 * (MANY - 1))
    assert rounds_within(least, 2, MANY, 4) == LEAST_ROUNDS
    with pytest.raises(InvalidOptionError, match=f"at least {least} answers"):
        rounds_within(least - 1, 2, MANY, 4)
