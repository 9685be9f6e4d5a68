"""Sensitivity of answers to the references: the same declines explained by several draws."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from rationale.artifact.compiled import Compiled
from rationale.decisions.decide import principal_reasons
from rationale.decisions.rows import explained_rows, feature_values, profile_of


@dataclass(frozen=True)
class ExplainedRows:
    """Explanations of some rows by one reference set.

    Attributes:
        attributions: [rows, features and groups].
        codes: codes of the principal reasons of each row, the most important first.
    """

    base_value: float
    attributions: np.ndarray
    codes: list[list[str]]


@dataclass(frozen=True)
class AnswerDistance:
    """Distance between answers, over rows and pairs of answers.

    Attributes:
        mean, largest: mean and maximum of a row's largest |Δ attribution|, as a share of its largest one.
        differ: share of rows whose principal reasons have different codes.
    """

    mean: float
    largest: float
    differ: float


def explain_rows(compiled: Compiled, rows: Mapping[str, np.ndarray]) -> ExplainedRows:
    """Return attributions, reasons and base value of rows.

    Args:
        compiled: an entry with a decision profile.
        rows: arrays [rows, …] by input.
    """
    manifest = compiled.manifest
    profile, batch = profile_of(manifest).profile, manifest.measured.max_batch
    attributions, codes, base = [], [], float("nan")
    for start in range(0, len(next(iter(rows.values()))), batch):
        answer = compiled.explain({name: array[start : start + batch] for name, array in rows.items()})
        values = feature_values(manifest, answer.inputs)
        for row, cells in zip(explained_rows(manifest, answer), values, strict=True):
            attributions.append(list(row.attributions.values()))
            codes.append([reason.code for reason in principal_reasons(profile, row, cells)])
            base = float("nan") if row.base_value is None else row.base_value
    return ExplainedRows(base, np.array(attributions), codes)


def mean_distance(pairs: Iterable[tuple[ExplainedRows, ExplainedRows]]) -> AnswerDistance:
    """Return how far the second answer of each pair is from the first."""
    shares, differ = list[np.ndarray](), list[bool]()
    for a, b in pairs:
        largest = np.abs(a.attributions).max(axis=1)
        shares.append(np.abs(a.attributions - b.attributions).max(axis=1) / np.where(largest > 0, largest, 1))
        differ += [{*codes} != {*other} for codes, other in zip(a.codes, b.codes, strict=True)]
    return AnswerDistance(float(np.mean(shares)), float(np.max(shares)), float(np.mean(differ)))


def mean_distance_of_draws(answers: Iterable[ExplainedRows]) -> AnswerDistance:
    """Return the distance over all pairs of answers."""
    return mean_distance(combinations(answers, 2))
