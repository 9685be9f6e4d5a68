"""Tables in memory whose columns have names: of pandas, polars, pyarrow and alike; none of them is imported.

Columns are matched by name, and others are passed over. Labels that are the whole numbers 0 to F − 1, in any
order, are positions: nobody gave them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from rationale.errors import RationaleError
from rationale.references.tables import shown
from rationale.schema.manifest import is_float

Fault = Callable[[str], RationaleError]  # the error that says a sentence of a table, which it names
_NUMBERS = bool | int | float | Decimal | np.number | np.bool_


@dataclass(frozen=True)
class Part:
    """Some columns of a table, in an order of their own: a table itself."""

    table: Any
    labels: Sequence[Any]

    def __getitem__(self, label: Any) -> Any:
        return self.table[label]

    @property
    def columns(self) -> Sequence[Any]:
        return self.labels

    @property
    def shape(self) -> tuple[int, int]:
        return self.table.shape[0], len(self.labels)


class Labelled:
    """Rows [K, F] whose columns have names: a table itself."""

    def __init__(self, rows: np.ndarray, labels: Sequence[str]) -> None:
        self._rows, self._labels = rows, list(labels)

    def __getitem__(self, label: str) -> np.ndarray:
        return np.asarray(self._rows[:, self._labels.index(label)])

    @property
    def columns(self) -> Sequence[str]:
        return self._labels

    @property
    def shape(self) -> tuple[int, ...]:
        return self._rows.shape


def columns_of(given: object) -> list[Any] | None:
    """Return the labels of a table's columns; None for anything else."""
    for attribute in ("column_names", "columns"):  # pyarrow's `columns` are values
        if hasattr(type(given), attribute):  # of the type: pandas makes attributes of columns too
            return list(getattr(given, attribute))
    return None


def elements_of(given: object) -> list[Any] | None:
    """Return the labels of one row, such as a table's minima in a pandas Series; None for anything else."""
    labels = getattr(given, "index", None)
    return None if labels is None or callable(labels) or not hasattr(given, "to_numpy") else list(labels)


def are_positions(labels: Sequence[Any]) -> bool:
    """Tell whether nobody gave these labels."""
    whole = all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in labels)
    return whole and sorted(labels) == list(range(len(labels)))


def positions_of(labels: Sequence[Any], names: Sequence[str] | None, fault: Fault) -> list[int]:
    """Return where each feature stands among the columns; other columns are passed over.

    Args:
        names: of the features; None where they count by position.

    Raises:
        RationaleError: columns of one name, or missing ones.
    """
    texts = [str(label) for label in labels]
    wanted = set(texts if names is None else names)
    doubled = [text for text, count in Counter(texts).items() if count > 1 and text in wanted]
    if doubled:
        raise fault(f"more than one column is named {shown(doubled)}. Rename or drop them.")
    if are_positions(labels) and (names is None or len(names) == len(labels)):
        return [int(i) for i in np.argsort(labels)]
    if names is None:
        return list(range(len(labels)))
    position = {text: i for i, text in enumerate(texts)}
    missing = [name for name in names if name not in position]
    if missing:
        unknown = [text for text in texts if text not in wanted]
        faults = {"are not features": unknown, "are missing": missing}
        found = " and ".join(f"columns {shown(which)} {what}" for what, which in faults.items() if which)
        raise fault(
            f"{found}. The features are {shown(names)}: rename or add columns, or give an array, whose "
            "columns count by position."
        )
    return [position[name] for name in names]


def in_order(
    table: Any, names: Sequence[str] | None, fault: Fault, *, words: bool = False, missing: bool = False
) -> np.ndarray:
    """Return a table as [N, F], its columns in the order of the features.

    Args:
        names: as for `positions_of`.
        words: whether its values may be anything; else numbers alone.
        missing: whether numbers may be missing: they are NaN.

    Raises:
        RationaleError: as `positions_of`; values that are no numbers, or are missing.
    """
    labels = columns_of(table)
    assert labels is not None
    chosen = [labels[i] for i in positions_of(labels, names, fault)]
    try:
        columns = [np.asarray(table[label]) for label in chosen]
    except (TypeError, KeyError) as error:  # of a table that is not computed yet, such as polars' LazyFrame
        raise fault(f"the columns of a {type(table).__name__} cannot be read: {error}") from error
    if not words:
        named = zip(columns, map(str, chosen), strict=True)
        columns = [numbers_of(column, label, fault, missing=missing) for column, label in named]
    return np.stack(columns, axis=1) if columns else np.zeros((table.shape[0], 0))


def spread(
    table: Any, inputs: Mapping[str, Sequence[str] | None], passed_over: Collection[str], fault: Fault
) -> dict[str, Part]:
    """Spread one table over several inputs: the columns of each.

    Args:
        inputs: names of the features of each; None where they have none.
        passed_over: names of columns that are not wanted.

    Raises:
        RationaleError: an input without names; else as `positions_of`.
    """
    unnamed = [name for name, names in inputs.items() if names is None]
    if unnamed:
        raise fault(
            f"one table for {len(inputs)} inputs, but the features of {shown(unnamed)} have no names. Give a "
            "mapping from each input to its rows."
        )
    labels = [label for label in columns_of(table) or () if str(label) not in passed_over]
    names = [name for features in inputs.values() for name in features or ()]
    ordered = iter([labels[i] for i in positions_of(labels, names, fault)])
    return {name: Part(table, [next(ordered) for _ in features or ()]) for name, features in inputs.items()}


def numbers_of(column: np.ndarray, label: str, fault: Fault, *, missing: bool) -> np.ndarray:
    """Return a column's numbers: of a column of objects too, as nullable types are."""
    if column.dtype == object:
        column = np.asarray([_number(value, label, fault) for value in column])
        column = column.astype(np.float64) if column.dtype == object else column  # decimals
    if column.dtype.kind in "iub":
        return column
    if not is_float(column.dtype):
        raise fault(f"column {label!r} holds {column.dtype}, not numbers. Encode it as for training.")
    if not missing and np.isnan(column).any():
        row = int(np.flatnonzero(np.isnan(column))[0])
        raise fault(f"column {label!r} has no value in row {row}. Impute, or drop such rows.")
    return column


def is_missing(value: Any) -> bool:
    """Tell whether a value is missing, in any form that tables have: None, NaN, pandas.NA."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value)


def as_text(value: Any) -> Any:
    """Return the empty text for a missing value, which graphs take for one; anything else as it is."""
    return "" if is_missing(value) else value


def as_texts(array: np.ndarray) -> np.ndarray:
    """Return an array with the empty text in place of each missing value."""
    texts = np.asarray(array, object)
    return np.array([as_text(value) for value in texts.reshape(-1)], object).reshape(texts.shape)


def _number(value: Any, label: str, fault: Fault) -> Any:
    """Return a number; NaN for what is missing."""
    if is_missing(value):
        return np.nan
    if not isinstance(value, _NUMBERS):
        raise fault(
            f"column {label!r} holds {shown([str(value)])[1:-1]}, not numbers. Encode it as for training."
        )
    return value
