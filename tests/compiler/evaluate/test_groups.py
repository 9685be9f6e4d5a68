"""Entries with groups of features: what is in a group is replaced together."""

from pathlib import Path

import numpy as np

from rationale import DeepShap, Gradient, TreeShap, compile_model
from rationale.evaluate.evaluate import Evaluation, EvaluationSettings, evaluate
from rationale.evaluate.shapley import ShapleyComparison
from rationale.methods.engine import Method
from rationale.pictures.panels import Bars
from tests.compiler.models import parsed, rows, two_inputs
from tests.references import trees as of

K, N = 3, 8


def judged(
    folder: Path, model: object, method: Method, x: dict[str, np.ndarray], groups: object
) -> Evaluation:
    compile_model(model, method, targets=[0], groups=groups).write(folder / "repo", "m")
    np.savez(folder / "x.npz", **x)
    references = method.reference_set
    np.savez(folder / "r.npz", **(references if isinstance(references, dict) else {"x": references}))
    sampled = EvaluationSettings(rows=30, orders=4, shapley=True)
    (evaluation,) = evaluate(folder / "repo", ["m"], folder / "x.npz", [folder / "r.npz"], sampled)
    return evaluation


def test_a_linear_model(tmp_path: Path) -> None:
    """Its attributions w·(x − mean) are known, those of groups their sums; a group is one step of a curve."""
    w = rows(6, 1, seed=7)
    model = parsed("g (float[N, 6] x) => (float[N, 1] y) { [head] y = MatMul (x, w) }", {"w": w})
    x, references = rows(N, 6, seed=2), rows(K, 6, seed=1) + 1
    evaluation = judged(tmp_path, model, DeepShap(references), {"x": x}, {"a": ["x[4]", "x[0]", "x[1]"]})
    each = w[:, 0] * (x - references.mean(axis=0, dtype=np.float64))
    players = np.stack([each[:, [0, 1, 4]].sum(1), each[:, 2], each[:, 3], each[:, 5]], axis=1)
    shares = np.sort(players, axis=1)[:, ::-1]
    after = np.concatenate([np.zeros((N, 1)), shares.cumsum(axis=1)], axis=1)
    np.testing.assert_allclose(evaluation.deletion.fractions, np.arange(5) / 4, atol=1e-15)
    np.testing.assert_allclose(evaluation.deletion.values, (x @ w - after).mean(axis=0), atol=1e-5)
    assert isinstance(evaluation.shapley, ShapleyComparison)
    assert max(evaluation.shapley.distances) < 1e-5
    assert evaluation.randomised.left_out is None
    (panel, *_) = evaluation.panels
    assert isinstance(panel, Bars)
    assert set(panel.labels) == {"a", "x[2]", "x[3]", "x[5]"}


def test_several_inputs(tmp_path: Path) -> None:
    """Of products of two values DeepSHAP is exact, however their features are grouped."""
    text = """g (float[N, 2] a, float[N, 4] b) => (float[N, 2] y)
        { c, d = Split <axis = 1, num_outputs = 2> (b) p = Mul (c, d) y = Add (p, a) }"""
    references = {"a": rows(K, 2, seed=1), "b": rows(K, 4, seed=2)}
    x = {"a": rows(N, 2, seed=3), "b": rows(N, 4, seed=4)}
    evaluation = judged(tmp_path, parsed(text), DeepShap(references), x, {"g": ["b[3]", "b[1]"]})
    assert isinstance(evaluation.shapley, ShapleyComparison)
    assert max(evaluation.shapley.distances) < 1e-5
    assert len(evaluation.deletion.values) == 2 + 3 + 1


def test_players_of_trees_are_their_shapley_values(tmp_path: Path) -> None:
    trees = of.random_trees(4, ("LEQ", "LT"), columns=1)
    x, references = rows(N, 5, seed=2), rows(K, 5, seed=3)
    evaluation = judged(
        tmp_path, of.regressor(trees), TreeShap(references), {"x": x}, {"g": ["x[1]", "x[4]"]}
    )
    assert isinstance(evaluation.shapley, ShapleyComparison)
    assert max(np.subtract(evaluation.shapley.distances, np.multiply(5, evaluation.shapley.errors))) < 1e-5


def test_slopes_of_groups_are_an_order(tmp_path: Path) -> None:
    compile_model(two_inputs(), Gradient(), targets=[0], groups={"g": ["a[0]", "b[1]"]}).write(tmp_path, "m")
    np.savez(tmp_path / "x.npz", a=rows(N, 3), b=rows(N, 4))
    (evaluation,) = evaluate(tmp_path, ["m"], tmp_path / "x.npz")
    assert len(evaluation.deletion.values) == 2 + 3 + 1 + 1
