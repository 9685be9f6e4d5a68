"""Classes of references, and how far counts of decisions are from them; the oracle is scipy's entropy."""

import numpy as np
import pytest
from scipy.stats import entropy

from rationale.decisions.drift import EMPTY, MOST_KEYS, SCORE, deciles, drift_classes, stability_index
from rationale.decisions.rows import ExplainedRow
from rationale.schema.manifest import Classes

K = 997
RANDOM = np.random.default_rng(3)
EQUAL = np.full(K, 1 / K)


def counted(classes: Classes, values: np.ndarray) -> np.ndarray:
    return np.bincount(np.searchsorted(classes.bounds, values), minlength=len(classes.shares))


def test_classes_are_deciles() -> None:
    values = RANDOM.normal(size=K)
    classes = deciles(values, EQUAL, 1e-6)
    np.testing.assert_allclose(classes.bounds, np.quantile(values, np.arange(1, 10) / 10), atol=0.02)
    np.testing.assert_allclose(counted(classes, values) / K, classes.shares, atol=1e-12)
    assert len(classes.shares) == 10


def test_weighted_references_count_as_often() -> None:
    values, copies = RANDOM.normal(size=60), RANDOM.integers(1, 5, 60)
    total = copies.sum()
    weighted = deciles(values, copies / total, 1e-6)
    repeated = deciles(np.repeat(values, copies), np.full(total, 1 / total), 1e-6)
    np.testing.assert_allclose(weighted.bounds, repeated.bounds)
    np.testing.assert_allclose(weighted.shares, repeated.shares)


@pytest.mark.parametrize("share", [0.25, 0.8])
def test_equal_values_stay_together(share: float) -> None:
    """Also where they are rounded otherwise, as in a run of another batch."""
    values = np.where(RANDOM.random(K) < share, 0.3, RANDOM.normal(size=K))
    rounded = values + RANDOM.uniform(-4e-8, 4e-8, K)
    classes = deciles(values, EQUAL, 1e-6)
    np.testing.assert_array_equal(counted(classes, values), counted(classes, rounded))
    np.testing.assert_allclose(sum(classes.shares), 1)
    assert stability_index(classes, counted(classes, values)) == pytest.approx(0, abs=1e-12)
    assert stability_index(classes, counted(classes, RANDOM.normal(size=K))) > 0.25


@pytest.mark.parametrize("count", [1, K])
def test_what_was_constant_and_is_no_more(count: int) -> None:
    classes = deciles(np.zeros(count), np.full(count, 1 / count), 0.0)
    assert stability_index(classes, counted(classes, np.zeros(50))) == 0
    moved = np.where(np.arange(200) < 20, 0.1, 0.0)
    assert stability_index(classes, counted(classes, moved)) > 0.25
    assert stability_index(classes, counted(classes, -moved)) > 0.25


def test_figure_is_the_sum_of_both_divergences() -> None:
    classes = Classes(bounds=(0, 1, 2), shares=(0.5, 0.3, 0.2, 0.0))
    counts = np.array([3, 4, 2, 1])
    p, q = counts / 10, np.array([0.5, 0.3, 0.2, EMPTY])
    expected = (p * np.log(p / q)).sum() + (q * np.log(q / p)).sum()
    assert stability_index(classes, counts) == pytest.approx(expected)
    assert expected == pytest.approx(entropy(p, q) + entropy(q, p), rel=1e-3)  # which normalises q


def test_of_many_features_the_largest_are_watched() -> None:
    count = MOST_KEYS + 7
    rows = [
        ExplainedRow(s, s, 0.0, {f"f{i}": (i + 1) * (s - 0.4) for i in range(count)}, None, 0.0)
        for s in RANDOM.random(30)
    ]
    classes = drift_classes(rows, None, [f"f{i}" for i in range(count)])
    assert list(classes) == [SCORE, *(f"f{i}" for i in range(7, count))]
    assert min(min(item.shares) for item in classes.values()) == pytest.approx(0.1)


@pytest.mark.parametrize("count", [1, MOST_KEYS, MOST_KEYS + 1])
def test_the_largest_keys_are_watched_by_the_weights_of_their_rows(count: int) -> None:
    """A key that is large in a row of much weight, and others that are larger in one of little."""
    keys = [f"k{i}" for i in range(count)]
    heavy = dict.fromkeys(keys, 0.0) | {"k0": 1.0}
    light = dict.fromkeys(keys, 5.0) | {"k0": 0.0}
    explained = [ExplainedRow(0.5, 0.5, 0.1, each, None, None) for each in (heavy, light)]
    classes = set(drift_classes(explained, np.array([9.0, 1.0]), keys))
    assert classes == {SCORE, *keys[:MOST_KEYS]}
    assert ("k0" in drift_classes(explained, None, keys)) == (count <= MOST_KEYS)


def test_scores_are_classes_by_their_own_scale() -> None:
    """Not by that of attributions, which may be in euros where scores are probabilities."""
    explained = [ExplainedRow(i / K, i / K, 0.1, {"income": 1e6 * i}, None, None) for i in range(K)]
    actual = drift_classes(explained, None, ["income"])
    assert [len(classes.shares) for classes in actual.values()] == [10, 10]
