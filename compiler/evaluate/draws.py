"""How much an answer moves with the references: the same declines explained by several draws."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from compiler.artefact.compiled import Compiled
from compiler.decisions.decide import principal
from compiler.decisions.rows import decided_of, explained_rows, values_of

Compile = Callable[[int], Compiled]  # with the references that a seed draws


@dataclass(frozen=True)
class Move:
    """From one draw of references to another.

    Attributes:
        references: how many there are in a draw, equal ones merged, at most.
        base_values: of each draw.
        mean, largest: over rows and pairs of draws, of the largest |Δ| of a row's attributions, in parts of
            the row's largest attribution.
        differ: share of rows and pairs of draws whose principal reasons are not the same codes.
        differ_first: share of those whose first reason is another.
    """

    references: int
    base_values: tuple[float, ...]
    mean: float
    largest: float
    differ: float
    differ_first: float


@dataclass(frozen=True)
class _Answer:
    """
    Attributes:
        attributions: [rows, features and groups].
        codes: of the principal reasons of each row, the first one first.
    """

    references: int
    base_value: float
    attributions: np.ndarray
    codes: list[list[str]]


def move(compile_with: Compile, seeds: Sequence[int], rows: Mapping[str, np.ndarray]) -> Move:
    """Compiles once for each seed and explains the rows.

    Args:
        compile_with: gives a model with a decision profile.
        seeds: two or more.
        rows: [rows, …] by input.

    Raises:
        RationaleError: as `compile_model` does.
    """
    answers = [_answer(compile_with(seed), rows) for seed in seeds]
    moved, differ, first = [], [], []
    for a, b in combinations(answers, 2):
        largest = np.abs(a.attributions).max(axis=1)
        moved.append(np.abs(a.attributions - b.attributions).max(axis=1) / np.where(largest > 0, largest, 1))
        differ += [{*one} != {*other} for one, other in zip(a.codes, b.codes, strict=True)]
        first += [one[:1] != other[:1] for one, other in zip(a.codes, b.codes, strict=True)]
    return Move(
        max(answer.references for answer in answers),
        tuple(answer.base_value for answer in answers),
        float(np.mean(moved)),
        float(np.max(moved)),
        float(np.mean(differ)),
        float(np.mean(first)),
    )


def _answer(compiled: Compiled, rows: Mapping[str, np.ndarray]) -> _Answer:
    manifest = compiled.manifest
    profile, batch = decided_of(manifest).profile, manifest.measured.max_batch
    attributions, codes, base = [], [], float("nan")
    for start in range(0, len(next(iter(rows.values()))), batch):
        answer = compiled.explain({name: array[start : start + batch] for name, array in rows.items()})
        values = values_of(manifest, answer.inputs)
        for row, own in zip(explained_rows(manifest, answer), values, strict=True):
            attributions.append(list(row.attributions.values()))
            codes.append([reason.code for reason in principal(profile, row, own)])
            base = float("nan") if row.base_value is None else row.base_value
    count = 0 if manifest.references is None else manifest.references.count
    return _Answer(count, base, np.array(attributions), codes)
