"""Interactions of two features against every coalition."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from typer.testing import CliRunner

from rationale import InvalidOptionError, TreeShap, compile_model
from rationale.artifact.entry import open_entry
from rationale.cli.compile import app
from rationale.trees.read import read_ensemble
from rationale.trees.tables import build_tables
from tests.compiler.trees.test_players import looked_up
from tests.references import trees as forest
from tests.tolerances import COMPLETE_64, PARITY_32

K, N = 7, 9
MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")
TREES = forest.random_trees(4, MODES, columns=3)
REFERENCES, X = forest.rows(1, K), forest.rows(2, N)
WORTH = forest.interventional(lambda z: forest.scores(TREES, z), X, REFERENCES)


def test_interventional() -> None:
    compiled = compile_model(forest.regressor(TREES), TreeShap(REFERENCES, interactions=True), targets="all")
    answer, plain = (
        compiled.explain(X),
        compile_model(forest.regressor(TREES), TreeShap(REFERENCES), targets="all"),
    )
    interactions, expected = answer["x_interactions"], forest.interactions_of(WORTH, 5)
    assert interactions.shape == expected.shape == (N, 3, 5, 5)
    assert np.abs(interactions - expected).max() <= PARITY_32 * np.abs(expected).max()
    np.testing.assert_array_equal(interactions, interactions.swapaxes(2, 3))
    np.testing.assert_allclose(interactions.sum(axis=3), answer["x_attributions"], atol=1e-6)
    np.testing.assert_array_equal(answer["x_attributions"], plain.explain(X)["x_attributions"])
    assert compiled.manifest.explained[0].interactions == "x_interactions"
    assert compiled.manifest.method.options == {"interactions": True}
    assert plain.manifest.explained[0].interactions is None


def test_path_dependent() -> None:
    rows = forest.rows(3, 3000)
    answer = compile_model(forest.regressor(TREES), TreeShap(covers=rows, interactions=True), targets=[2, 0])
    expected = forest.interactions_of(forest.path_dependent(TREES, X, forest.covers_of(TREES, rows)), 5)[
        :, [2, 0]
    ]
    assert np.abs(answer.explain(X)["x_interactions"] - expected).max() <= PARITY_32 * np.abs(expected).max()


def test_players() -> None:
    player_of = np.array([3, 0, 3, 2, 0])
    ensemble = read_ensemble(forest.regressor(TREES).graph.node[0], 5)
    tables = build_tables(ensemble, ensemble.weights, REFERENCES, None, player_of, pairs=True)
    worth = forest.interventional(
        lambda z: forest.scores(TREES, z), X, REFERENCES, player_of=player_of.tolist()
    )
    expected = forest.interactions_of(worth, 4)
    assert tables.units == ((0, 2), (0, 3), (2, 3))  # player 1 owns nothing
    for unit, values in zip(tables.units, np.moveaxis(looked_up(tables, X), 2, 0), strict=True):
        assert np.abs(values - expected[:, :, unit[0], unit[1]]).max() <= COMPLETE_64


def test_features_that_never_meet() -> None:
    """Stumps: no pair at all, and all lies on the diagonal."""
    stumps = [
        forest.Split(i, "LEQ", (0.0,), False, forest.Leaf((1.0,)), forest.Leaf((2.0 + i,))) for i in range(4)
    ]
    answer = compile_model(forest.regressor(stumps), TreeShap(REFERENCES, interactions=True)).explain(X)
    expected = answer["x_attributions"][..., None] * np.eye(5)
    np.testing.assert_array_equal(answer["x_interactions"], expected)


def test_the_predicted_class() -> None:
    method, model = TreeShap(REFERENCES, interactions=True), forest.classifier(TREES, 3)
    x = forest.rows(5, 40)
    answer, every = (
        compile_model(model, method, targets=targets).explain(x)["x_interactions"]
        for targets in ("predicted", "all")
    )
    winner = forest.scores(TREES, x).argmax(axis=1)
    assert len(set(winner)) == 3
    np.testing.assert_array_equal(answer[:, 0], every[range(40), winner])


def test_batches_answer_the_same_bits() -> None:
    compiled = compile_model(forest.regressor(TREES), TreeShap(REFERENCES, interactions=True), targets="all")
    session = onnxruntime.InferenceSession(compiled.model.SerializeToString())
    whole, *parts = (
        np.concatenate([session.run(["x_interactions"], {"x": X[i : i + n]})[0] for i in range(0, N, n)])
        for n in (N, 2, 1)
    )
    for batch in parts:
        np.testing.assert_array_equal(batch, whole)


@pytest.mark.parametrize("one_shot", [False, True])
def test_an_entry(tmp_path: Path, one_shot: bool) -> None:
    onnx.save(forest.regressor(TREES), tmp_path / "m.onnx")
    np.save(tmp_path / "r.npy", REFERENCES)
    arguments = ["compile", tmp_path / "m.onnx", "--name", "m", "--repository", tmp_path, "--targets", "1"]
    arguments += ["--method", "treeshap", "--references", tmp_path / "r.npy", "--interactions"]
    result = CliRunner().invoke(app, [str(a) for a in (*arguments, *["--one-shot"] * one_shot)])
    assert result.exit_code == 0, result.output
    entry = open_entry(tmp_path, "m")
    expected = forest.interactions_of(WORTH, 5)[:, 1:2]
    assert np.abs(entry.explain(X)["x_interactions"] - expected).max() <= PARITY_32 * np.abs(expected).max()


def test_a_name_that_is_taken() -> None:
    model = forest.regressor(TREES)
    model.graph.node[0].output[0] = model.graph.output[0].name = "x_interactions"
    with pytest.raises(InvalidOptionError, match="x_interactions"):
        compile_model(model, TreeShap(REFERENCES, interactions=True))
