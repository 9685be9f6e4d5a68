"""Bootstrap samples of a reference set, each like another sample of the same people."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rationale.errors import InvalidOptionError
from rationale.references.reference_set import Baseline, OpenReferences, map_rows
from rationale.tables.frames import frame_of


def bootstrap_samples(references: Any, weights: npt.ArrayLike | None, count: int, seed: int) -> list[Any]:
    """Draw bootstrap samples: as many rows as there are, with replacement, by their weights.

    Readers merge equal rows, so that a draw costs less than the set.

    Args:
        references: [K, …], a table, or one of these for each input.

    Returns:
        `count` samples of equal weights. Each keeps the order of the references, so that samples of the same
        rows are equal.

    Raises:
        InvalidOptionError: if `count` or `seed` is below 0, or the graph keeps fewer than two rows.
    """
    if count < 0 or seed < 0:
        raise InvalidOptionError(f"draws {count}, seed {seed}: give numbers of 0 or more.")
    if count == 0:
        return []
    if references is None or isinstance(references, Baseline | OpenReferences):
        raise InvalidOptionError("--draws needs references in the graph: give --references FILE.")
    rows = _rows(references)
    if rows < 2:
        raise InvalidOptionError(
            "--draws needs at least two references, because all draws from one reference are equal."
        )
    shares = None if weights is None else np.asarray(weights, np.float64) / np.sum(weights)
    random = np.random.default_rng(seed)
    drawn = (np.sort(random.choice(rows, rows, p=shares)) for _ in range(count))
    return [map_rows(references, partial(_take_rows, index=index)) for index in drawn]


def _rows(references: Any) -> int:
    if isinstance(references, Mapping):
        return min((_rows(rows) for rows in references.values()), default=0)
    frame = frame_of(references)
    return len(references) if frame is None else frame.count


def _take_rows(rows: Any, index: np.ndarray) -> Any:
    frame = frame_of(rows)
    return np.asarray(rows)[index] if frame is None else frame.take(index)
