"""How much an answer moves with the references: the same declines explained by several draws."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from rationale.artifact.compiled import Compiled
from rationale.decisions.decide import principal
from rationale.decisions.rows import explained_rows, profile_of, values_of


@dataclass(frozen=True)
class Answer:
    """What one reference set says of some rows.

    Attributes:
        attributions: [rows, features and groups].
        codes: of the principal reasons of each row, the first one first.
    """

    base_value: float
    attributions: np.ndarray
    codes: list[list[str]]


@dataclass(frozen=True)
class Move:
    """How far answers are apart, over rows and pairs of answers.

    Attributes:
        mean, largest: of the largest |Δ| of a row's attributions, in parts of its largest attribution.
        differ: share of rows whose principal reasons are not the same codes.
    """

    mean: float
    largest: float
    differ: float


def answer_of(compiled: Compiled, rows: Mapping[str, np.ndarray]) -> Answer:
    """Return attributions, reasons and base value of rows.

    Args:
        compiled: with a decision profile.
        rows: [rows, …] by input.
    """
    manifest = compiled.manifest
    profile, batch = profile_of(manifest).profile, manifest.measured.max_batch
    attributions, codes, base = [], [], float("nan")
    for start in range(0, len(next(iter(rows.values()))), batch):
        answer = compiled.explain({name: array[start : start + batch] for name, array in rows.items()})
        values = values_of(manifest, answer.inputs)
        for row, own in zip(explained_rows(manifest, answer), values, strict=True):
            attributions.append(list(row.attributions.values()))
            codes.append([reason.code for reason in principal(profile, row, own)])
            base = float("nan") if row.base_value is None else row.base_value
    return Answer(base, np.array(attributions), codes)


def move(pairs: Iterable[tuple[Answer, Answer]]) -> Move:
    """Return the move of each pair's second one from the first."""
    moved, differ = list[np.ndarray](), list[bool]()
    for a, b in pairs:
        largest = np.abs(a.attributions).max(axis=1)
        moved.append(np.abs(a.attributions - b.attributions).max(axis=1) / np.where(largest > 0, largest, 1))
        differ += [{*one} != {*other} for one, other in zip(a.codes, b.codes, strict=True)]
    return Move(float(np.mean(moved)), float(np.max(moved)), float(np.mean(differ)))


def from_draw_to_draw(answers: Iterable[Answer]) -> Move:
    """Return the move over each two of them."""
    return move(combinations(answers, 2))
