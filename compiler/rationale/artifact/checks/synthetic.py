"""Rows that are nobody's: each feature is drawn by itself, between quantiles of the rows that are known."""

import numpy as np

from rationale.schema.manifest import is_float

_ENDS = (0.05, 0.95)  # quantiles between which a number is drawn
_DIGITS = 4  # that a drawn number has
_SHARE = 0.3  # of its size, by which a number that all rows share is moved


def synthetic_rows(known: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Return [count, …] rows drawn feature by feature from `known` rows [K, …].

    A number lies between two neighbours among the known ones, and is whole where all of them are. Ids and
    texts are taken from the known ones, each feature from another row. A value is missing as often as there.
    """
    random = np.random.default_rng(seed)
    if not is_float(known.dtype):
        picks = random.integers(0, len(known), (count, *known.shape[1:]))
        return np.take_along_axis(known, picks, axis=0)
    values = known.astype(np.float64)
    if len(values) == 1:
        noise = random.standard_normal((count, *values.shape[1:]))
        drawn = values + noise * np.where(values != 0, _SHARE * np.abs(values), 1.0)
        return _rounded(drawn).astype(known.dtype)
    ordered = np.sort(values, axis=0)  # missing values come last
    there = np.isfinite(ordered).sum(axis=0)
    place = random.uniform(*_ENDS, (count, *values.shape[1:])) * (len(values) - 1)
    below = np.minimum(np.floor(place).astype(int), len(values) - 2)
    low, high = (np.take_along_axis(ordered, below + step, axis=0) for step in (0, 1))
    high = np.where(np.isfinite(high), high, low)
    drawn = low + (place - below) * (high - low)
    whole = (np.isnan(values) | (values == np.round(values))).all(axis=0)
    drawn = np.where(whole, np.round(drawn), np.clip(_rounded(drawn), low, high))
    return np.where(place > there - 1, np.nan, drawn).astype(known.dtype)


def _rounded(values: np.ndarray) -> np.ndarray:
    """Round to a few significant digits: the rows stand in a file."""
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log10(np.abs(values)))
    unit = 10.0 ** (np.where(np.isfinite(exponent), exponent, 0) - _DIGITS + 1)
    return np.asarray(np.round(values / unit) * unit)
