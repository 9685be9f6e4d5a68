"""Reference sets that hold no one's row: centroids of groups of rows, with the groups' weights.

k-means (Lloyd, "Least squares quantization in PCM", 1982) from k-means++ (Arthur and Vassilvitskii, 2007) on
columns brought to one scale. Groups that are too small join their nearest neighbour. A model's mean output
over centroids is not its mean output over the rows: weights can be chosen that keep it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from rationale.errors import InvalidReferencesError
from rationale.graph.runtime.session import Runner
from rationale.lowering import lower

LEAST = 5  # rows of a group: a centroid of fewer would say too much of each
_ROUNDS = 100
_BLOCK = 4096  # rows whose distances, or outputs, are held at once
_TOLERANCES = (1e-6, 1e-3, 1.0)  # of a mean output, squared, in standard deviations; see `balance_weights`


@dataclass(frozen=True)
class Centroids:
    """Means of groups of rows.

    Attributes:
        arrays: [k, …] by input name, as the rows were given.
        weights: [k], the groups' shares of all rows, or weights near them that keep mean outputs.
        smallest: rows of the smallest group.
        rounded: columns of whole numbers, which stayed whole.
        fractional: centroids whose whole numbers were left as fractions: rounded, they were somebody's row.
        moved: the largest difference of a column's mean from that of all rows, in standard deviations.
    """

    arrays: dict[str | None, np.ndarray]
    weights: np.ndarray
    smallest: int
    rounded: int
    fractional: int
    moved: float


def make_centroids(
    arrays: Mapping[str | None, np.ndarray],
    k: int,
    *,
    least: int = LEAST,
    seed: int = 0,
    whole: bool = True,
) -> Centroids:
    """Return at most `k` centroids, each the mean of `least` rows or more.

    Args:
        arrays: [rows, …] by input name, finite numbers.
        whole: whether columns that hold whole numbers alone keep doing so: one-hot columns become their most
            frequent category, others are rounded.

    Raises:
        InvalidReferencesError: if rows are too few or no numbers, or every centroid is somebody's row.
    """
    rows = _flatten(arrays)
    if len(rows) < least * k:
        raise InvalidReferencesError(
            f"{k} centroids of {least} rows each need {least * k} rows; there are {len(rows)}. Ask for fewer "
            "centroids, or give more rows."
        )
    spread = rows.std(axis=0)
    scaled = rows / np.where(spread > 0, spread, 1)
    groups = _merge_groups(scaled, _kmeans(scaled, k, np.random.default_rng(seed)), least)
    counts = np.bincount(groups)
    means = np.stack([rows[groups == i].mean(axis=0) for i in range(len(counts))])
    plausible = _round_means(rows, means) if whole else means
    someones = _someones(plausible, rows, least)
    plausible[someones] = means[someones]
    is_written = ~_someones(plausible, rows, least)
    if not is_written.any():
        raise InvalidReferencesError(
            "every centroid equals a row of the file, because the rows differ too little. Ask for fewer "
            "centroids."
        )
    plausible, weights = plausible[is_written], counts[is_written] / counts[is_written].sum()
    return Centroids(
        _unflatten(plausible, arrays),
        weights,
        int(counts[is_written].min()),
        int((np.mod(rows, 1) == 0).all(axis=0).sum()) if whole else 0,
        int((someones & is_written).sum()),
        _moved(weights, plausible, rows),
    )


def _moved(weights: np.ndarray, centroids: np.ndarray, rows: np.ndarray) -> float:
    spread = rows.std(axis=0)
    off = np.abs(weights @ centroids - rows.mean(axis=0)) / np.where(spread > 0, spread, 1)
    return float(off.max(initial=0.0))


def _flatten(arrays: Mapping[str | None, np.ndarray]) -> np.ndarray:
    """Return [rows, columns of all inputs] in float64."""
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub" or array.ndim < 2 or not np.isfinite(array).all() or not len(array):
            raise InvalidReferencesError(
                f"{name or 'the rows'}: must be a table of finite numbers, with rows."
            )
    if len({len(array) for array in arrays.values()}) != 1:
        raise InvalidReferencesError("every input needs the same number of rows.")
    return np.concatenate([np.asarray(a, np.float64).reshape(len(a), -1) for a in arrays.values()], axis=1)


def _unflatten(rows: np.ndarray, like: Mapping[str | None, np.ndarray]) -> dict[str | None, np.ndarray]:
    widths = [int(np.prod(array.shape[1:])) for array in like.values()]
    parts = np.split(rows, np.cumsum(widths)[:-1], axis=1)
    return {
        name: columns.reshape(-1, *array.shape[1:]).astype(
            array.dtype if array.dtype.kind == "f" else np.float64
        )
        for (name, array), columns in zip(like.items(), parts, strict=True)
    }


def _kmeans(rows: np.ndarray, k: int, random: np.random.Generator) -> np.ndarray:
    """Return the group of each row."""
    centres = _spread_out(rows, k, random)
    groups = np.full(len(rows), -1)
    for _ in range(_ROUNDS):
        nearest = _nearest(rows, centres)
        if np.array_equal(nearest, groups):
            break
        groups = nearest
        sums = np.zeros_like(centres)
        np.add.at(sums, groups, rows)
        counts = np.bincount(groups, minlength=k)[:, None]
        centres = np.where(counts, sums / np.maximum(counts, 1), centres)
    return groups


def _spread_out(rows: np.ndarray, k: int, random: np.random.Generator) -> np.ndarray:
    """Choose centres by k-means++: each by its squared distance from those already chosen."""
    chosen = [rows[random.integers(len(rows))]]
    distance = ((rows - chosen[0]) ** 2).sum(axis=1)
    while len(chosen) < k:
        total = distance.sum()
        next_ = random.choice(len(rows), p=distance / total) if total else random.integers(len(rows))
        chosen.append(rows[next_])
        distance = np.minimum(distance, ((rows - chosen[-1]) ** 2).sum(axis=1))
    return np.stack(chosen)


def _nearest(rows: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return which centre is nearest to each row."""
    squares = (centres**2).sum(axis=1)
    blocks = (rows[start : start + _BLOCK] for start in range(0, len(rows), _BLOCK))
    return np.concatenate([(squares - 2 * block @ centres.T).argmin(axis=1) for block in blocks])


def _merge_groups(rows: np.ndarray, groups: np.ndarray, least: int) -> np.ndarray:
    """Merge groups to `least` rows or more, from 0: the smallest joins its nearest, one after the other."""
    while True:
        _, groups, counts = np.unique(groups, return_inverse=True, return_counts=True)
        if counts.min() >= least:
            return groups
        smallest = int(counts.argmin())
        means = np.stack([rows[groups == i].mean(axis=0) for i in range(len(counts))])
        away = ((means - means[smallest]) ** 2).sum(axis=1)
        away[smallest] = np.inf
        groups[groups == smallest] = int(away.argmin())


def _round_means(rows: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Return the means, rounded in columns whose values are all whole numbers."""
    plausible = means.copy()
    is_whole = (np.mod(rows, 1) == 0).all(axis=0)
    plausible[:, is_whole] = np.rint(means[:, is_whole])
    for group in _one_hot_groups(rows):
        categories = means[:, group].argmax(axis=1)
        plausible[:, group] = np.eye(len(group))[categories]
    return plausible


def _one_hot_groups(rows: np.ndarray) -> list[list[int]]:
    """Return runs of neighbouring columns of 0 and 1 of which one is 1 in every row."""
    binary = ((rows == 0) | (rows == 1)).all(axis=0)
    groups, run = [], list[int]()
    ones = np.zeros(len(rows))
    for i, is_binary in enumerate(binary):
        if not is_binary or (ones + rows[:, i]).max() > 1:
            run, ones = [], np.zeros(len(rows))
        if not is_binary:
            continue
        run.append(i)
        ones = ones + rows[:, i]
        if len(run) > 1 and (ones == 1).all():
            groups.append(run)
            run, ones = [], np.zeros(len(rows))
    return groups


def _someones(candidates: np.ndarray, rows: np.ndarray, least: int) -> np.ndarray:
    """Tell whether each candidate equals, in the model's float32, a row with fewer than `least` copies."""
    distinct, counts = np.unique(rows.astype(np.float32), axis=0, return_counts=True)
    rare = {row.tobytes() for row in distinct[counts < least] + 0.0}
    return np.array([row.tobytes() in rare for row in candidates.astype(np.float32) + 0.0], bool)


# -- mean outputs --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Output:
    """One float output of a model, its row flattened to m numbers.

    Attributes:
        mean, spread: [m], over all rows; the spread is the standard deviation.
        centroids: [k, m], at the centroids.
    """

    name: str
    mean: np.ndarray
    spread: np.ndarray
    centroids: np.ndarray

    def shift(self, weights: np.ndarray) -> np.ndarray:
        """Return [m]: the centroids' weighted mean less that of all rows, in standard deviations."""
        return np.asarray((weights @ self.centroids - self.mean) / np.where(self.spread > 0, self.spread, 1))


def outputs_of(
    model: Path, rows: Mapping[str | None, np.ndarray], centroids: Centroids
) -> tuple[str, list[Output]]:
    """Return the model's digest, and each of its float outputs that is finite.

    Raises:
        InvalidModelError, InvalidReferencesError: if the model cannot run on these rows, or has no such
            output.
    """
    lowered = lower(model, references={name: a.shape for name, a in rows.items()})
    run = Runner(lowered.source, users_model=True)
    full, short = (_answers(run, _feeds(lowered.source, arrays)) for arrays in (rows, centroids.arrays))
    finite = [name for name in full if np.isfinite(full[name]).all() and np.isfinite(short[name]).all()]
    if not finite:
        raise InvalidReferencesError(
            f"{model}: no output is a float that is finite for all rows: leave --model out."
        )
    means = ((full[name].mean(axis=0), full[name].std(axis=0)) for name in finite)
    return lowered.digest, [Output(name, *of, short[name]) for name, of in zip(finite, means, strict=True)]


def _answers(run: Runner, fed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return [rows, m] in float64 for each float output."""
    count = len(next(iter(fed.values())))
    blocks = [
        run({name: a[start : start + _BLOCK] for name, a in fed.items()}) for start in range(0, count, _BLOCK)
    ]
    arrays = {name: a for name, a in blocks[0].items() if isinstance(a, np.ndarray) and a.ndim}
    return {
        name: np.concatenate([b[name].reshape(len(b[name]), -1) for b in blocks], dtype=np.float64)
        for name, a in arrays.items()
        if a.dtype.kind == "f"
    }


def balance_weights(
    centroids: Centroids, rows: Mapping[str | None, np.ndarray], outputs: Sequence[Output]
) -> Centroids:
    """Return the same centroids, with other weights.

    These are the weights nearest to the groups' shares p that keep the mean outputs.

    min over w of Σ w·log(w/p) + ‖shift(w)‖²/(2·tolerance), Σ w = 1: entropy balancing (Hainmueller, 2012), in
    a form that has a solution even if no weights keep every mean. The function takes the smallest tolerance
    that keeps at least half of the shares' effective sample size; if none does, it keeps the shares.
    """
    weights = weights_keeping_means(
        centroids.weights, np.concatenate([o.shift(np.eye(len(centroids.weights))) for o in outputs], axis=1)
    )
    if weights is centroids.weights:
        return centroids
    moved = _moved(weights, _flatten(centroids.arrays), _flatten(rows))
    return replace(centroids, weights=weights, moved=moved)


def weights_keeping_means(shares: np.ndarray, off: np.ndarray) -> np.ndarray:
    """Return [k]: the weights of `balance_weights`, or the shares themselves.

    Args:
        off: [k, m], each one's outputs less the means to keep, in standard deviations.
    """
    for tolerance in _TOLERANCES:
        weights = _tilt_weights(shares, off, tolerance)
        if (shares**2).sum() / (weights**2).sum() >= 0.5:
            return weights
    return shares


def _tilt_weights(shares: np.ndarray, off: np.ndarray, tolerance: float) -> np.ndarray:
    """Return w = p·exp(off·λ)/Σ, by Newton's method on the dual problem.

    That is min over λ of log Σ p·exp(off·λ) + tolerance·‖λ‖²/2.

    Args:
        off: [k, m], each centroid's outputs less the means to keep.
    """
    u, s, _ = np.linalg.svd(off, full_matrices=False)
    off = u * s  # the same products, in k numbers at most
    slopes = np.zeros(off.shape[1])
    for _ in range(_ROUNDS):
        w, cost = _dual(shares, off, tolerance, slopes)
        gradient = off.T @ w + tolerance * slopes
        curvature = (off.T * w) @ off - np.outer(off.T @ w, off.T @ w) + tolerance * np.eye(len(slopes))
        step = -np.linalg.solve(curvature, gradient)
        size = 1.0
        while _dual(shares, off, tolerance, slopes + size * step)[1] > cost and size > 1e-8:
            size /= 2
        if size <= 1e-8 or -gradient @ step < 1e-16:
            break
        slopes = slopes + size * step
    return w


def _dual(
    shares: np.ndarray, off: np.ndarray, tolerance: float, slopes: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return the weights of these slopes, and the cost."""
    exponents = np.log(shares) + off @ slopes
    parts = np.exp(exponents - exponents.max())
    cost = exponents.max() + np.log(parts.sum()) + tolerance * slopes @ slopes / 2
    return parts / parts.sum(), float(cost)


def _feeds(proto: onnx.ModelProto, arrays: Mapping[str | None, np.ndarray]) -> dict[str, np.ndarray]:
    constants = {tensor.name for tensor in proto.graph.initializer}
    inputs = {v.name: v.type.tensor_type.elem_type for v in proto.graph.input if v.name not in constants}
    if None in arrays and len(inputs) == 1:
        arrays = {next(iter(inputs)): arrays[None]}
    if set(arrays) != set(inputs):
        raise InvalidReferencesError(
            f"the model takes {sorted(inputs)}: give a .npz with an array for each, name the columns of "
            "each (--features INPUT=A,B,C), or leave --model out."
        )
    dtypes = {name: onnx.helper.tensor_dtype_to_np_dtype(kind) for name, kind in inputs.items()}
    return {name: np.asarray(arrays[name], dtypes[name]) for name in inputs}
