"""Attributions of a probability σ(f): those of the margin f to each reference, rescaled to the probability.

A reference r explains the margin f(x) − f(r); the slope s(f(x), f(r)) = (σ(f(x)) − σ(f(r))) / (f(x) − f(r))
turns it into the difference of probabilities, and the graph answers the mean over the references, like shap's
model_output="probability" (Lundberg et al., 2020, "explaining the loss": rescaled as in DeepLIFT). The slope
is a sum of few products, s(a, b) = Σ_t s(a, b_t) h_t(b), so that each t has one table: it contains the
references' weights times h_t(f(r)), and s(f(x), b_t) is a factor at run time.
"""

from dataclasses import dataclass

import numpy as np

_EXACT = 1e-8  # error of the slope, which is at most 1/4
_GRID = 512  # margins at which the slope is compared
_STEEP = 20.0  # beyond it, the probability is flat
_AT_ONCE = 1 << 12  # references


@dataclass(frozen=True)
class Terms:
    """The terms of the slope as a sum of products.

    Attributes:
        margins: [R], the margins b_t, some of the references' own.
        weights: [R, K], h_t of each reference.
    """

    margins: np.ndarray
    weights: np.ndarray


def slope(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return (σ(a) − σ(b)) / (a − b); σ'(a) if they are equal."""
    d = a - b
    equal = d == 0
    rise = np.where(equal, 0.5, np.tanh(d / 2) / np.where(equal, 1, d))
    return np.asarray(0.5 * rise * (1 - np.tanh(a / 2) * np.tanh(b / 2)))


def separate_slope(margins: np.ndarray, low: float, high: float) -> Terms:
    """Separate the slope into a sum of products.

    Args:
        margins: [K], the margins of the references.
        low, high: the range of a row's margin.
    """
    ends = np.array([min(low, margins.min()), max(high, margins.max())])
    a = np.concatenate([np.linspace(e[0], e[1], _GRID) for e in (ends, np.clip(ends, -_STEEP, _STEEP))])
    candidates = np.unique(np.quantile(margins, np.linspace(0, 1, _GRID), method="nearest"))
    columns = slope(a[:, None], candidates)
    pivots = candidates[_pivots(columns)]
    inverse = np.linalg.pinv(slope(a[:, None], pivots))
    parts = [margins[i : i + _AT_ONCE] for i in range(0, len(margins), _AT_ONCE)]
    return Terms(
        pivots, np.concatenate([inverse @ slope(a[:, None], margin_part) for margin_part in parts], axis=1)
    )


def _pivots(columns: np.ndarray) -> list[int]:
    """Return columns whose combinations give all others; each next one is the least determined so far."""
    residual, chosen = columns.copy(), []
    while np.abs(residual).max() > _EXACT:
        norms = (residual**2).sum(axis=0)
        chosen.append(int(norms.argmax()))
        direction = residual[:, chosen[-1]] / np.sqrt(norms[chosen[-1]])
        residual -= np.outer(direction, direction @ residual)
    return chosen or [0]  # each is as good as the others where the probability is flat
