"""k-medoids: real rows that represent the rows nearest to them, weighted by the number of these.

FasterPAM (Schubert and Rousseeuw, 2021) by the library kmedoids. Distances are Gower's (1971) with standard
deviations in place of ranges, so that columns of words have a place beside numbers. A medoid, other than a
centroid, is somebody's row.
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from rationale.distribution import install
from rationale.errors import InvalidOptionError

MOST = 4000  # rows between which distances are held at once: 64 MB; of more a sample finds the medoids
_BLOCK = 4096


def medoids(
    arrays: Mapping[str, np.ndarray], rows: np.ndarray, k: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Choose at most `k` of the rows; return their indices, and each one's share [k] of all rows.

    Args:
        arrays: [rows of the table, …] by input: numbers, NaN if one is missing, or texts.
        rows: indices of the rows to represent, `k` or more.

    Raises:
        InvalidOptionError: if the library is not installed.
    """
    try:
        import kmedoids
    except ModuleNotFoundError as error:
        raise InvalidOptionError(
            f"medoids need the library kmedoids: {install('medoids')}, or draw rows --by stratified."
        ) from error
    table = _scale_columns(arrays, rows)
    candidates = np.arange(len(rows))
    if len(rows) > MOST:
        candidates = np.sort(np.random.default_rng(seed).choice(len(rows), MOST, replace=False))
    distances = _distances(table, candidates, candidates)
    positions = np.sort(kmedoids.fasterpam(distances, k, random_state=seed, n_cpu=1).medoids.astype(int))
    chosen = candidates[positions]
    starts = [*range(0, len(rows), _BLOCK), len(rows)]
    nearest = [_distances(table, np.arange(a, b), chosen).argmin(axis=1) for a, b in pairwise(starts)]
    counts = np.bincount(np.concatenate(nearest), minlength=len(chosen))
    has_rows = counts > 0  # not a row whose equal was chosen before it
    return rows[chosen[has_rows]], counts[has_rows] / len(rows)


Column = tuple[np.ndarray, bool]  # values [rows], and whether they are categories


def _scale_columns(arrays: Mapping[str, np.ndarray], rows: np.ndarray) -> list[Column]:
    """Return numbers in standard deviations; for texts the index of each among all of them."""
    columns = list[Column]()
    for array in arrays.values():
        for column in array[rows].reshape(len(rows), -1).T:
            if column.dtype.kind in "OU":
                columns.append((np.unique(column.astype(str), return_inverse=True)[1], True))
                continue
            numbers = column.astype(np.float64)
            present = numbers[~np.isnan(numbers)]
            spread = present.std() if len(present) else 0.0
            columns.append(((numbers / (spread or 1)).astype(np.float32), False))
    return columns


def _distances(table: list[Column], rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return [some, others]: Σ over columns of |Δ| in standard deviations, or 1 if categories differ.

    A missing number is as far from any other as two categories are.
    """
    total = np.zeros((len(rows), len(columns)), np.float32)
    for values, is_category in table:
        a, b = values[rows, None], values[None, columns]
        if is_category:
            total += a != b
            continue
        differences = np.abs(a - b)
        if np.isnan(differences).any():
            differences = np.where(np.isnan(differences), np.isnan(a) != np.isnan(b), differences)
        total += differences
    return total
