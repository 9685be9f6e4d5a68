"""Reference sets that hold no one's row: centroids of groups of rows, with the groups' weights.

k-means (Lloyd, "Least squares quantization in PCM", 1982) from k-means++ (Arthur and Vassilvitskii, 2007) on
columns brought to one scale. Groups that are too small join their nearest neighbour.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from compiler.errors import InvalidReferencesError
from compiler.runtime import Runner

LEAST = 5  # rows of a group: a centroid of fewer would say too much of each
_ROUNDS = 100
_BLOCK = 4096  # rows whose distances are held at once


@dataclass(frozen=True)
class Centroids:
    """Means of groups of rows.

    Attributes:
        arrays: [k, …] by input name, as the rows were given.
        weights: [k], the groups' shares of all rows.
        smallest: rows of the smallest group.
        rounded: columns of whole numbers, which stayed whole.
        left: centroids whose whole numbers were left as fractions: rounded, they were somebody's row.
        moved: the largest difference of a column's mean from that of all rows, in standard deviations.
    """

    arrays: dict[str | None, np.ndarray]
    weights: np.ndarray
    smallest: int
    rounded: int
    left: int
    moved: float


def centroids(
    arrays: Mapping[str | None, np.ndarray],
    k: int,
    *,
    least: int = LEAST,
    seed: int = 0,
    whole: bool = True,
) -> Centroids:
    """At most `k` centroids, each the mean of `least` rows or more.

    Args:
        arrays: [rows, …] by input name, finite numbers.
        whole: whether columns that hold whole numbers alone keep doing so: one-hot columns become their most
            frequent category, others are rounded.

    Raises:
        InvalidReferencesError: too few rows, rows that are no numbers, or no centroid that is nobody's row.
    """
    rows = _flattened(arrays)
    if len(rows) < least * k:
        raise InvalidReferencesError(
            f"{k} centroids of {least} rows each need {least * k} rows; there are {len(rows)}. Ask for fewer "
            "centroids, or give more rows."
        )
    spread = rows.std(axis=0)
    scaled = rows / np.where(spread > 0, spread, 1)
    groups = _merged(scaled, _kmeans(scaled, k, np.random.default_rng(seed)), least)
    counts = np.bincount(groups)
    means = np.stack([rows[groups == i].mean(axis=0) for i in range(len(counts))])
    plausible = _rounded(rows, means) if whole else means
    someones = _someones(plausible, rows, least)
    plausible[someones] = means[someones]
    kept = ~_someones(plausible, rows, least)
    if not kept.any():
        raise InvalidReferencesError(
            "every centroid is somebody's row: the rows differ too little. Ask for fewer centroids."
        )
    plausible, weights = plausible[kept], counts[kept] / counts[kept].sum()
    off = np.abs(weights @ plausible - rows.mean(axis=0)) / np.where(spread > 0, spread, 1)
    return Centroids(
        _unflattened(plausible, arrays),
        weights,
        int(counts[kept].min()),
        int((np.mod(rows, 1) == 0).all(axis=0).sum()) if whole else 0,
        int((someones & kept).sum()),
        float(off.max(initial=0.0)),
    )


def _flattened(arrays: Mapping[str | None, np.ndarray]) -> np.ndarray:
    """[rows, columns of all inputs] in float64."""
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub" or array.ndim < 2 or not np.isfinite(array).all():
            raise InvalidReferencesError(f"{name or 'the rows'}: must be a table of finite numbers.")
    if len({len(array) for array in arrays.values()}) != 1:
        raise InvalidReferencesError("every input needs the same number of rows.")
    return np.concatenate([np.asarray(a, np.float64).reshape(len(a), -1) for a in arrays.values()], axis=1)


def _unflattened(rows: np.ndarray, like: Mapping[str | None, np.ndarray]) -> dict[str | None, np.ndarray]:
    widths = [int(np.prod(array.shape[1:])) for array in like.values()]
    parts = np.split(rows, np.cumsum(widths)[:-1], axis=1)
    return {
        name: part.reshape(-1, *array.shape[1:]).astype(
            array.dtype if array.dtype.kind == "f" else np.float64
        )
        for (name, array), part in zip(like.items(), parts, strict=True)
    }


def _kmeans(rows: np.ndarray, k: int, random: np.random.Generator) -> np.ndarray:
    """The group of each row."""
    centres = _spread_out(rows, k, random)
    groups = np.full(len(rows), -1)
    for _ in range(_ROUNDS):
        nearest = _nearest(rows, centres)[0]
        if np.array_equal(nearest, groups):
            break
        groups = nearest
        sums = np.zeros_like(centres)
        np.add.at(sums, groups, rows)
        counts = np.bincount(groups, minlength=k)[:, None]
        centres = np.where(counts, sums / np.maximum(counts, 1), centres)
    return groups


def _spread_out(rows: np.ndarray, k: int, random: np.random.Generator) -> np.ndarray:
    """k-means++: each next centre by its squared distance from those there are."""
    chosen = [rows[random.integers(len(rows))]]
    distance = ((rows - chosen[0]) ** 2).sum(axis=1)
    while len(chosen) < k:
        total = distance.sum()
        next_ = random.choice(len(rows), p=distance / total) if total else random.integers(len(rows))
        chosen.append(rows[next_])
        distance = np.minimum(distance, ((rows - chosen[-1]) ** 2).sum(axis=1))
    return np.stack(chosen)


def _nearest(rows: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which centre is nearest to each row, and its squared distance."""
    squares = (centres**2).sum(axis=1)
    found, distances = [], []
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        away = squares - 2 * block @ centres.T
        found.append(away.argmin(axis=1))
        distances.append(away.min(axis=1) + (block**2).sum(axis=1))
    return np.concatenate(found), np.concatenate(distances)


def _merged(rows: np.ndarray, groups: np.ndarray, least: int) -> np.ndarray:
    """Groups of `least` rows or more, from 0: the smallest joins its nearest, one after the other."""
    while True:
        _, groups, counts = np.unique(groups, return_inverse=True, return_counts=True)
        if counts.min() >= least:
            return groups
        smallest = int(counts.argmin())
        means = np.stack([rows[groups == i].mean(axis=0) for i in range(len(counts))])
        away = ((means - means[smallest]) ** 2).sum(axis=1)
        away[smallest] = np.inf
        groups[groups == smallest] = int(away.argmin())


def _rounded(rows: np.ndarray, means: np.ndarray) -> np.ndarray:
    """The means, with whole numbers where all rows have such."""
    plausible = means.copy()
    is_whole = (np.mod(rows, 1) == 0).all(axis=0)
    plausible[:, is_whole] = np.rint(means[:, is_whole])
    for group in _one_hot_groups(rows):
        categories = means[:, group].argmax(axis=1)
        plausible[:, group] = np.eye(len(group))[categories]
    return plausible


def _one_hot_groups(rows: np.ndarray) -> list[list[int]]:
    """Runs of neighbouring columns of 0 and 1 of which one is 1 in every row."""
    binary = ((rows == 0) | (rows == 1)).all(axis=0)
    groups, run = [], list[int]()
    taken = np.zeros(len(rows))
    for i, is_binary in enumerate(binary):
        if not is_binary or (taken + rows[:, i]).max() > 1:
            run, taken = [], np.zeros(len(rows))
        if not is_binary:
            continue
        run.append(i)
        taken = taken + rows[:, i]
        if len(run) > 1 and (taken == 1).all():
            groups.append(run)
            run, taken = [], np.zeros(len(rows))
    return groups


def _someones(candidates: np.ndarray, rows: np.ndarray, least: int) -> np.ndarray:
    """Whether each is a row that fewer than `least` have, in float32: what a model is given."""
    known, counts = np.unique(rows.astype(np.float32), axis=0, return_counts=True)
    rare = {row.tobytes() for row in known[counts < least] + 0.0}
    return np.array([row.tobytes() in rare for row in candidates.astype(np.float32) + 0.0], bool)


def mean_outputs(
    model: Path, rows: Mapping[str | None, np.ndarray], made: Centroids
) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Of each float output, flattened: its mean over all rows and over the centroids, and its deviation.

    Raises:
        InvalidModelError, InvalidReferencesError: the model does not run on these rows.
    """
    proto = onnx.load(model)
    run = Runner(proto)
    full, short = (run(_feeds(proto, arrays)) for arrays in (rows, made.arrays))
    compared = {}
    for name, value in full.items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            flat = value.reshape(len(value), -1).astype(np.float64)
            mean = made.weights @ short[name].reshape(len(made.weights), -1).astype(np.float64)
            compared[name] = (flat.mean(axis=0), mean, flat.std(axis=0))
    return compared


def _feeds(proto: onnx.ModelProto, arrays: Mapping[str | None, np.ndarray]) -> dict[str, np.ndarray]:
    held = {tensor.name for tensor in proto.graph.initializer}
    inputs = {v.name: v.type.tensor_type.elem_type for v in proto.graph.input if v.name not in held}
    if None in arrays and len(inputs) == 1:
        arrays = {next(iter(inputs)): arrays[None]}
    if set(arrays) != set(inputs):
        raise InvalidReferencesError(
            f"the model takes {sorted(inputs)}: give an .npz with an array for each, or leave --model out."
        )
    dtypes = {name: onnx.helper.tensor_dtype_to_np_dtype(kind) for name, kind in inputs.items()}
    return {name: np.asarray(arrays[name], dtypes[name]) for name in inputs}
