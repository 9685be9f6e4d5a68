"""Boxes of cells against the ensemble itself, for every mode of a split, ties and missing values."""

from itertools import product

import numpy as np
import pytest

from rationale.trees.boxes import Boxes, boxes
from rationale.trees.ensemble import Ensemble
from rationale.trees.read import read_ensemble
from tests.references import trees

FEATURES = 5
MODES = [["LEQ"], ["LT", "GTE"], ["EQ", "NEQ"], ["LEQ", "LT", "GTE", "GT", "EQ", "NEQ"]]


def read(seed: int, modes: list[str], columns: int = 1) -> tuple[Ensemble, Boxes]:
    model = trees.regressor(trees.random_trees(seed, modes, features=FEATURES, columns=columns))
    ensemble = read_ensemble(model.graph.node[0], FEATURES)
    return ensemble, boxes(ensemble, FEATURES, columns - 1, np.dtype(np.float32))


def number_in(found: Boxes, feature: int, cell: int) -> float:
    """Return the least number of a cell; NaN of the last."""
    starts = found.starts[feature]
    if cell > len(starts):
        return np.nan
    return float(starts[cell - 1]) if cell else -1e30


@pytest.mark.parametrize("modes", MODES, ids="-".join)
@pytest.mark.parametrize("columns", [1, 3])
def test_a_scan_gives_the_score_of_every_cell(modes: list[str], columns: int) -> None:
    for seed in range(4):
        ensemble, found = read(seed, modes, columns)
        for row in trees.rows(seed, 6, FEATURES):
            risks = found.scan(found.cells(row))
            places = [(f, cell) for f in range(FEATURES) for cell in range(found.sizes[f])]
            changed = np.tile(row, (len(places), 1))
            for i, (feature, cell) in enumerate(places):
                changed[i, feature] = number_in(found, feature, cell)
            np.testing.assert_allclose(risks, ensemble.scores(changed)[:, -1], atol=1e-12)


@pytest.mark.parametrize("modes", MODES, ids="-".join)
def test_a_range_holds_every_score_of_its_box_and_is_tight_for_one_tree(modes: list[str]) -> None:
    for seed in range(4):
        model = trees.regressor(trees.random_trees(seed, modes, features=3, trees=1))
        ensemble = read_ensemble(model.graph.node[0], 3)
        found = boxes(ensemble, 3, 0, np.dtype(np.float32))
        random = np.random.default_rng(seed)
        for _ in range(5):
            low = np.array([random.integers(size) for size in found.sizes])
            high = np.array(
                [random.integers(a + 1, size + 1) for a, size in zip(low, found.sizes, strict=True)]
            )
            cells = product(*(range(a, b) for a, b in zip(low, high, strict=True)))
            rows = np.array([[number_in(found, f, c) for f, c in enumerate(at)] for at in cells], np.float32)
            scores = ensemble.scores(rows)[:, 0]
            assert found.range(low, high) == pytest.approx((scores.min(), scores.max()), abs=1e-12)


def test_numbers_at_a_bound_are_in_the_cell_that_trees_put_them_in() -> None:
    ensemble, found = read(0, ["LEQ", "LT", "GTE", "GT"])
    bounds = np.unique(ensemble.bounds)
    for feature in range(FEATURES):
        for number in [
            *bounds,
            *np.nextafter(bounds, np.float32(np.inf)),
            *np.nextafter(bounds, np.float32(-9)),
        ]:
            row = np.zeros(FEATURES, np.float32)
            row[feature] = number
            cells = found.cells(row)
            score = found.scan(cells)[found.offsets[feature] + cells[feature]]
            assert score == pytest.approx(float(ensemble.scores(row[None])[0, 0]), abs=1e-12)


def test_a_factor_turns_the_scores_around() -> None:
    ensemble, found = read(1, ["LEQ"])
    turned = boxes(ensemble, FEATURES, 0, np.dtype(np.float32), -1.0)
    row = trees.rows(1, 1, FEATURES)[0]
    np.testing.assert_array_equal(turned.scan(turned.cells(row)), -found.scan(found.cells(row)))


@pytest.mark.parametrize("modes", MODES, ids="-".join)
def test_the_leaves_within_a_box_give_its_scores(modes: list[str]) -> None:
    for seed in range(4):
        _, found = read(seed, modes)
        random = np.random.default_rng(seed)
        for row in trees.rows(seed, 3, FEATURES):
            cells = found.cells(row)
            is_free = random.random(FEATURES) < 0.5
            low, high = np.where(is_free, 0, cells), np.where(is_free, found.sizes, cells + 1)
            part = found.within(low, high)
            assert len(part.weights) <= len(found.weights)
            assert part.range(low, high) == pytest.approx(found.range(low, high), abs=1e-12)
            columns = np.repeat(is_free, found.sizes)
            for cell in range(int(found.sizes.max())):
                other = np.where(is_free, np.minimum(cell, found.sizes - 1), cells)
                np.testing.assert_allclose(part.scan(other)[columns], found.scan(other)[columns], atol=1e-12)
