"""Layer-wise relevance propagation through one linear layer, in matrix form, slow and in float64.

Written from the papers' sums. W [O, I], b [O], x [I] and R [O] give the relevance [I]; W is 0 where a layer
has no connection.
Bach et al., 2015; Montavon et al., 2017 and 2019; Andéol et al., 2021; Lapuschkin et al., 2019.
"""

from collections.abc import Callable

import numpy as np

Array = np.ndarray


def positive(a: Array) -> Array:
    return np.where(a > 0, a, 0.0)


def negative(a: Array) -> Array:
    return np.where(a < 0, a, 0.0)


def stabilised(z: Array, epsilon: float) -> Array:
    return z + np.where(z < 0, -epsilon, epsilon)


def shared(contributions: Array, bias: Array, R: Array, epsilon: float) -> Array:
    """R_j = Σ_i c_ij/(ε + Σ_l c_il + b_i) R_i."""
    z = contributions.sum(axis=1) + bias
    return (contributions / stabilised(z, epsilon)[:, None] * R[:, None]).sum(axis=0)


def epsilon_rule(W: Array, b: Array, x: Array, R: Array, epsilon: float = 1e-6) -> Array:
    return shared(W * x, b, R, epsilon)


def gamma(W: Array, b: Array, x: Array, R: Array, gamma: float = 0.25, epsilon: float = 1e-6) -> Array:
    return shared((W + gamma * positive(W)) * x, b + gamma * positive(b), R, epsilon)


def generalized_gamma(
    W: Array, b: Array, x: Array, R: Array, gamma: float = 0.25, epsilon: float = 1e-6
) -> Array:
    y = W @ x + b
    up, down = W + gamma * positive(W), W + gamma * negative(W)
    above = up * positive(x) + down * negative(x)
    below = down * positive(x) + up * negative(x)
    return shared(above, b + gamma * positive(b), np.where(y > 0, R, 0), epsilon) + shared(
        below, b + gamma * negative(b), np.where(y < 0, R, 0), epsilon
    )


def alpha_beta(
    W: Array, b: Array, x: Array, R: Array, alpha: float = 2.0, beta: float = 1.0, epsilon: float = 1e-6
) -> Array:
    c = W * x
    return alpha * shared(positive(c), positive(b), R, epsilon) - beta * shared(
        negative(c), negative(b), R, epsilon
    )


def z_plus(W: Array, b: Array, x: Array, R: Array, epsilon: float = 1e-6) -> Array:
    return shared(positive(W * x), positive(b), R, epsilon)


def w_square(W: Array, b: Array, x: Array, R: Array, epsilon: float = 1e-6) -> Array:
    return shared(W**2, b**2, R, epsilon)


def flat(W: Array, b: Array, x: Array, R: Array, epsilon: float = 1e-6) -> Array:
    return shared((W != 0).astype(float), 0 * b, R, epsilon)


def z_box(
    W: Array, b: Array, x: Array, R: Array, low: float = -2.0, high: float = 2.0, epsilon: float = 1e-6
) -> Array:
    return shared(W * x - positive(W) * low - negative(W) * high, 0 * b, R, epsilon)


def matrix_of(layer: Callable[[Array], Array], shape: tuple[int, ...]) -> tuple[Array, Array]:
    """W [O, I] and b [O] of a map that is affine, from its answers to the rows of an identity."""
    size = int(np.prod(shape))
    rows = np.concatenate([np.zeros((1, size)), np.eye(size)]).reshape(size + 1, *shape)
    answers = layer(rows).reshape(size + 1, -1)
    return (answers[1:] - answers[0]).T, answers[0]
