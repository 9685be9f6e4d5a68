"""Population stability: the distribution of decisions' attributions, compared with the references'.

Siddiqi, "Credit Risk Scorecards", 2006: Σ (p − q) ln(p/q) over classes, q the share of the references and p
that of decisions. By convention 0.1 is a shift worth a look, and 0.25 a large one.
"""

from collections.abc import Sequence

import numpy as np

from rationale.decisions.rows import ExplainedRow
from rationale.schema.manifest import Classes

CLASSES = 10
EMPTY = 1e-4  # share of an empty class: its logarithm has to be finite
MOST_KEYS = 100  # features and groups that are watched: each is a series of the metrics
SCORE = ""  # the score's key; no feature has it
_SAME = 1e-6  # of the largest value: nearer ones are equal but for rounding


def drift_classes(
    rows: Sequence[ExplainedRow], weights: np.ndarray | None, keys: Sequence[str]
) -> dict[str, Classes]:
    """Return deciles of the references' attributions by feature or group, and of their scores under SCORE.

    Args:
        rows: the references, explained.
        weights: K weights; None for equal ones.
        keys: names of features and groups; those with the MOST_KEYS largest attributions are taken.
    """
    shares = np.full(len(rows), 1 / len(rows)) if weights is None else weights / weights.sum()
    values = {key: np.array([row.attributions[key] for row in rows]) for key in keys}
    by_size = sorted(keys, key=lambda key: -float(shares @ np.abs(values[key])))
    same = _SAME * max((float(np.abs(each).max()) for each in values.values()), default=0.0)
    scores = np.array([row.score for row in rows])
    watched = {*by_size[:MOST_KEYS]}
    classes = {key: deciles(values[key], shares, same) for key in keys if key in watched}
    return {SCORE: deciles(scores, shares, _SAME * float(np.abs(scores).max())), **classes}


def deciles(values: np.ndarray, weights: np.ndarray, same: float) -> Classes:
    """Return at most ten classes of about equal weight, whose bounds lie between the values.

    So a value that is rounded otherwise stays in its class, and equal values are never divided: one that has
    more than a tenth of the weight is a class by itself or with few others. A value that all have is one of
    three classes, with nothing above or below it.

    Args:
        values, weights: [K]; weights sum to 1.
        same: the largest difference between equal values.
    """
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    starts = np.flatnonzero(np.diff(values, prepend=-np.inf) > same)
    mass = np.add.reduceat(weights, starts)
    if len(starts) == 1:
        margin = max(same, float(np.finfo(np.float32).tiny))
        return Classes(bounds=(values[0] - margin, values[-1] + margin), shares=(0.0, 1.0, 0.0))
    middles = np.cumsum(mass) - mass / 2
    classes = np.minimum((middles * CLASSES).astype(int), CLASSES - 1)
    firsts = np.flatnonzero(np.diff(classes, prepend=-1))
    lasts = values[np.append(starts[1:], len(values)) - 1]
    bounds = [(lasts[i - 1] + values[starts[i]]) / 2 for i in firsts[1:]]
    return Classes(bounds=tuple(bounds), shares=tuple(np.add.reduceat(mass, firsts)))


def stability_index(classes: Classes, counts: np.ndarray) -> float:
    """Return Σ (p − q) ln(p/q).

    Args:
        counts: the number of decisions in each class; not all 0.
    """
    p = np.maximum(counts / counts.sum(), EMPTY)
    q = np.maximum(classes.shares, EMPTY)
    return float(((p - q) * np.log(p / q)).sum())
