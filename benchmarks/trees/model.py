"""Boosted trees: 300 of depth 6 on 50 features, 2% of them missing."""

from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.cases import BOOSTERS
from benchmarks.timing import quietly

TREES, DEPTH, FEATURES, MISSING = 300, 6, 50, 0.02
TRAINED, REFERENCE_ROWS = 4000, 2000


def data(features: int = FEATURES) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows and labels to train with, and other rows."""
    random = np.random.default_rng(0)
    x = random.standard_normal((TRAINED + REFERENCE_ROWS, features)).astype(np.float32)
    score = x @ random.standard_normal(features) / 2 + np.sin(3 * x[:, 0]) * x[:, 1] + (x[:, 2] > 0) * x[:, 3]
    label = score + random.standard_normal(len(x)) > 0
    x[random.random(x.shape) < MISSING] = np.nan
    return x[:TRAINED], label[:TRAINED].astype(int), x[TRAINED:]


def trained(
    name: str,
    threads: int = 1,
    *,
    trees: int = TREES,
    depth: int = DEPTH,
    leaves: int | None = None,
    features: int = FEATURES,
) -> Any:
    """Return a booster.

    Args:
        leaves: number of leaves of a tree of LightGBM; None for as many as its depth allows.
        depth: -1 for no limit.
    """
    rows, labels, _ = data(features)
    more = {"num_leaves": leaves or 2**depth, "verbose": -1} if name == "lightgbm" else {}
    estimator = getattr(import_module(name), BOOSTERS[name])
    grown = estimator(n_estimators=trees, max_depth=depth, n_jobs=threads, learning_rate=0.1, **more)
    with quietly():
        return grown.fit(rows, labels)
