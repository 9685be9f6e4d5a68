"""Covers: the number of rows that reach each node of a tree, and the shares of rows that pass its splits."""

from dataclasses import replace

import numpy as np

from rationale.errors import InvalidReferencesError
from rationale.trees.ensemble import Ensemble

_ADDS_UP = 1e-2  # relative difference between both sides' covers and the split's; above it they are no covers


def passing_share(cover: np.ndarray, yes: np.ndarray, no: np.ndarray, split: np.ndarray) -> np.ndarray | None:
    """Return [nodes], the share of each split's cover that passes it, NaN for none; None if it has no covers.

    Converters without covers write the same number everywhere.
    """
    if not (np.isfinite(cover) & (cover >= 0)).all():
        return None
    reached_cover = cover[yes] + cover[no]
    adds_up = np.abs(reached_cover - cover) <= _ADDS_UP * reached_cover
    reached = split & (reached_cover > 0)
    if not adds_up[split].all() or not reached.any():
        return None
    return np.where(reached, cover[yes] / np.where(reached, reached_cover, 1), np.nan)


def with_counted_covers(ensemble: Ensemble, rows: np.ndarray, weights: np.ndarray | None) -> Ensemble:
    """Return the ensemble with covers counted from these rows; NaN at a split that no row reaches.

    Args:
        rows: [R, features], NaN for a missing value.
        weights: [R]; None for equal weights.
    """
    row_weights = np.ones(len(rows)) if weights is None else weights
    reached, passed = np.zeros((2, len(ensemble.feature)))
    pending = [(int(root), np.arange(len(rows))) for root in ensemble.roots]
    while pending:
        node, rows_at_node = pending.pop()
        feature = int(ensemble.feature[node])
        if feature < 0 or not len(rows_at_node):
            continue
        outcome = ensemble.outcome(node, rows[rows_at_node, feature])
        reached[node] += row_weights[rows_at_node].sum()
        passed[node] += row_weights[rows_at_node[outcome]].sum()
        pending += [
            (int(ensemble.yes[node]), rows_at_node[outcome]),
            (int(ensemble.no[node]), rows_at_node[~outcome]),
        ]
    share = np.divide(passed, reached, out=np.full(len(passed), np.nan), where=reached > 0)
    return replace(ensemble, share=share)


def expected_scores(ensemble: Ensemble) -> np.ndarray:
    """Return [columns] float64, the mean of the leaves by their covers, summed over the trees.

    Raises:
        InvalidReferencesError: if the ensemble has no covers.
    """
    if ensemble.share is None:
        raise InvalidReferencesError(
            "without references, attributions depend on how many rows reach each node of the trees, and "
            "this model does not store these numbers (nodes_hitrates). Give rows to count them, best the "
            "training data (--covers FILE, covers=), or give references (--references FILE)."
        )
    mass = np.bincount(ensemble.roots, minlength=len(ensemble.feature)).astype(np.float64)
    total = np.zeros(ensemble.columns)
    for node in reversed(ensemble.upwards()):
        if ensemble.feature[node] < 0:
            total += mass[node] * ensemble.weights[ensemble.leaf[node]]
        elif mass[node]:
            passing = mass[node] * ensemble.share[node]
            mass[ensemble.yes[node]] += passing
            mass[ensemble.no[node]] += mass[node] - passing
    return total
