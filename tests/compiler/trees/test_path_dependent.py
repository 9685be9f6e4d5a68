"""Path-dependent Shapley values against algorithm 1 over every coalition."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from rationale import InvalidOptionError, InvalidReferencesError, OpenReferences, TreeShap, compile_model
from rationale.artifact.entry import open_entry
from rationale.cli.compile import app
from rationale.trees.covers import with_counted_covers
from rationale.trees.read import read_ensemble
from rationale.trees.tables import build_tables
from tests.compiler.trees.test_players import looked_up
from tests.references import trees as forest
from tests.tolerances import COMPLETE_32, COMPLETE_64, PARITY_32

N = 9
MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")
TREES = forest.random_trees(4, MODES, columns=2)
ROWS, X = forest.rows(1, 3000), forest.rows(2, N)
BASE = [0.3, -0.1]


def hit_rates(trees: list[forest.Node], covers: forest.Covers) -> list[float]:
    return [float(covers[id(node)]) for _, _, node, _, _ in forest.listed(trees)]


def drawn_covers(trees: list[forest.Node]) -> forest.Covers:
    """As no rows would have them: where conditions exclude each other too."""
    random, covers = np.random.default_rng(0), {}
    pending = [(tree, 100.0) for tree in trees]
    while pending:
        node, cover = pending.pop()
        covers[id(node)] = cover
        if isinstance(node, forest.Split):
            share = random.uniform(0.05, 0.95)
            pending += [(node.yes, share * cover), (node.no, (1 - share) * cover)]
    return covers


def assert_exact(model: onnx.ModelProto, method: TreeShap, covers: forest.Covers) -> None:
    compiled = compile_model(model, method, targets="all")
    answer = compiled.explain(X)
    worth = forest.path_dependent(TREES, X, covers)
    expected, base = forest.shapley_of(worth, 5), worth(()) + BASE
    assert np.abs(answer["x_attributions"] - expected).max() <= PARITY_32 * np.abs(expected).max()
    assert np.abs(answer["base_value"] - base).max() <= PARITY_32 * np.abs(base).max()
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32 * np.abs(expected).max()
    assert compiled.manifest.method.options == {"path_dependent": True}


def test_covers_that_rows_count() -> None:
    assert_exact(
        forest.regressor(TREES, base_values=BASE), TreeShap(covers=ROWS), forest.covers_of(TREES, ROWS)
    )


@pytest.mark.parametrize("drawn", [False, True])
def test_covers_of_the_model(drawn: bool) -> None:
    covers = drawn_covers(TREES) if drawn else forest.covers_of(TREES, ROWS)
    model = forest.regressor(TREES, base_values=BASE, nodes_hitrates=hit_rates(TREES, covers))
    assert_exact(model, TreeShap(), covers)


def test_weights_count() -> None:
    weights = np.random.default_rng(0).integers(1, 4, len(ROWS))
    model = forest.regressor(TREES, base_values=BASE)
    assert_exact(
        model,
        TreeShap(None, ROWS, weights=weights),
        forest.covers_of(TREES, np.repeat(ROWS, weights, axis=0)),
    )


def test_players() -> None:
    player_of = [1, 0, 1, 2, 0]
    ensemble = read_ensemble(forest.regressor(TREES).graph.node[0], 5)
    attributions = looked_up(
        build_tables(
            with_counted_covers(ensemble, ROWS, None), ensemble.weights, None, None, np.array(player_of)
        ),
        X,
    )
    expected = forest.shapley_of(forest.path_dependent(TREES, X, forest.covers_of(TREES, ROWS), player_of), 3)
    assert np.abs(attributions - expected).max() <= COMPLETE_64


def test_references_are_another_game_than_the_covers_of_the_model() -> None:
    covers = drawn_covers(TREES)
    model = forest.regressor(TREES, nodes_hitrates=hit_rates(TREES, covers))
    answers = [
        compile_model(source, TreeShap(ROWS[:7]), targets="all").explain(X)["x_attributions"]
        for source in (model, forest.regressor(TREES))
    ]
    np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize(
    "rates",
    [None, [1.0] * len(list(forest.listed(TREES))), [np.nan] * len(list(forest.listed(TREES)))],
    ids=["none", "ones", "no numbers"],
)
def test_nothing_says_how_many_rows_reach_a_node(rates: Any) -> None:
    attributes = {} if rates is None else {"nodes_hitrates": rates}
    with pytest.raises(InvalidReferencesError, match=r"nodes_hitrates.*--covers"):
        compile_model(forest.regressor(TREES, **attributes), TreeShap())


def test_covers_that_leave_out_a_split() -> None:
    with pytest.raises(InvalidReferencesError, match=r"covers\b.*node \d+"):
        compile_model(forest.regressor(TREES), TreeShap(covers=ROWS[:2]))


@pytest.mark.parametrize(
    "options",
    [
        {"references": X, "covers": X},
        {"covers": OpenReferences(3)},
        {"weights": [1.0, 2.0]},
        {"references": OpenReferences(3), "covers": X},
    ],
    ids=lambda options: "-".join(options),
)
def test_what_makes_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError):
        TreeShap(**options)


def test_the_command(tmp_path: Path) -> None:
    """The table's headers name the features, and its columns are put into their order."""
    inner = forest.Split(1, "GT", (0.5,), False, forest.Leaf((1.0,)), forest.Leaf((-2.0,)))
    model = forest.regressor([forest.Split(3, "LEQ", (0.0,), True, inner, forest.Leaf((3.0,)))])
    onnx.save(model, tmp_path / "m.onnx")
    order = [2, 0, 1, 4, 3]
    rows = np.nan_to_num(ROWS)
    header = ",".join(f"f{i}" for i in order)
    np.savetxt(tmp_path / "rows.csv", rows[:, order], delimiter=",", header=header, comments="")
    arguments = ["compile", tmp_path / "m.onnx", "--name", "m", "--repository", tmp_path]
    arguments += ["--method", "treeshap", "--covers", tmp_path / "rows.csv", "--features", "f0,f1,f2,f3,f4"]
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    entry, expected = open_entry(tmp_path, "m"), compile_model(model, TreeShap(covers=rows)).explain(X)
    assert entry.manifest.explained[0].feature_names == ("f0", "f1", "f2", "f3", "f4")
    for name, values in expected.items():
        np.testing.assert_array_equal(entry.explain(X)[name], values)
