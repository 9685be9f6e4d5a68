"""How a constant of a graph depends on a length: what explains it at several lengths, exactly.

A polynomial (the target of a Reshape), a multiple of 1/L (the divisor of a mean), or the beginning of what it
is for the longest (a table of positions, a causal mask, ones).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

DEGREE = 2
NEAR = 4  # roundings between constants that were computed at several lengths
Arrays = Sequence[np.ndarray]


class DiffersError(Exception):
    """Two lengths have graphs between which no formula is known; the text says where they differ."""


@dataclass(frozen=True, eq=False)
class Polynomial:
    """Σ cᵢ·Lⁱ for each element of an array, in whole numbers."""

    coefficients: tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False)
class Share:
    """c/L."""

    numerator: np.ndarray


@dataclass(frozen=True, eq=False)
class Beginning:
    """The longest one's first elements along the axes whose size changes: that many, as a polynomial of L."""

    axes: tuple[int, ...]
    sizes: Polynomial


Formula = Polynomial | Share | Beginning


def formula(arrays: Arrays, lengths: Sequence[int]) -> Formula | None:
    """Of constants at these lengths, the longest first; None where all are equal.

    Raises:
        DiffersError: none is known.
    """
    first, *others = arrays
    if any(a.dtype != first.dtype or a.ndim != first.ndim for a in others):
        raise DiffersError("constants of several types")
    if any(a.shape != first.shape for a in others):
        return _beginning(arrays, lengths)
    if all(np.array_equal(a, first, equal_nan=first.dtype.kind == "f") for a in others):
        return None
    return _share(arrays, lengths) if first.dtype.kind == "f" else _polynomial(arrays, lengths)


def _polynomial(arrays: Arrays, lengths: Sequence[int]) -> Polynomial:
    count = min(DEGREE + 1, len(lengths) - 1)
    powers = [[Fraction(n) ** i for i in range(count)] for n in lengths[:count]]
    found = [
        _solved(powers, [Fraction(int(a.flat[k])) for a in arrays[:count]]) for k in range(arrays[0].size)
    ]
    if any(c.denominator != 1 for row in found for c in row):
        raise DiffersError("a constant in fractions of the length")
    coefficients = np.asarray([[int(c) for c in row] for row in found], np.int64).reshape(-1, count)
    for a, n in zip(arrays, lengths, strict=True):
        if not np.array_equal(coefficients @ n ** np.arange(count), a.reshape(-1)):
            raise DiffersError("a constant that is no polynomial of the length")
    shape = arrays[0].shape
    return Polynomial(tuple(coefficients[:, i].reshape(shape) for i in range(count)))


def _solved(rows: list[list[Fraction]], right: list[Fraction]) -> list[Fraction]:
    """Gauss–Jordan; of Vandermonde rows, so no pivot is 0."""
    table = [[*row, value] for row, value in zip(rows, right, strict=True)]
    for i, row in enumerate(table):
        table[i] = pivot = [v / row[i] for v in row]
        for j, other in enumerate(table):
            if j != i:
                table[j] = [v - other[i] * p for v, p in zip(other, pivot, strict=True)]
    return [row[-1] for row in table]


def _share(arrays: Arrays, lengths: Sequence[int]) -> Share:
    numerator = arrays[0].astype(np.float64) * lengths[0]
    for a, n in zip(arrays, lengths, strict=True):
        if not np.allclose(a, numerator / n, rtol=NEAR * np.finfo(a.dtype).eps, atol=0):
            raise DiffersError("a constant that is computed from the length in a way of its own")
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
        part = longest[tuple(slice(n) for n in a.shape)]
        if not np.allclose(a, part, rtol=near, atol=0, equal_nan=not exact):
            raise DiffersError(
                f"a constant of shape {list(longest.shape)} that is another one for each length"
            )
    return Beginning(axes, sizes)
