"""Features that come from the row or from a reference together, against every coalition of their players."""

from collections.abc import Sequence

import numpy as np
import pytest

from rationale.trees.read import read_ensemble
from rationale.trees.tables import SplitTest as Bit
from rationale.trees.tables import Tables, build_tables
from tests.references import trees as forest
from tests.tolerances import COMPLETE_64

K, N = 7, 9
PLAIN = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")
TESTS = {
    Bit.REACHED: lambda x, bound: x >= bound,
    Bit.REACHED_OR_MISSING: lambda x, bound: not x < bound,
    Bit.PASSED: lambda x, bound: x > bound,
    Bit.PASSED_OR_MISSING: lambda x, bound: not x <= bound,
    Bit.MISSING: lambda x, _: np.isnan(x),
}


def looked_up(tables: Tables, x: np.ndarray) -> np.ndarray:
    """[N, targets, players]"""
    counts, sums = tables.first, np.zeros((len(x), tables.targets * len(tables.units)))
    for row, out in zip(x, sums, strict=True):
        bits = np.array([TESTS[test](row[feature], bound) for feature, test, bound in counts.bits], np.int64)
        first = counts.starts + (bits[counts.reads] * counts.steps).sum(axis=1)
        np.add.at(out, tables.column, tables.numbers[first[tables.group] + tables.within])
    return sums.reshape(len(x), tables.targets, len(tables.units))


@pytest.mark.parametrize(
    "player_of", [[0, 1, 2, 3, 4], [0, 1, 0, 2, 1], [2, 0, 0, 0, 1], [0, 0, 0, 0, 0]], ids=str
)
def test_exact(player_of: Sequence[int]) -> None:
    trees = forest.random_trees(3, PLAIN, columns=2)
    references, x = forest.rows(1, K), forest.rows(2, N)
    weights = np.arange(1, K + 1) / np.arange(1, K + 1).sum()
    ensemble = read_ensemble(forest.regressor(trees).graph.node[0], 5)
    attributions = looked_up(
        build_tables(ensemble, ensemble.weights, references, weights, np.array(player_of)), x
    )
    expected = forest.shapley(lambda z: forest.scores(trees, z), x, references, weights, player_of)
    assert attributions.shape == expected.shape == (N, 2, max(player_of) + 1)
    assert np.abs(attributions - expected).max() <= COMPLETE_64


def test_a_leaf_on_many_features_of_few_players() -> None:
    """Twelve features make 4,096 rows; the transform is over two players."""
    leaf: forest.Node = forest.Leaf((1.0,))
    for i in range(12):
        leaf = forest.Split(i, "LEQ", (0.0,), False, leaf, forest.Leaf((0.5,)))
    references, x = forest.rows(1, K, 12), forest.rows(2, N, 12)
    player_of = np.arange(12) // 7
    ensemble = read_ensemble(forest.regressor([leaf], 12).graph.node[0], 12)
    attributions = looked_up(build_tables(ensemble, ensemble.weights, references, None, player_of), x)
    expected = forest.shapley(lambda z: forest.scores([leaf], z), x, references, player_of=player_of.tolist())
    assert np.abs(attributions - expected).max() <= COMPLETE_64
