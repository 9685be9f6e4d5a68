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
    """Return [L, k, 2^k], the value of each feature for each pattern a.

    Args:
        patterns: [L, 2^k] float64, H of L leaves; the first feature is the highest bit.
    """
    k = patterns.shape[1].bit_length() - 1
    out = np.zeros((k, *patterns.T.shape))
    for q, share in _points(k):
        _add_values(np.ascontiguousarray(patterns.T), 0, k, k, q, share, out)
    return np.ascontiguousarray(out.transpose(2, 0, 1))


def leaf_interactions(patterns: np.ndarray) -> np.ndarray:
    """Return the interactions between features for each pattern a: [L, k·(k − 1)/2, 2^k].

    For features (0, 1), (0, 2) … it is

        ½ Σ_b H[b] ∫₀¹ (a_i − b_i) (a_j − b_j) Π_{l≠i,j} (q·a_l + (1 − q)·b_l) dq,

    one half for each of the two: Fujimoto et al., "Axiomatic characterizations of probabilistic and
    cardinal-probabilistic interaction indices", 2006, with the factor of Lundberg et al., 2020.

    Args:
        patterns: [L, 2^k] float64, H of L leaves; the first feature is the highest bit.
    """
    k = patterns.shape[1].bit_length() - 1
    out = np.zeros((k * (k - 1) // 2, *patterns.T.shape))
    for q, share in _points(k):
        h, first = np.ascontiguousarray(patterns.T), 0
        for i in range(k - 1):
            _add_values(_difference(h, i, k), i + 1, k, k, q, share / 2, out[first : first + k - 1 - i])
            first += k - 1 - i
            h = _mixtures(h, i, i + 1, k, q)
    return np.ascontiguousarray(out.transpose(2, 0, 1))


@lru_cache
def _points(k: int) -> list[tuple[float, float]]:
    """Return the Gauss–Legendre points and their weights."""
    nodes, weights = np.polynomial.legendre.leggauss((k + 1) // 2)
    return list(zip(((nodes + 1) / 2).tolist(), (weights / 2).tolist(), strict=True))


# Arrays are [2^k, L]: NumPy's loops run over all leaves, whatever the feature.


def _add_values(h: np.ndarray, low: int, high: int, k: int, q: float, share: float, out: np.ndarray) -> None:
    """Add, for each feature in low … high, a point's share of its values; other features are transformed.

    Args:
        out: [high − low, 2^k, L].
    """
    if high - low == 1:
        lost, gained = (_halves(each, low, k) for each in (share * h, out[0]))
        gained[:, 0] -= lost[:, 1]
        gained[:, 1] += lost[:, 0]
        return
    middle = (low + high) // 2
    _add_values(_mixtures(h, middle, high, k, q), low, middle, k, q, share, out[: middle - low])
    _add_values(_mixtures(h, low, middle, k, q), middle, high, k, q, share, out[middle - low :])


def _difference(h: np.ndarray, axis: int, k: int) -> np.ndarray:
    """Return a − b, summed over b."""
    halves = _halves(h, axis, k)
    out = np.empty(halves.shape)
    np.negative(halves[:, 1], out=out[:, 0])
    out[:, 1] = halves[:, 0]
    return out.reshape(h.shape)


def _mixtures(h: np.ndarray, first: int, last: int, k: int, q: float) -> np.ndarray:
    """Return q·a + (1 − q)·b of features first … last, summed over b."""
    out = np.empty(h.shape)
    for axis in range(first, last):
        (neither, both), (failed, satisfied) = (_halves(each, axis, k).swapaxes(0, 1) for each in (h, out))
        gained = q * neither
        np.multiply(1 - q, both, out=failed)
        np.add(gained, both, out=satisfied)
        h = out
    return out


def _halves(h: np.ndarray, axis: int, k: int) -> np.ndarray:
    """Return h as [2^axis, 2, 2^(k − 1 − axis), L]: the feature's bit has its own axis."""
    return h.reshape(1 << axis, 2, 1 << (k - 1 - axis), h.shape[1])
