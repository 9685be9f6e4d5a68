"""How the values of each feature are spread over a reference set: what a form or a slider needs to know."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from compiler.manifest import Category, Spread

STEPS = np.linspace(0, 1, 21)  # 0, 5 … 100%
_MOST_CATEGORIES = 100
_LONGEST = 200  # characters of a category: longer texts are nobody's category
_DIGITS = 7  # of a float32: what follows is rounding
_MOST_FEATURES = 512  # beyond, nobody fills in a form, and the manifest would be large


def spreads(
    arrays: Mapping[str, np.ndarray],
    names: Mapping[str, tuple[str, ...] | None],
    weights: np.ndarray | None,
) -> tuple[Spread, ...]:
    """Return the spread of each named feature, in their order.

    Args:
        arrays: [K, …] of each input.
        names: of the flattened features of a row; an input without them (an image) has no spreads.
        weights: of the K rows, which sum to 1; None for equal ones.
    """
    found: list[Spread] = []
    if sum(len(labels or ()) for labels in names.values()) > _MOST_FEATURES:
        return ()
    for tensor, array in arrays.items():
        columns = array.reshape(len(array), -1)
        labels = names.get(tensor) or ()
        if len(labels) != columns.shape[1]:
            continue
        w = np.full(len(array), 1 / len(array)) if weights is None else weights
        describe = _words if array.dtype.kind in "US" else _numbers
        found += [Spread(feature=label, **describe(columns[:, i], w)) for i, label in enumerate(labels)]
    return tuple(found)


def _numbers(values: np.ndarray, weights: np.ndarray) -> dict[str, Any]:
    values = values.astype(np.float64)
    there = np.isfinite(values)
    missing = float(weights[~there].sum())
    values, weights = values[there], weights[there]
    if not len(values):
        return {"missing": missing}
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    places = np.searchsorted(reached, STEPS * reached[-1] * (1 - 1e-9))
    quantiles = values[order][np.minimum(places, len(values) - 1)]
    quantiles[0], quantiles[-1] = values[order[0]], values[order[-1]]
    whole = bool((values == np.round(values)).all())
    return {
        "quantiles": tuple(float(v) if whole else float(f"{v:.{_DIGITS}g}") for v in quantiles),
        "whole": whole,
        "missing": missing,
    }


def _words(values: np.ndarray, weights: np.ndarray) -> dict[str, Any]:
    kinds, owners = np.unique(values, return_inverse=True)
    shares = np.bincount(owners.ravel(), weights)
    order = np.argsort(-shares, kind="stable")[:_MOST_CATEGORIES]
    known = ((str(kinds[i]), float(shares[i])) for i in order)
    categories = tuple(Category(value=value, share=share) for value, share in known if len(value) <= _LONGEST)
    return {"categories": categories}
