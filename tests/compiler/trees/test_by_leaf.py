"""Leaves without tables, against every coalition."""

from dataclasses import replace
from math import comb
from typing import Any

import numpy as np
import pytest

from rationale import Deployment, TreeShap, UnsupportedModelError, compile_model
from rationale.graph.ops import Ops
from rationale.graph.runtime.session import Runner
from rationale.graph.tensor import Tensor
from rationale.methods.trees.method import TreeScores
from rationale.trees import by_leaf
from rationale.trees.read import read_ensemble
from rationale.trees.tables import FLOAT, trees_of
from tests.references import trees as forest
from tests.tolerances import PARITY_32

PLAIN = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")
DEEP = 17


@pytest.fixture(params=[0, 4], ids=["all leaves", "some leaves"])
def few_tables(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_leaf, "MOST_STATES", request.param)


@pytest.mark.usefixtures("few_tables")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("columns", [1, 3])
def test_exact(columns: int, weighted: bool) -> None:
    trees = forest.random_trees(3, PLAIN, columns=columns)
    references, x = forest.rows(1, 7), forest.rows(2, 9)
    weights = np.arange(1, 8) / 28 if weighted else None
    answer = compile_model(
        forest.regressor(trees), TreeShap(references, weights=weights), targets="all"
    ).explain(x)
    expected = forest.shapley(lambda z: forest.scores(trees, z), x, references, weights)
    assert np.abs(answer["x_attributions"] - expected).max() <= PARITY_32 * np.abs(expected).max()


@pytest.mark.usefixtures("few_tables")
def test_features_of_one_player(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features 0 and 1 are player 0, and player 1 has none."""
    player_of = [0, 0, 2, 3, 4]
    attributions: Any = TreeShap.attributions

    def of_players(self: TreeShap, op: Ops, scores: TreeScores) -> Tensor:
        return attributions(self, op, replace(scores, player_of=np.array(player_of)))

    monkeypatch.setattr(TreeShap, "attributions", of_players)
    trees, references, x = forest.random_trees(4, PLAIN), forest.rows(1, 7), forest.rows(2, 9)
    answer = compile_model(forest.regressor(trees), TreeShap(references)).explain(x)
    expected = forest.shapley(lambda z: forest.scores(trees, z), x, references, player_of=player_of)
    assert np.abs(answer["x_attributions"] - expected).max() <= PARITY_32 * np.abs(expected).max()


def test_tables_up_to_the_most_bytes_are_kept_and_the_largest_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 2 rows for one player, and one of 2³ rows for three."""
    ensemble = read_ensemble(
        forest.regressor([chain(np.arange(1.0, 3.0)), chain(np.arange(1.0, 5.0))], 3).graph.node[0], 3
    )
    trees, player_of = trees_of(ensemble, ensemble.weights), np.arange(3)
    sizes = [2 * 1 * FLOAT, 2**3 * 3 * FLOAT]
    for most, in_tables in ((sum(sizes), [1, 1]), (sum(sizes) - 1, [1, 0]), (sizes[0] - 1, [0, 0])):
        monkeypatch.setattr(by_leaf, "MOST_BYTES", most)
        tables, leaves = by_leaf.split_by_size(trees, ensemble.weights, player_of)
        assert [len(tree.groups) for tree in tables] == in_tables
        assert [len(tree.groups) for tree in leaves] == [1 - count for count in in_tables]


def test_leaves_of_one_length_and_about_as_many_patterns_stand_together() -> None:
    ensemble = read_ensemble(forest.regressor([chain(np.arange(1.0, 5.0))] * 6, 3).graph.node[0], 3)
    trees, references = trees_of(ensemble, ensemble.weights), np.random.default_rng(0).normal(size=(20, 3))
    leaves = by_leaf.build_leaves(trees, ensemble.weights, references, None, np.arange(3))
    (block,) = leaves.blocks
    assert block.shares.shape[0] == 6 * 4  # leaves
    np.testing.assert_allclose(block.shares.sum(axis=1), 1)


def first_not(values: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A chain: the value at the first feature above 0, the last one where there is none."""
    above = np.concatenate([x > 0, np.ones((len(x), 1), bool)], axis=1)
    return values[above.argmax(axis=1)]


def chain(values: np.ndarray) -> forest.Node:
    node: forest.Node = forest.Leaf((float(values[-1]),))
    for i in reversed(range(len(values) - 1)):
        node = forest.Split(i, "LEQ", (0.0,), False, node, forest.Leaf((float(values[i]),)))
    return node


def by_masks(values: np.ndarray, x: np.ndarray, references: np.ndarray) -> np.ndarray:
    """[N, F] float64, over all 2^F coalitions at once."""
    count = x.shape[1]
    masks = (np.arange(1 << count)[:, None] >> np.arange(count)) & 1 == 1
    sizes, attributions = masks.sum(axis=1), np.zeros(x.shape)
    for row, out in zip(x, attributions, strict=True):
        worth = np.mean([first_not(values, np.where(masks, row, r)) for r in references], axis=0)
        for j in range(count):
            without = np.flatnonzero(~masks[:, j])
            shares = np.array([1 / (count * comb(count - 1, s)) for s in range(count)])[sizes[without]]
            out[j] = shares @ (worth[without + (1 << j)] - worth[without])
    return attributions


def deep() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    values = random.standard_normal(DEEP + 1).astype(np.float32)
    references, x = (random.standard_normal((n, DEEP)).astype(np.float32) - 2 for n in (6, 3))
    x[0, :-1], x[0, -1] = -1, 1
    return values, references, x


def test_a_leaf_on_seventeen_features() -> None:
    values, references, x = deep()
    answer = compile_model(forest.regressor([chain(values)], DEEP), TreeShap(references)).explain(x)
    expected = by_masks(values, x, references)
    assert np.abs(answer["x_attributions"][:, 0] - expected).max() <= PARITY_32 * np.abs(expected).max()
    assert np.abs(expected[:, -1]).max() > 1e-3, "the deepest leaves are not met"


def test_a_leaf_on_seventy_features() -> None:
    """Three of which differ between rows and references: the others are null players of this game."""
    values, _, _ = deep()
    deepest, played = np.resize(values, 71), [0, 34, 69]
    random = np.random.default_rng(2)
    references, x = (np.full((n, 70), -1, np.float32) for n in (6, 5))
    for rows in (references, x):
        rows[:, played] = random.choice([-1, 1], (len(rows), 3))
    answer = compile_model(forest.regressor([chain(deepest)], 70), TreeShap(references)).explain(x)

    def of_played(z: np.ndarray) -> np.ndarray:
        whole = np.full((len(z), 70), -1.0)
        whole[:, played] = z
        return first_not(deepest, whole)[:, None]

    expected = forest.shapley(of_played, x[:, played], references[:, played])
    attributions = answer["x_attributions"]
    assert np.abs(attributions[:, :, played] - expected).max() <= PARITY_32 * np.abs(expected).max()
    assert not np.delete(attributions, played, axis=2).any()


def test_the_same_bits_whatever_the_batch_and_threads() -> None:
    values, references, _ = deep()
    trees = [chain(np.roll(values, i)) for i in range(9)]
    x = (np.random.default_rng(1).standard_normal((64, DEEP)) - 2).astype(np.float32)
    model = compile_model(forest.regressor(trees, DEEP), TreeShap(references)).model
    whole = Runner(model, threads=1)({"x": x})["x_attributions"]
    for threads in (1, 2):
        run = Runner(model, threads=threads)
        for rows in (1, 3, 64):
            np.testing.assert_array_equal(run({"x": x[:rows]})["x_attributions"], whole[:rows])


def test_too_many_patterns_say_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    values, references, _ = deep()
    monkeypatch.setattr(by_leaf, "MOST_BYTES", 1000)
    message = (
        r"14 leaves depend on up to 17 features each, .* about 1\.07 KB, and an answer about .* s for each"
    )
    with pytest.raises(UnsupportedModelError, match=message):
        compile_model(forest.regressor([chain(values)], DEEP), TreeShap(references))


def test_one_entry_for_both() -> None:
    values, references, x = deep()
    model = forest.regressor([chain(values)], DEEP)
    gated = compile_model(model, TreeShap(references), deployment=Deployment(one_shot=True)).explain(x)
    apart = compile_model(model, TreeShap(references)).explain(x)
    np.testing.assert_array_equal(gated["x_attributions"], apart["x_attributions"])
