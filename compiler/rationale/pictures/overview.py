"""Attributions over many rows: their mean size and their spread."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rationale.pictures.panels import (
    ExplanationLike,
    element_name,
    feature_columns,
    is_table,
    shorten_name,
    titles,
)
from rationale.schema.manifest import Attributed, Manifest

DOTS = 300  # most rows with a dot for each feature; fewer if there are many features
_MOST_NUMBERS = 4_000_000  # most attributions to keep for dots
_TARGETS = 3
_ENDS = (5, 95)  # percentiles of a feature's values with the full colours


@dataclass(frozen=True)
class Overview:
    """Features by the mean |attribution| over all rows, largest first.

    Attributes:
        rows: number of rows in the means.
        means: [F], and one more for the `other_features` together.
        attributions: attributions [F, n] of n evenly spaced rows.
        values: feature values [F, n], from 0, low, to 1, high; NaN for other than numbers.
        is_share: True if attributions are parts of a probability, and written in percent.
    """

    title: str
    rows: int
    labels: tuple[str, ...]
    means: np.ndarray
    other_features: int
    attributions: np.ndarray
    values: np.ndarray
    is_share: bool = False


def overviews(answers: Iterable[ExplanationLike], count: int, top: int) -> list[Overview]:
    """Return an overview of each of the first targets; none without an explained table.

    Args:
        answers: consecutive answers, with `count` rows in total.
        top: number of features to show.
    """
    drawn_rows, dots, values = np.empty(0, int), list[np.ndarray](), list[np.ndarray]()
    first, sums = 0, np.zeros(())
    titles, labels, is_share = list[str](), list[str](), False
    for answer in answers:
        tables = tables_of(answer.manifest)
        if not tables:
            return []
        attributions = _side_by_side([answer[e.attributions] for e in tables])
        rows, *each = attributions.shape
        if not first:
            most = max(2, min(count, DOTS, _MOST_NUMBERS // math.prod(each)))
            drawn_rows = np.unique(np.linspace(0, count - 1, most).round().astype(int))
            titles, labels = _titles(answer), _labels(answer, tables)
            is_share = answer.manifest.explains_share and answer.manifest.completeness_gap is not None
        sums = sums + np.abs(attributions).sum(axis=0)
        here = drawn_rows[(drawn_rows >= first) & (drawn_rows < first + rows)] - first
        dots.append(attributions[here])
        values.append(_values(answer, tables, here))
        first += rows
    if not first:
        return []
    all_dots, all_values = np.concatenate(dots), np.concatenate(values)
    means = sums / first
    return [
        replace(_overview(title, first, labels, means[j], all_dots[:, j], all_values, top), is_share=is_share)
        for j, title in enumerate(titles)
    ]


def tables_of(manifest: Manifest) -> list[Attributed]:
    """Return the tensors and groups whose attributions are drawn as bars."""
    return [e for e in manifest.attributed if is_table(e, len(e.tensor.shape))]


def _side_by_side(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return attributions of the first targets, all tables side by side, [N, T, F]."""
    each = [a[:, :_TARGETS] for a in arrays]
    return np.concatenate([a.reshape(*a.shape[:2], -1).astype(np.float64) for a in each], axis=2)


def _values(answer: ExplanationLike, tables: Sequence[Attributed], rows: np.ndarray) -> np.ndarray:
    """Return the feature values of some rows [n, F]; NaN for other than numbers."""
    columns = []
    for e in tables:
        attributions = answer[e.attributions]
        width = attributions[0, 0].size
        if e.of_players:
            columns.append(_player_values(answer, e.names(width), rows))
            continue
        inputs = answer.inputs.get(e.tensor.name)
        if inputs is None or inputs.dtype.kind not in "fiub" or inputs[0].size != width:
            columns.append(np.full((len(rows), width), np.nan))
        else:
            columns.append(inputs[rows].reshape(len(rows), width).astype(np.float64))
    return np.concatenate(columns, axis=1)


def _player_values(answer: ExplanationLike, names: Sequence[str], rows: np.ndarray) -> np.ndarray:
    """Return the values of players that are a single feature [n, F]; NaN for groups and texts."""
    columns = feature_columns(answer)
    nothing = np.full(len(rows), np.nan)
    each = [columns.get(name) for name in names]
    numbers = [nothing if c is None or c.dtype.kind not in "fiub" else c[rows].astype(float) for c in each]
    return np.stack(numbers, axis=1)


def _titles(answer: ExplanationLike) -> list[str]:
    manifest = answer.manifest
    targets = ["predicted"] if manifest.targets == "predicted" else manifest.targets[:_TARGETS]
    return [element_name(manifest, target) for target in targets]


def _labels(answer: ExplanationLike, tables: Sequence[Attributed]) -> list[str]:
    sizes = [answer[e.attributions][0, 0].size for e in tables]
    return [
        shorten_name(name)
        for e, size in zip(tables, sizes, strict=True)
        for name in titles(answer.manifest, e, size)
    ]


def _overview(
    title: str,
    rows: int,
    labels: Sequence[str],
    means: np.ndarray,
    dots: np.ndarray,
    values: np.ndarray,
    top: int,
) -> Overview:
    order = np.argsort(-means, kind="stable")
    shown = order if len(order) <= top + 1 else order[:top]
    rest = order[len(shown) :]
    return Overview(
        title,
        rows,
        tuple(labels[k] for k in shown),
        np.append(means[shown], [means[rest].sum()] * bool(len(rest))),
        len(rest),
        dots[:, shown].T,
        np.stack([_from_low_to_high(values[:, k]) for k in shown]),
    )


def _from_low_to_high(values: np.ndarray) -> np.ndarray:
    """Scale values to 0 to 1; equal values become 0.5."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return np.full(len(values), np.nan)
    low, high = np.percentile(finite, _ENDS)
    if low == high:
        low, high = finite.min(), finite.max()
    if low == high:
        return np.where(np.isfinite(values), 0.5, np.nan)
    return np.asarray(np.clip((values - low) / (high - low), 0, 1))
