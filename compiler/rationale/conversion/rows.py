"""Rows of a table, in the fitted model's form and in the ONNX model's."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rationale.errors import InvalidReferencesError, quoted
from rationale.schema.manifest import is_float
from rationale.tables.files import with_underscores
from rationale.tables.frames import Frame, are_default_labels, as_text, as_texts, frame_of, numbers_of

_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_WHOLE = 1 << 53  # whole numbers up to it are float64 numbers


@dataclass(frozen=True)
class Features:
    """A model's knowledge of a row: how many features, and their names; None for anything it does not know.

    `texts` are columns that hold words, or that the model does not read. `underscored` names are LightGBM's,
    which writes underscores for spaces.
    """

    count: int | None
    names: tuple[str, ...] | None
    texts: frozenset[str] = frozenset()
    underscored: bool = False


@dataclass(frozen=True)
class Rows:
    """The columns [K] that a model reads, in its order, and their names if they have any.

    `words` says for each column whether it holds texts, even if all of them are missing.
    """

    columns: tuple[np.ndarray, ...]
    names: tuple[str, ...] | None
    words: tuple[bool, ...] | None = None

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    @cached_property
    def has_words(self) -> tuple[bool, ...]:
        """Flags of the columns that hold texts."""
        return self.words or tuple(
            column.dtype.kind in "UT" or (column.dtype == object and any(isinstance(v, str) for v in column))
            for column in self.columns
        )

    @cached_property
    def dtype(self) -> np.dtype:
        """The type of all numbers: float32 if each column holds that or less, else float64."""
        columns = (self._typed(i).dtype for i, words in enumerate(self.has_words) if not words)
        is_single = all(is_float(dtype) and dtype.itemsize <= _SINGLE.itemsize for dtype in columns)
        return _SINGLE if is_single and not all(self.has_words) else _DOUBLE

    def numbers(self) -> np.ndarray:
        """Return [K, F] of `dtype`, NaN for a missing value; raise InvalidReferencesError for other types."""
        columns = [self._numbers(i) for i in range(len(self.columns))]
        return np.stack(columns, axis=1) if columns else np.zeros((0, 0))

    def frame(self) -> Any:
        """Return a DataFrame of them: of pandas if it is installed, else of polars.

        Raises:
            InvalidReferencesError: neither is installed.
        """
        library = next((name for name in ("pandas", "polars") if importlib.util.find_spec(name)), None)
        if library is None:
            raise InvalidReferencesError(
                "the model reads columns by name, which needs pandas or polars, and neither is installed: "
                "pip install pandas."
            )
        names = self.names or tuple(map(str, range(len(self.columns))))
        words = self.has_words
        columns: dict[str, Any] = {}
        for i, name in enumerate(names):
            columns[name] = self.columns[i] if words[i] else self._typed(i)
            if words[i] and library == "polars":  # which knows one form of a missing text
                columns[name] = [as_text(value) or None for value in columns[name]]
        return importlib.import_module(library).DataFrame(columns)

    def onnx_column(self, i: int) -> np.ndarray:
        """Return column i [K, 1] in the ONNX model's form: texts, or numbers of `dtype`.

        A missing text is an empty one.
        """
        if not self.has_words[i]:
            return self._numbers(i)[:, None]
        texts = as_texts(self.columns[i])
        wrong = [value for value in texts if not isinstance(value, str)]
        if wrong:
            raise _fault(
                f"column {self.column_name(i)!r} holds {wrong[0]!r}, but the model needs text in this column."
            )
        return texts[:, None]

    def from_onnx_inputs(self, feeds: Mapping[str, np.ndarray], *, by_column: bool) -> "Rows":
        """Return the rows of an ONNX model's feeds; columns that it does not read repeat the first row."""
        if not by_column:
            (array,) = feeds.values()
            return self._replaced([self._fitted_column(i, column) for i, column in enumerate(array.T)])
        count = len(next(iter(feeds.values())))
        columns = [
            self._fitted_column(i, feeds[name].reshape(-1))
            if (name := self.column_name(i)) in feeds
            else np.repeat(column[:1], count)
            for i, column in enumerate(self.columns)
        ]
        return self._replaced(columns)

    def missing_texts(self, i: int) -> list[Any]:
        """Return the forms of a missing text in column i, first that of the rows if they lack one."""
        missing = [value for value in self.columns[i] if as_text(value) == ""]
        return [*missing[:1], np.nan, None]

    def column_name(self, i: int) -> str:
        return self.names[i] if self.names else f"x[{i}]"

    def mixed(self, picks: np.ndarray) -> "Rows":
        """Return rows whose feature f is that of row picks[m, f]."""
        return self._replaced([c[picks[:, i]] for i, c in enumerate(self.columns)])

    def masked(self, mask: np.ndarray) -> "Rows":
        """Return the same rows without the numbers that the mask [K, F] marks."""
        columns = list(self.columns)
        for i in np.flatnonzero(mask.any(axis=0)):
            columns[i] = np.where(mask[:, i], self.dtype.type(np.nan), self._numbers(int(i)))
        return self._replaced(columns)

    def with_column(self, i: int, values: Sequence[Any]) -> "Rows":
        """Return the same rows with other values in column i."""
        column = np.empty(len(values), object)
        column[:] = values
        return self._replaced([*self.columns[:i], column, *self.columns[i + 1 :]])

    def _replaced(self, columns: Sequence[np.ndarray]) -> "Rows":
        return Rows(tuple(columns), self.names, self.has_words)

    def _fitted_column(self, i: int, column: np.ndarray) -> np.ndarray:
        """Return a column of an ONNX model's feeds, with missing texts in the fitted model's form."""
        if not self.has_words[i]:
            return column
        missing = self.missing_texts(i)[0]
        return np.array([text if text else missing for text in column], object)

    def _numbers(self, i: int) -> np.ndarray:
        """Return column i as `dtype`."""
        column = self._typed(i)
        if (
            column.dtype.kind in "iu"
            and len(column)
            and max(abs(int(column.min())), int(column.max())) > _WHOLE
        ):
            raise _fault(
                f"column {self.column_name(i)!r} holds whole numbers beyond 2^53, which floats cannot "
                "distinguish. Write them as texts before you fit the model."
            )
        return column.astype(self.dtype)

    def _typed(self, i: int) -> np.ndarray:
        """Return column i in its own type."""
        return numbers_of(self.columns[i], self.column_name(i), _fault, missing=True)


def rows_of(example: Any, features: Features) -> Rows:
    """Return the rows of an array [K, F] or a table; the model's names find a table's columns.

    Raises:
        InvalidReferencesError: if columns are missing, or there are too many or too few.
    """
    frame = part_of(example, features.names, underscored=features.underscored)
    if frame is not None:
        columns = tuple(map(frame.read, range(len(frame.labels))))
        names = None if are_default_labels(frame.labels) else tuple(map(str, frame.labels))
    else:
        array = np.asarray(example)
        if array.ndim != 2:
            raise _fault(f"their shape is {list(array.shape)}; give a table [K, F].")
        columns, names = tuple(array.T), None
    if features.count is not None and len(columns) != features.count:
        raise _fault(f"they have {len(columns)} columns; the model was fitted on {features.count}.")
    return Rows(columns, names or features.names)


def part_of(table: Any, names: Sequence[str] | None, *, underscored: bool = False) -> Frame | None:
    """Return the features' columns of a table, in their order; None for anything else.

    Args:
        names: names of the features; all columns are returned if either side has none.
        underscored: see `Features`.
    """
    frame = frame_of(table)
    if frame is None or names is None or are_default_labels(frame.labels):
        return frame
    texts = [str(label) for label in frame.labels]
    if underscored:
        texts = list(with_underscores(texts, names, _fault))
    position = {text: i for i, text in enumerate(texts)}
    missing = [name for name in names if name not in position]
    if missing:
        raise _fault(f"columns {quoted(missing)} are missing; the model was fitted on {quoted(names)}.")
    return frame.select([position[name] for name in names])


def _fault(text: str) -> InvalidReferencesError:
    return InvalidReferencesError(f"the references, with which the ONNX model is compared: {text}")
