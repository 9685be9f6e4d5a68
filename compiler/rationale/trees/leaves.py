"""Shapley values of one leaf, and interactions of its features, for every pattern of satisfied conditions.

A leaf of value 1 with k features on its path is the product of k conditions. With H[b] the share of the
references that satisfy the pattern b ∈ {0, 1}^k, a row that satisfies a has for feature j the Shapley value

    Σ_b H[b] ∫₀¹ (a_j − b_j) Π_{i≠j} (q·a_i + (1 − q)·b_i) dq,

This is the multilinear extension of the game in which a feature comes from the row or from a reference: Owen,
"Multilinear Extensions of Games", 1972. Its integrand has degree k − 1 in q, so ⌈k/2⌉ Gauss–Legendre points
are exact; and it is a product over features, so each point costs 2 × 2 transforms of H.
"""

from functools import lru_cache

import numpy as np


def leaf_values(patterns: np.ndarray) -> np.ndarray:
    """Return [L, 2^k, k], the value of each feature for each pattern a.

    Args:
        patterns: [L, 2^k] float64, H of L leaves; the first feature is the highest bit.
    """
    h, k, q, share = _at_points(patterns)
    out = np.empty((*patterns.shape, k))
    _transform_others(h, 0, k, k, q, share, out)
    return out


def leaf_interactions(patterns: np.ndarray) -> np.ndarray:
    """Return the interactions between features for each pattern a: [L, 2^k, k·(k − 1)/2].

    For features (0, 1), (0, 2) … it is

        ½ Σ_b H[b] ∫₀¹ (a_i − b_i) (a_j − b_j) Π_{l≠i,j} (q·a_l + (1 − q)·b_l) dq,

    one half for each of the two: Fujimoto et al., "Axiomatic characterizations of probabilistic and
    cardinal-probabilistic interaction indices", 2006, with the factor of Lundberg et al., 2020.

    Args:
        patterns: [L, 2^k] float64, H of L leaves; the first feature is the highest bit.
    """
    h, k, q, share = _at_points(patterns)
    out = np.empty((*patterns.shape, k * (k - 1) // 2))
    with_first = np.empty((*patterns.shape, k))
    first = 0
    for i in range(k - 1):
        _transform_others(_difference(h, i, k), i + 1, k, k, q, share / 2, with_first)
        out[..., first : first + k - 1 - i] = with_first[..., i + 1 :]
        first += k - 1 - i
        h = _mixture(h, i, k, q)
    return out


# Arrays are [2^k, points, L]: whatever the feature, NumPy's loops run over all points and leaves.


def _at_points(patterns: np.ndarray) -> tuple[np.ndarray, int, np.ndarray, np.ndarray]:
    """Return H for each Gauss–Legendre point, k, the points [points, L] and their weights [points]."""
    k = patterns.shape[1].bit_length() - 1
    nodes, weights = _gauss_legendre((k + 1) // 2)
    shape = len(nodes), len(patterns)
    h = np.broadcast_to(patterns.T[:, None], (1 << k, *shape))
    return h, k, np.ascontiguousarray(np.broadcast_to((nodes[:, None] + 1) / 2, shape)), weights / 2


@lru_cache
def _gauss_legendre(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(count)


def _transform_others(
    h: np.ndarray, low: int, high: int, k: int, q: np.ndarray, share: np.ndarray, out: np.ndarray
) -> None:
    """Transform, for each feature in low … high, all others of them; the rest is transformed already."""
    if high - low == 1:
        at_points = _difference(h, low, k)
        total = share[0] * at_points[:, 0]  # np.einsum's order depends on the sizes
        for i in range(1, len(share)):
            total += share[i] * at_points[:, i]
        out[..., low] = total.T
        return
    middle = (low + high) // 2
    for first, last, half in ((middle, high, (low, middle)), (low, middle, (middle, high))):
        transformed = h
        for axis in range(first, last):
            transformed = _mixture(transformed, axis, k, q)
        _transform_others(transformed, *half, k, q, share, out)


def _difference(h: np.ndarray, axis: int, k: int) -> np.ndarray:
    """Return a − b, summed over b."""
    halves = _halves(h, axis, k)
    out = np.empty(halves.shape)
    np.negative(halves[:, 1], out=out[:, 0])
    out[:, 1] = halves[:, 0]
    return out.reshape(h.shape)


def _mixture(h: np.ndarray, axis: int, k: int, q: np.ndarray) -> np.ndarray:
    """Return q·a + (1 − q)·b, summed over b."""
    halves = _halves(h, axis, k)
    out = np.empty(halves.shape)
    np.multiply(1 - q, halves[:, 1], out=out[:, 0])
    np.multiply(q, halves[:, 0], out=out[:, 1])
    out[:, 1] += halves[:, 1]
    return out.reshape(h.shape)


def _halves(h: np.ndarray, axis: int, k: int) -> np.ndarray:
    """Return h as [2^axis, 2, 2^(k − 1 − axis), points, L]: the feature's bit has its own axis."""
    return h.reshape(1 << axis, 2, 1 << (k - 1 - axis), *h.shape[1:])
