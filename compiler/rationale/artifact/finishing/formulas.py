"""Formulas of a graph's constants by length, which fit the constants at several lengths exactly.

A constant is a polynomial (the target of a Reshape), a multiple of 1/L (the divisor of a mean), or the
beginning of the constant for the longest length (a table of positions, a causal mask, ones).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

DEGREE = 2
NEAR = 4  # roundings between constants that were computed at several lengths
Arrays = Sequence[np.ndarray]


class DiffersError(Exception):
    """An error for two lengths whose graphs have no known formula; the text says where they differ."""


@dataclass(frozen=True, eq=False)
class Polynomial:
    """A polynomial Σ cᵢ·Lⁱ for each element of an array, in whole numbers."""

    coefficients: tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False)
class Share:
    """A constant c divided by the length: c/L."""

    numerator: np.ndarray


@dataclass(frozen=True, eq=False)
class Beginning:
    """The longest constant's first elements along the axes whose sizes change: polynomials of L."""

    axes: tuple[int, ...]
    sizes: Polynomial


Formula = Polynomial | Share | Beginning


def formula(arrays: Arrays, lengths: Sequence[int]) -> Formula | None:
    """Return the formula of constants at these lengths, the longest first; None if all are equal.

    Raises:
        DiffersError: if no formula is known.
    """
    first, *shorter = arrays
    if any(a.dtype != first.dtype or a.ndim != first.ndim for a in shorter):
        raise DiffersError("constants of several types")
    if any(a.shape != first.shape for a in shorter):
        return _beginning(arrays, lengths)
    if all(np.array_equal(a, first, equal_nan=first.dtype.kind == "f") for a in shorter):
        return None
    return _share(arrays, lengths) if first.dtype.kind == "f" else _polynomial(arrays, lengths)


def _polynomial(arrays: Arrays, lengths: Sequence[int]) -> Polynomial:
    """Fit a polynomial through as many arrays as it has coefficients, and check it with all of them.

    It is solved in L − longest, where the numbers are small, and written in L.
    """
    longest, count = lengths[0], min(DEGREE + 1, len(lengths) - 1)
    values = np.stack([a.reshape(-1) for a in arrays]).astype(np.int64)
    steps = np.power.outer(np.subtract(lengths[:count], longest), range(count)).astype(np.float64)
    centred = np.rint(np.linalg.solve(steps, values[:count] - values[0])).astype(np.int64)
    centred[0] += values[0]
    binomials = [[comb(j, i) * (-longest) ** max(j - i, 0) for j in range(count)] for i in range(count)]
    coefficients = np.asarray(binomials) @ centred
    if not np.array_equal(np.power.outer(lengths, range(count)) @ coefficients, values):
        raise DiffersError("a constant that is no polynomial of the length, in whole numbers")
    return Polynomial(tuple(coefficients.reshape(count, *arrays[0].shape)))


def _share(arrays: Arrays, lengths: Sequence[int]) -> Share:
    numerator = arrays[0].astype(np.float64) * lengths[0]
    for a, n in zip(arrays, lengths, strict=True):
        if not np.allclose(a, numerator / n, rtol=NEAR * np.finfo(a.dtype).eps, atol=0):
            raise DiffersError("a constant that depends on the length in an unusual way")
    return Share(numerator)


def _beginning(arrays: Arrays, lengths: Sequence[int]) -> Beginning:
    longest = arrays[0]
    axes = tuple(i for i in range(longest.ndim) if len({a.shape[i] for a in arrays}) > 1)
    sizes = _polynomial([np.asarray([a.shape[i] for i in axes], np.int64) for a in arrays], lengths)
    exact = longest.dtype.kind != "f"
    near = 0 if exact else NEAR * np.finfo(longest.dtype).eps
    for a in arrays:
        if any(m > n for m, n in zip(a.shape, longest.shape, strict=True)):
            raise DiffersError("a constant that gets shorter")
        beginning = longest[tuple(slice(n) for n in a.shape)]
        if not np.allclose(a, beginning, rtol=near, atol=0, equal_nan=not exact):
            raise DiffersError(f"a constant of shape {list(longest.shape)} that differs for each length")
    return Beginning(axes, sizes)
