"""Reference sets: checked against the model, equal rows merged with weights."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rationale.errors import InvalidOptionError, InvalidReferencesError
from rationale.schema.manifest import Category, Spread, is_float
from rationale.schema.request import whole_number
from rationale.tables.frames import as_texts

_SHOWN = 60  # characters of a value in a message
_STEPS = np.linspace(0, 1, 21)  # 0, 5 … 100%
_MOST_CATEGORIES = 100
_LONGEST = 200  # characters of a category: longer texts are nobody's category
_DIGITS = 7  # of a float32; further ones are rounding
_MOST_FEATURES = 512  # beyond, nobody fills in a form, and the manifest would be large
MAX_OPEN = 10_000  # references that a graph takes as an input: beyond, nobody would send them with a request


@dataclass(frozen=True)
class Baseline:
    """One reference row that holds the same number everywhere."""

    value: float


@dataclass(frozen=True, eq=False)
class OpenReferences:
    """References that come with each request: the graph takes K of them as an input and holds none.

    Args:
        count: K, the rows that the graph takes for each row to explain. Fewer are filled up with rows of
            weight 0.
        examples: rows such as will come, near which the graph is checked; none of them is kept.
    """

    count: int
    examples: npt.ArrayLike | Mapping[str, npt.ArrayLike] | None = None

    def __post_init__(self) -> None:
        whole_number("open references: K", self.count, 1, MAX_OPEN)


def map_rows(references: Any, change: Callable[[Any], Any]) -> Any:
    """Return references with a change to their rows, or to those of each input."""
    if isinstance(references, OpenReferences):
        return replace(references, examples=map_rows(references.examples, change))
    if isinstance(references, Mapping):
        return {name: change(rows) for name, rows in references.items()}
    return change(references)


@dataclass(frozen=True)
class ReferenceSet:
    """K reference rows for each tensor at which the walk ends: mostly the explained inputs.

    Attributes:
        arrays: rows [K, *shape of the tensor] by the tensor's name.
        weights: K weights that sum to 1; None if all are equal.
        given_rows: number of rows before equal ones were merged.
        effective: 1/Σ w² over those rows: the number of equally weighted rows that they are worth.
        is_open: whether the graph takes references as inputs; these rows are then examples, not in it.
    """

    arrays: dict[str, np.ndarray]
    weights: np.ndarray | None
    given_rows: int
    effective: float
    digest: str
    is_open: bool = False

    @property
    def count(self) -> int:
        return len(next(iter(self.arrays.values())))

    @property
    def weights_dtype(self) -> np.dtype:
        """The type of weights that come with a request: that of the first rows of floats."""
        floats = (array.dtype for array in self.arrays.values() if is_float(array.dtype))
        return next(floats, np.dtype(np.float32))

    @property
    def warnings(self) -> tuple[str, ...]:
        if self.is_open or self.count > 1 or self.given_rows == 1:
            return ()
        return (
            f"all {self.given_rows} references are equal: rows are compared with that one. Was the file "
            "meant to hold different ones?",
        )


def prepare(
    references: npt.ArrayLike | Mapping[str, npt.ArrayLike] | Baseline | OpenReferences,
    weights: npt.ArrayLike | None,
    inputs: Mapping[str, tuple[tuple[int, ...], np.dtype]],
    *,
    missing: bool = False,
    splits: Mapping[str, Sequence[Sequence[float]]] | None = None,
) -> ReferenceSet:
    """Check references against the explained inputs (row shape [1, …] and dtype by name).

    Round them to the model's dtype; keep them in float32, the dtype of the explanation, if it is narrower.

    Args:
        missing: whether the model takes NaN, as a missing value.
        splits: numbers at which answers change, by input and element of a row; open references without
            examples are drawn among them.

    Raises:
        InvalidReferencesError: if names, shapes, dtypes or weights do not fit, a value is NaN or infinite, or
            there are no rows.
    """
    if isinstance(references, OpenReferences):
        return _examples(references, weights, inputs, missing, splits or {})
    if isinstance(references, Baseline):
        references = {
            name: np.broadcast_to(references.value, (1, *row[1:])) for name, (row, _) in inputs.items()
        }
    arrays = _by_name(references, list(inputs))
    checked = {name: _check(name, arrays[name], *inputs[name], missing) for name in inputs}
    shares = _check_weights(weights, check_count(checked))
    digest = hashlib.sha256()
    for name, array in checked.items():
        digest.update(f"{name}{array.dtype}{array.shape}".encode() + array.tobytes())
    digest.update(b"" if shares is None else shares.tobytes())
    merged, merged_weights, given_count = _merge(checked, shares)
    effective = float(given_count if shares is None else 1 / (shares**2).sum())
    return ReferenceSet(merged, merged_weights, given_count, effective, digest.hexdigest())


def check_count(arrays: Mapping[str, np.ndarray]) -> int:
    """Return K, the same for each input; raise InvalidReferencesError if inputs differ in it."""
    counts = {len(a) for a in arrays.values()}
    if len(counts) > 1:
        sizes = ", ".join(f"{name}: {len(a)}" for name, a in arrays.items())
        raise InvalidReferencesError(f"every input needs the same number of references ({sizes}).")
    return counts.pop()


def _examples(
    references: OpenReferences,
    weights: npt.ArrayLike | None,
    inputs: Mapping[str, tuple[tuple[int, ...], np.dtype]],
    missing: bool,
    splits: Mapping[str, Sequence[Sequence[float]]],
) -> ReferenceSet:
    """Return K rows such as may come: the examples over and over, or draws without any."""
    if weights is not None:
        raise InvalidOptionError(
            "open references have no weights at compile time: requests bring weights with their references."
        )
    count, random = int(references.count), np.random.default_rng(0)
    if references.examples is None:
        drawn = {
            name: _draw_rows(random, (count, *row[1:]), dtype, splits.get(name, ()))
            for name, (row, dtype) in inputs.items()
        }
        examples = prepare(drawn, None, inputs)
    else:
        examples = prepare(references.examples, None, inputs, missing=missing)
    arrays = {name: array[np.arange(count) % len(array)] for name, array in examples.arrays.items()}
    return ReferenceSet(arrays, None, count, float(count), "", is_open=True)


def _draw_rows(
    random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, splits: Sequence[Sequence[float]]
) -> np.ndarray:
    """Return rows: draws among an element's split points if it has any, else normal ones, 0 or empty text."""
    if not is_float(dtype):
        return np.full(shape, "" if dtype.kind == "O" else 0, dtype)
    rows = random.standard_normal(shape).reshape(shape[0], -1)
    for element, points in enumerate(splits):
        if points:
            between = np.convolve([points[0] - 1, *points, points[-1] + 1], [0.5, 0.5], "valid")
            rows[:, element] = random.choice(between, len(rows))
    return rows.reshape(shape)


def _by_name(
    references: npt.ArrayLike | Mapping[str, npt.ArrayLike], names: list[str]
) -> dict[str, npt.ArrayLike]:
    if not isinstance(references, Mapping):
        if len(names) != 1:
            raise unnamed_error(names)
        return {names[0]: references}
    if set(references) != set(names):
        raise InvalidReferencesError(
            f"references are given for {sorted(map(str, references))}, but the explained "
            f"inputs are {sorted(names)}."
        )
    return dict(references)


def unnamed_error(names: Sequence[str]) -> InvalidReferencesError:
    """Return the error for a single array if several inputs are explained."""
    return InvalidReferencesError(
        f"{len(names)} inputs are explained ({', '.join(names)}): give a mapping from name to array, a .npz "
        "file with an array for each, or a table whose columns --features INPUT=A,B,C names for each."
    )


def check_rows(name: str, array: np.ndarray, row: tuple[int, ...], dtype: np.dtype) -> None:
    """Raise InvalidReferencesError unless the array holds at least one row of shape `row` [1, …], of numbers.

    Args:
        dtype: the input's type; object if it holds text, whose values are checked as text.
    """
    if dtype.kind == "O":
        _check_text(name, array)
    elif array.dtype.kind not in "iub" and not is_float(array.dtype):
        raise InvalidReferencesError(
            f"references of {name!r} hold {array.dtype}, not numbers. The model takes {dtype}."
        )
    if array.ndim != len(row) or array.shape[1:] != tuple(row[1:]):
        want = "[K" + "".join(f", {n}" for n in row[1:]) + "]"
        surplus = array.ndim == len(row) == 2 and array.shape[1] > row[1]
        raise InvalidReferencesError(
            f"references of {name!r} have shape {list(array.shape)}; the model needs {want}."
            + " Choose the model's features among the columns (--features)." * surplus
        )
    if len(array) == 0:
        raise InvalidReferencesError(f"references of {name!r} are empty: at least one row is needed.")


def _check_text(name: str, array: np.ndarray) -> None:
    positions = [i for i, value in np.ndenumerate(array) if not isinstance(value, str)]
    if positions:
        value, position = array[positions[0]], [int(i) for i in positions[0]]
        raise InvalidReferencesError(
            f"references of {name!r} hold {str(value)[:_SHOWN]!r} at {position}, which is not text. Write "
            "it as in the training data, or drop such rows."
        )


def _check(
    name: str, references: npt.ArrayLike, row: tuple[int, ...], dtype: np.dtype, missing: bool
) -> np.ndarray:
    array = as_column(as_array(name, references), row)
    if dtype.kind == "O":
        array = as_texts(array)
    check_rows(name, array, row, dtype)
    if dtype.kind == "O":  # of one length each, so that equal ones are of equal bytes
        return np.ascontiguousarray(array, np.str_)
    if dtype.kind in "iub" and not (np.isfinite(array).all() and np.array_equal(array.astype(dtype), array)):
        raise whole_number_error(name, dtype)
    with np.errstate(over="ignore"):
        cast = np.ascontiguousarray(array, dtype)
    accepted = np.isfinite(cast) | (missing & np.isnan(array))
    if not accepted.all():
        position = [int(i) for i in np.argwhere(~accepted)[0]]
        value = array[tuple(position)]
        fault = "which is not a finite number. Impute"
        if np.isfinite(value):
            fault = f"which is too large for {dtype}. Scale"
        elif np.isnan(value):
            fault = "a missing value (an empty cell of a table), which this model does not take. Impute"
        raise InvalidReferencesError(
            f"references of {name!r} hold {value} at {position}, {fault} or drop such rows."
        )
    return cast.astype(np.float32) if is_float(cast.dtype) and cast.dtype.itemsize < 4 else cast


def whole_number_error(name: str, dtype: np.dtype) -> InvalidReferencesError:
    numbers = "0 or 1 (False or True)" if dtype.kind == "b" else f"whole numbers that {dtype} holds"
    return InvalidReferencesError(f"references of {name!r} must be {numbers}.")


def as_array(name: str, references: npt.ArrayLike) -> np.ndarray:
    """Return references as an array; raise InvalidReferencesError if rows are masked or differ in length."""
    if np.ma.is_masked(references):
        raise InvalidReferencesError(
            f"references of {name!r} are masked in places. Impute or drop such rows."
        )
    try:
        return np.asarray(references)
    except ValueError as error:
        raise InvalidReferencesError(
            f"references of {name!r} are not an array: rows differ in length ({error})."
        ) from error


def as_column(array: np.ndarray, row: tuple[int, ...]) -> np.ndarray:
    """Return [K, 1] for [K] if a row [1, 1] is one feature, as a list of texts is; else the array."""
    return array[:, None] if array.ndim == 1 and tuple(row[1:]) == (1,) else array


def _check_weights(weights: npt.ArrayLike | None, count: int) -> np.ndarray | None:
    if weights is None:
        return None
    try:
        shares = np.asarray(weights, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidReferencesError(f"weights must be {count} numbers: {error}.") from error
    if shares.shape != (count,):
        raise InvalidReferencesError(
            f"weights have shape {list(shares.shape)}; {count} references need [{count}]."
        )
    if not np.isfinite(shares).all() or (shares < 0).any() or not shares.any():
        raise InvalidReferencesError("weights must be finite, not negative, and not all zero.")
    shares = shares / shares.max()  # first, since their sum may overflow
    return np.asarray(shares / shares.sum())


def _merge(
    arrays: dict[str, np.ndarray], weights: np.ndarray | None
) -> tuple[dict[str, np.ndarray], np.ndarray | None, int]:
    """Merge equal references into one with their weights added: exact, and cheaper."""
    count = len(next(iter(arrays.values())))
    rows = np.concatenate(
        [np.ascontiguousarray(a).reshape(count, -1).view(np.uint8) for a in arrays.values()], 1
    )
    first: dict[bytes, int] = {}
    owners = [first.setdefault(row.tobytes(), i) for i, row in enumerate(rows)]
    if len(first) == count:
        return arrays, weights, count
    order = list(first.values())
    total = np.bincount(owners, np.full(count, 1 / count) if weights is None else weights)[order]
    merged = {name: a[order] for name, a in arrays.items()}
    return merged, None if np.allclose(total, total[0], rtol=1e-12, atol=0) else total, count


# --- spread of values, for a form or a slider -------------------------------------------------------------


def spreads(
    arrays: Mapping[str, np.ndarray],
    names: Mapping[str, tuple[str, ...] | None],
    weights: np.ndarray | None,
) -> tuple[Spread, ...]:
    """Return the spread of each named feature, in the order of the names.

    Args:
        arrays: each input's references [K, …].
        names: names of a row's flattened features; an input without them (an image) has no spreads.
        weights: weights of the K rows, which sum to 1; None if they are equal.
    """
    described: list[Spread] = []
    if sum(len(labels or ()) for labels in names.values()) > _MOST_FEATURES:
        return ()
    for tensor, array in arrays.items():
        columns = array.reshape(len(array), -1)
        labels = names.get(tensor) or ()
        if len(labels) != columns.shape[1]:
            continue
        shares = np.full(len(array), 1 / len(array)) if weights is None else weights
        describe = _words if array.dtype.kind in "US" else _numbers
        described += [
            Spread(feature=label, **describe(columns[:, i], shares)) for i, label in enumerate(labels)
        ]
    return tuple(described)


def _numbers(values: np.ndarray, weights: np.ndarray) -> dict[str, Any]:
    values = values.astype(np.float64)
    there = np.isfinite(values)
    missing = float(weights[~there].sum())
    values, weights = values[there], weights[there]
    if not len(values):
        return {"missing": missing}
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    positions = np.searchsorted(reached, _STEPS * reached[-1] * (1 - 1e-9))
    quantiles = values[order][np.minimum(positions, len(values) - 1)]
    quantiles[0], quantiles[-1] = values[order[0]], values[order[-1]]
    whole = bool((values == np.round(values)).all())
    return {
        "scale": _scale(values[order], reached),
        "quantiles": tuple(float(v) if whole else float(f"{v:.{_DIGITS}g}") for v in quantiles),
        "whole": whole,
        "missing": missing,
    }


def _scale(values: np.ndarray, reached: np.ndarray) -> float:
    """Return the size of a change that costs 1: see `Spread.scale`.

    Args:
        values: numbers in ascending order.
        reached: the sum of the weights up to each of them.
    """

    def at(share: float, numbers: np.ndarray, sums: np.ndarray) -> float:
        return float(
            numbers[min(int(np.searchsorted(sums, share * sums[-1] * (1 - 1e-9))), len(numbers) - 1)]
        )

    weights = np.diff(reached, prepend=0.0)
    far = np.abs(values - at(0.5, values, reached))
    order = np.argsort(far, kind="stable")
    deviation = at(0.5, far[order], np.cumsum(weights[order]))
    quartiles = at(0.75, values, reached) - at(0.25, values, reached)
    scale = deviation or quartiles or float(values[-1] - values[0]) or 1.0
    return float(f"{scale:.{_DIGITS}g}")


def _words(values: np.ndarray, weights: np.ndarray) -> dict[str, Any]:
    kinds, owners = np.unique(values, return_inverse=True)
    shares = np.bincount(owners.ravel(), weights)
    order = np.argsort(-shares, kind="stable")[:_MOST_CATEGORIES]
    frequent = ((str(kinds[i]), float(shares[i])) for i in order)
    categories = (Category(value=value, share=share) for value, share in frequent if len(value) <= _LONGEST)
    return {"categories": tuple(categories)}
