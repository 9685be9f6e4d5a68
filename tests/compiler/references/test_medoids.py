"""Medoids are the rows nearest to all those they stand for, of words and numbers."""

import itertools
import math

import numpy as np
import pytest

from rationale.references import medoids as module
from rationale.references.medoids import medoids


def mixed(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """A number, a word, two more numbers of which some are missing."""
    random = np.random.default_rng(seed)
    pair = random.gamma(2, 3, (count, 2))
    pair[::5, 1] = np.nan
    words = np.array(["own", "rent", "free"], object)[random.integers(0, 3, (count, 1))]
    return {"income": random.normal(50, 20, (count, 1)), "home": words, "pair": pair}


def distances(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """By the definition, two rows and a column at a time."""
    count = len(next(iter(arrays.values())))
    actual = np.zeros((count, count))
    for array in arrays.values():
        for column in array.T:
            words = column.dtype == object
            spread = 1.0 if words else np.nanstd(column.astype(float))
            for i, j in itertools.product(range(count), repeat=2):
                a, b = column[i], column[j]
                if words:
                    actual[i, j] += a != b
                elif math.isnan(a) or math.isnan(b):
                    actual[i, j] += math.isnan(a) != math.isnan(b)
                else:
                    actual[i, j] += abs(a - b) / spread
    return actual


def cost(apart: np.ndarray, chosen: np.ndarray) -> float:
    return float(apart[:, chosen].min(axis=1).sum())


def test_no_other_rows_are_much_nearer() -> None:
    """Against every choice of three: FasterPAM ends where no single exchange helps."""
    arrays = mixed(24)
    apart = distances(arrays)
    chosen, shares = medoids(arrays, np.arange(24), 3)
    best = min(cost(apart, np.array(each)) for each in itertools.combinations(range(24), 3))
    assert cost(apart, chosen) <= 1.05 * best
    for out, other in itertools.product(range(3), range(24)):
        exchanged = chosen.copy()
        exchanged[out] = other
        assert cost(apart, chosen) <= cost(apart, exchanged) + 1e-5
    nearest = apart[:, chosen].argmin(axis=1)
    np.testing.assert_allclose(shares, np.bincount(nearest, minlength=3) / 24)


@pytest.mark.parametrize("most", [4000, 40])
def test_groups_far_apart_are_found(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Some rows of a table alone; a sample finds the medoids, and all rows weigh them."""
    monkeypatch.setattr(module, "MOST", most)
    arrays, rows = mixed(150), np.arange(30, 150)
    group = np.arange(150) % 4 // 2 + np.arange(150) % 4 // 3  # 0, 0, 1, 2
    arrays["home"][:, 0] = np.array(["own", "rent", "free"], object)[group]
    for name in ("income", "pair"):
        arrays[name] += 1e6 * group[:, None]
    chosen, shares = medoids(arrays, rows, 3, seed=2)
    assert set(chosen) <= set(rows)
    assert dict(zip(group[chosen], shares, strict=True)) == pytest.approx({0: 0.5, 1: 0.25, 2: 0.25})


def test_equal_rows_have_one_medoid() -> None:
    arrays = {"x": np.repeat([[1.0, 2.0], [3.0, 4.0]], 10, axis=0), "word": np.full((20, 1), "a", object)}
    chosen, shares = medoids(arrays, np.arange(20), 5)
    assert sorted(arrays["x"][chosen, 0]) == [1, 3]
    np.testing.assert_allclose(shares, 0.5)


def test_as_many_as_there_are() -> None:
    arrays = mixed(12)
    chosen, shares = medoids(arrays, np.arange(12), 12)
    assert sorted(chosen) == list(range(12))
    np.testing.assert_allclose(shares, 1 / 12)
