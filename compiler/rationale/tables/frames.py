"""Frames in memory: tables of pandas, polars, pyarrow, DuckDB and alike, as one form.

Columns are matched by name, and others are passed over. Labels that are the whole numbers 0 to F − 1, in any
order, are positions: nobody gave them.
"""

import importlib.util
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from rationale.distribution import install
from rationale.errors import InvalidOptionError, RationaleError, quoted
from rationale.schema.manifest import is_float

Fault = Callable[[str], RationaleError]  # the error that says a sentence of a table, which it names
_NUMBERS = bool | int | float | Decimal | np.number | np.bool_
_SHOWN = 80  # characters of a value


@dataclass(frozen=True, eq=False)
class Frame:
    """Columns that have labels.

    Attributes:
        count: the number of rows.
        read: returns the values [count] of the column at a position.
    """

    labels: tuple[Any, ...]
    count: int
    read: Callable[[int], np.ndarray]

    @classmethod
    def of_rows(cls, rows: np.ndarray, labels: Sequence[Any]) -> "Frame":
        """Return rows [K, F] with labels for the columns."""
        return cls(tuple(labels), len(rows), lambda i: rows[:, i])

    def __getitem__(self, label: Any) -> np.ndarray:
        return self.read(self.labels.index(label))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        columns = [self.read(i) for i in range(len(self.labels))]
        return np.asarray(np.stack(columns, axis=1) if columns else np.zeros(self.shape), dtype)

    @property
    def shape(self) -> tuple[int, int]:
        return self.count, len(self.labels)

    def select(self, positions: Sequence[int]) -> "Frame":
        """Return some columns, in an order of their own."""
        labels = tuple(self.labels[i] for i in positions)
        return Frame(labels, self.count, lambda i: self.read(positions[i]))

    def take(self, rows: np.ndarray) -> "Frame":
        """Return some rows, one of them perhaps several times."""
        return Frame(self.labels, len(rows), lambda i: self.read(i)[rows])


def index_of(rows: Any) -> Sequence[object]:
    """Return the row labels [N] of a pandas frame; nothing of other tables, or if they count from 0."""
    if not hasattr(type(rows), "columns") or not hasattr(rows, "index"):
        return ()
    index: Sequence[object] = rows.index
    labels = np.asarray(index)
    return () if labels.dtype.kind in "iu" and np.array_equal(labels, np.arange(len(index))) else index


def frame_of(rows: object) -> Frame | None:
    """Return a table of any library as a frame; None for anything else.

    Raises:
        InvalidOptionError: if the table is not computed yet, or reading it needs pyarrow, which is missing.
    """
    if isinstance(rows, Frame):
        return rows
    if not any(hasattr(type(rows), name) for name in ("columns", "__arrow_c_stream__")):
        return None
    table: Any = rows
    if type(rows).__module__ == "pyarrow.lib" and hasattr(rows, "num_rows"):  # a record batch or a table
        return Frame(tuple(table.schema.names), table.num_rows, lambda i: _arrow_values(table.column(i)))
    import narwhals.stable.v2 as nw

    is_stream = hasattr(rows, "__arrow_c_stream__")
    if is_stream and not nw.dependencies.is_into_dataframe(rows) and not nw.dependencies.is_into_series(rows):
        return frame_of(_arrow_table(rows))  # of DuckDB, or a reader of record batches
    labels = None
    if nw.dependencies.is_pandas_like_dataframe(table):  # columns by position, since labels may repeat
        labels, table = table.columns, table.set_axis(range(table.shape[1]), axis=1)
    table = nw.from_native(table, pass_through=True)
    if isinstance(table, nw.LazyFrame):
        raise InvalidOptionError(
            f"a {type(rows).__name__} is lazy: give the result of its collect() or compute()."
        )
    if not isinstance(table, nw.DataFrame):
        return None
    return Frame(
        tuple(table.columns if labels is None else labels), len(table), lambda i: _values(table[:, i])
    )


def _arrow_table(table: Any) -> Any:
    require_package("pyarrow", "parquet", f"rows of a {type(table).__name__}")
    import pyarrow as pa

    return pa.table(table)


def require_package(
    package: str,
    extra: str,
    subject: str,
    instead: str = "",
    error: type[RationaleError] = InvalidOptionError,
) -> None:
    """Raise an error with the install command if a package is missing.

    Args:
        extra: the extra that brings it.
        subject: the things that need it, in the plural.
        instead: an alternative without it, such as ", or use .csv".
    """
    if importlib.util.find_spec(package) is None:
        raise error(f"{subject} need {package}: {install(extra)}{instead}.")


def _arrow_values(column: Any) -> np.ndarray:
    from pyarrow import types

    if hasattr(column.type, "index_type"):  # numpy would get the last category in place of a null
        column = column.cast(column.type.value_type)
    is_number = types.is_integer(column.type) or types.is_floating(column.type)
    if is_number and not column.null_count and hasattr(column, "__dlpack__"):
        return np.from_dlpack(column)  # `to_numpy` would import pandas, which takes a third of a second
    return np.asarray(column)


def _values(column: Any) -> np.ndarray:
    """Return the values of a column of narwhals."""
    if column.dtype.is_nested():
        return np.fromiter(column.to_list(), object, len(column))
    return np.asarray(column.to_numpy())


def row_labels(row: object) -> list[Any] | None:
    """Return the labels of one row, such as a table's minima in a pandas Series; None for anything else."""
    labels = getattr(row, "index", None)
    return None if labels is None or callable(labels) or not hasattr(row, "to_numpy") else list(labels)


def are_default_labels(labels: Sequence[Any]) -> bool:
    """Tell whether these labels are a library's default positions."""
    whole = all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in labels)
    return whole and sorted(labels) == list(range(len(labels)))


def positions_of(labels: Sequence[Any], names: Sequence[str] | None, fault: Fault) -> list[int]:
    """Return each feature's index among the columns; ignore other columns.

    Args:
        names: the features' names; None if features are matched by position.

    Raises:
        RationaleError: if two columns share a name, or one is missing.
    """
    texts = [str(label) for label in labels]
    wanted_names = set(texts if names is None else names)
    doubled = [text for text, count in Counter(texts).items() if count > 1 and text in wanted_names]
    if doubled:
        raise fault(f"more than one column is named {quoted(doubled)}. Rename or drop them.")
    if are_default_labels(labels) and (names is None or len(names) == len(labels)):
        return [int(i) for i in np.argsort(labels)]
    if names is None:
        return list(range(len(labels)))
    position = {text: i for i, text in enumerate(texts)}
    missing = [name for name in names if name not in position]
    if missing:
        unknown = [text for text in texts if text not in wanted_names]
        unmatched = {"are not features": unknown, "are missing": missing}
        problems = " and ".join(
            f"columns {quoted(columns)} {kind}" for kind, columns in unmatched.items() if columns
        )
        raise fault(
            f"{problems}. The features are {quoted(names)}: rename or add columns, or give an array, which "
            "assigns columns by position."
        )
    return [position[name] for name in names]


def columns_in_order(
    frame: Frame, names: Sequence[str] | None, fault: Fault, *, words: bool = False, missing: bool = False
) -> np.ndarray:
    """Return a frame as [N, F], its columns in the order of the features.

    Args:
        names: see `positions_of`.
        words: whether values may be of any type; otherwise only numbers.
        missing: whether numbers may be missing; they become NaN.

    Raises:
        RationaleError: if `positions_of` raises it, or a value is no number or is missing.
    """
    chosen = frame.select(positions_of(frame.labels, names, fault))
    if words:
        return np.asarray(chosen)
    columns = [
        numbers_of(chosen.read(i), str(label), fault, missing=missing)
        for i, label in enumerate(chosen.labels)
    ]
    return np.stack(columns, axis=1) if columns else np.zeros(chosen.shape)


def divide_columns(
    frame: Frame, inputs: Mapping[str, Sequence[str] | None], passed_over: Collection[str], fault: Fault
) -> dict[str, Frame]:
    """Divide one frame's columns among several inputs.

    Args:
        inputs: feature names by input; None if its features have no names.
        passed_over: names of columns to ignore.

    Raises:
        RationaleError: if an input has no feature names, or `positions_of` raises it.
    """
    unnamed = [name for name, names in inputs.items() if names is None]
    if unnamed:
        raise fault(
            f"one table for {len(inputs)} inputs, but the features of {quoted(unnamed)} have no names. Give "
            "a mapping from each input to its rows."
        )
    columns = frame.select([i for i, label in enumerate(frame.labels) if str(label) not in passed_over])
    names = [name for features in inputs.values() for name in features or ()]
    ordered = iter(positions_of(columns.labels, names, fault))
    return {
        name: columns.select([next(ordered) for _ in features or ()]) for name, features in inputs.items()
    }


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
    """Return the value as a number; NaN if it is missing."""
    if is_missing(value):
        return np.nan
    if not isinstance(value, _NUMBERS):
        raise fault(
            f"column {label!r} holds {str(value)[:_SHOWN]!r}, not numbers. Encode it as for training."
        )
    return value
