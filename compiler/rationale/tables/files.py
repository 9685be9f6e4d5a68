"""The formats of files of rows. Files are read with distrust: .npz, .npy, .csv, .parquet and .xlsx."""

import csv
import io
import itertools
import math
import tokenize
import zipfile
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rationale.errors import (
    InvalidOptionError,
    InvalidReferencesError,
    LargeReferencesError,
    quoted,
    reason_of,
)
from rationale.tables.archives import read_npy, read_npz
from rationale.tables.frames import as_text, frame_of, numbers_of, require_package
from rationale.tables.represented import StandsFor
from rationale.tables.workbooks import CellFault, read_workbook, write_workbook
from rationale.tables.written import (
    RowForms,
    WriteTable,
    write_csv,
    write_json,
    write_json_lines,
    write_npz,
    write_parquet,
)

Columns = Sequence[str] | Mapping[str, Sequence[str]] | None
WEIGHTS, FEATURE_NAMES = "reference_weights", "feature_names"  # members of an .npz that are no rows
STANDS_FOR = "stands_for"  # another: JSON
_LONGEST_LINE = 1 << 20
_SHOWN = 80  # characters of a name or value

_DAMAGE = (  # errors of numpy, zipfile, csv and pyarrow for files of other kinds
    ValueError,
    TypeError,
    KeyError,
    EOFError,
    SyntaxError,
    OverflowError,
    RecursionError,
    NotImplementedError,
    csv.Error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
TABLES = (".csv", ".parquet", ".xlsx")  # files whose columns have names


@dataclass(frozen=True)
class Table:
    """Rows read from a file.

    One array per input (None: the only one), names of its columns, weights [K], and the data that the rows
    represent, if the file records it.
    """

    arrays: dict[str | None, np.ndarray]
    columns: tuple[str, ...] | None = None
    weights: np.ndarray | None = None
    stands_for: StandsFor | None = None

    @property
    def rows(self) -> np.ndarray | dict[str, np.ndarray]:
        """The only input's rows, or arrays by name."""
        return self.arrays[None] if None in self.arrays else {str(k): a for k, a in self.arrays.items()}

    @property
    def count(self) -> int:
        """Rows, of the first input."""
        return len(next(iter(self.arrays.values())))

    @property
    def unequal_weights(self) -> np.ndarray | None:
        """Weights [K]; None if there are none, or all are equal."""
        return None if self.weights is None or np.ptp(self.weights) == 0 else self.weights


@dataclass(frozen=True)
class TableFile:
    """An open file, its name in errors, and the columns to read; see `read_stream`.

    Attributes:
        texts: names of the columns to read unchanged, as texts.
        underscored: whether the wanted names have underscores for the spaces in the file's names.
    """

    file: BinaryIO
    name: str
    columns: Sequence[str] | None
    most_bytes: int | None
    texts: Collection[str] = ()
    underscored: bool = False

    def header(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return a file's names of its columns, as the wanted ones are written."""
        file_names = tuple(names)
        if not self.underscored or self.columns is None:
            return file_names
        fault = f"{self.name}: ".__add__
        return with_underscores(file_names, self.columns, lambda text: InvalidReferencesError(fault(text)))

    def fault(self, text: str) -> InvalidReferencesError:
        """Return the error that says a sentence of a column."""
        return InvalidReferencesError(
            f"{self.name}: {text} Or choose other columns when compiling (--features)."
        )

    def check_bytes(self, size: int) -> None:
        """Raise LargeReferencesError if arrays of `size` bytes are too large."""
        if self.most_bytes is not None and size > self.most_bytes:
            raise LargeReferencesError(f"{self.name}: more than {self.most_bytes} bytes of numbers.")


def with_underscores(
    names: Sequence[str], requested: Sequence[str], fault: Callable[[str], InvalidReferencesError]
) -> tuple[str, ...]:
    """Return names of columns as LightGBM writes them: with underscores for spaces.

    Raises:
        InvalidReferencesError: if two of them would get the same wanted name.
    """
    written = tuple(name.replace(" ", "_") for name in names)
    for name in requested:
        if written.count(name) > 1:
            clashing = [n for n, w in zip(names, written, strict=True) if w == name]
            raise fault(
                f"columns {quoted(clashing)} have the same name, {name!r}, in LightGBM, which replaces "
                "spaces with underscores: remove the one that is not a feature of the model."
            )
    return written


def read_rows(
    path: Path, columns: Columns = None, texts: Collection[str] = (), *, underscored: bool = False
) -> Table:
    """Read .npz, .npy, .csv, .parquet or .xlsx: references, or rows to explain.

    Args:
        columns: columns of a table to read, in that order, or the columns of each input; None reads all.
            A file without column names is read whole.
        texts: names of the columns of a table that hold text.
        underscored: whether these names have underscores for the spaces in the file's names.

    Raises:
        InvalidReferencesError: if the file cannot be read, or a value is no number.
    """
    kind = path.suffix.lower()
    readable = [suffix for suffix, form in FORMATS.items() if form.read is not None]
    if kind not in readable:
        raise InvalidReferencesError(f"{path}: unknown kind of file; use {', '.join(readable)}.")
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        with path.open("rb") as file:
            return read_stream(file, kind, str(path), columns, texts=texts, underscored=underscored)
    except OSError as error:
        raise InvalidReferencesError(f"{path}: cannot be read: {error.strerror or error}.") from error


def read_columns(path: Path, columns: Sequence[str], count: int) -> dict[str, list[Any]]:
    """Return columns of a table of `count` rows, one cell per row, with the file's types (texts from a CSV).

    Raises:
        InvalidReferencesError: if the file lacks such columns, or column names.
    """
    if not columns:
        return {}
    if path.suffix.lower() not in TABLES:
        raise InvalidReferencesError(
            f"{path}: columns {', '.join(columns)} need a table: give the rows as {' or '.join(TABLES)}."
        )
    cells = read_rows(path, list(columns), frozenset(columns)).arrays[None]
    if cells.shape != (count, len(columns)):
        raise InvalidReferencesError(
            f"{path}: has {len(cells)} rows of {cells.shape[1]} columns, not {count} rows of "
            f"{', '.join(columns)}: give a header, and a cell in each row for each column."
        )
    return {column: list(cells[:, j]) for j, column in enumerate(columns)}


def read_stream(
    file: BinaryIO,
    kind: str,
    name: str,
    columns: Columns = None,
    most_bytes: int | None = None,
    texts: Collection[str] = (),
    *,
    underscored: bool = False,
) -> Table:
    """Read rows from an open file; see `read_rows`.

    Args:
        kind: ".npz", ".npy", ".csv", ".parquet" or ".xlsx".
        name: the file's name in errors.
        most_bytes: limit of the arrays' memory, checked before they are allocated.

    Raises:
        InvalidReferencesError: if the arrays need more, or a value is no number.
    """
    requested = [c for names in columns.values() for c in names] if isinstance(columns, Mapping) else columns
    try:
        form = FORMATS[kind]
        if form.package is not None:
            require_package(*form.package, f"{kind} files", ", or use .csv", InvalidReferencesError)
        assert form.read is not None, kind
        table = form.read(TableFile(file, name, requested, most_bytes, texts, underscored))
    except MemoryError as error:
        raise InvalidReferencesError(
            f"{name}: needs more memory than there is: give fewer rows, or the file in parts."
        ) from error
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk; pyarrow's own errors concern the content
        raise InvalidReferencesError(
            f"{name}: damaged, or its content does not match its name: {reason_of(error)}. Write or copy "
            "it again."
        ) from error
    return _divide_columns(name, table, columns, texts) if isinstance(columns, Mapping) else table


def _divide_columns(
    file: str, table: Table, columns: Mapping[str, Sequence[str]], texts: Collection[str]
) -> Table:
    """Return a table's columns as the rows of several inputs; arrays that have names stay as they are."""
    rows = table.arrays.get(None)
    if rows is None:
        return table
    if len(columns) == 1:
        return replace(table, arrays={next(iter(columns)): rows})
    if table.columns is None:
        raise InvalidReferencesError(
            f"{file}: its columns have no names, so they cannot be assigned to the inputs "
            f"{quoted(list(columns))}. Give a table with a header, or a .npz with an array for each."
        )
    index = {name: _find(file, table.columns, chosen) for name, chosen in columns.items()}
    arrays: dict[str | None, np.ndarray] = {}
    for name, positions in index.items():
        words = any(table.columns[i] in texts for i in positions)
        arrays[name] = rows[:, positions] if words else rows[:, positions].astype(np.float64)
    return replace(table, arrays=arrays, columns=None)


def _read_npz(source: TableFile) -> Table:
    arrays = read_npz(source.file, source.most_bytes)
    weights, names, represented = (arrays.pop(name, None) for name in (WEIGHTS, FEATURE_NAMES, STANDS_FOR))
    columns = None if names is None else tuple(str(name) for name in names.reshape(-1))
    if weights is not None and (weights.ndim != 1 or weights.dtype.kind not in "fiu" or not len(weights)):
        raise ValueError(f"{WEIGHTS} that are not a list of numbers")
    stands_for = None if represented is None else StandsFor.model_validate_json(str(represented))
    if not arrays:
        raise ValueError("an archive without arrays")
    only = list(arrays) == ["arr_0"]  # numpy.savez(file, array) names an array so
    named = {None if only else str(name): array for name, array in arrays.items()}
    return Table(named, columns, weights, stands_for)


def _read_npy(source: TableFile) -> Table:
    return Table({None: read_npy(source.file, source.most_bytes)})


def _read_csv(source: TableFile) -> Table:
    text = io.TextIOWrapper(source.file, "utf-8-sig", newline="")
    try:
        reader = csv.reader(_lines(source, text))
        return _read_cells(source, "line", ((reader.line_num, row) for row in reader if row))
    finally:
        text.detach()  # else it would close the file


def _read_xlsx(source: TableFile) -> Table:
    return _read_cells(source, "row", read_workbook(source.file))


def _read_cells(source: TableFile, unit: str, rows: Iterator[tuple[int, Sequence[Any]]]) -> Table:
    """Return the table of a file's rows, each with its number there; the first one may be the header."""
    number, first = next(rows, (0, ()))
    if not first:
        raise InvalidReferencesError(f"{source.name}: empty: at least one row is needed.")
    header = None if _are_numbers(first) else source.header(str(as_text(cell)).strip() for cell in first)
    index = _choose(source.name, header, source.columns)
    names = header or tuple(str(i) for i in range(len(first)))
    positions = index or range(len(first))
    numbers, words = array("d"), {j: list[Any]() for j, i in enumerate(positions) if names[i] in source.texts}
    for place, row in itertools.chain([(number, first)] if header is None else [], rows):
        if len(row) != len(first):
            raise InvalidReferencesError(
                f"{source.name}: {unit} {place} has {len(row)} cells, not {len(first)}. Repair it, or write "
                "the file again."
            )
        for j, i in enumerate(positions):
            if j in words and not isinstance(row[i], CellFault):
                words[j].append(row[i])
                numbers.append(math.nan)
            else:
                numbers.append(_number(source.name, f"{unit} {place}", names[i], row[i]))
        source.check_bytes(len(numbers) * numbers.itemsize)
    if not numbers:
        raise InvalidReferencesError(f"{source.name}: a header and no rows: at least one is needed.")
    table = np.frombuffer(numbers, np.float64).reshape(-1, len(positions))
    if words:
        table = table.astype(object)
    for j, column in words.items():
        table[:, j] = column
    columns = source.columns
    return Table({None: table}, tuple(columns) if index and columns is not None else header)


def _lines(source: TableFile, text: io.TextIOWrapper) -> Iterator[str]:
    """Yield a text's lines; raise LargeReferencesError at a line that is too long."""
    longest = -1 if source.most_bytes is None else _LONGEST_LINE
    while line := text.readline(longest):
        if len(line) == longest:
            raise LargeReferencesError(f"{source.name}: a line has more than {_LONGEST_LINE} characters.")
        yield line


def _are_numbers(cells: Sequence[Any]) -> bool:
    """Tell whether a row is no header: cells may be empty, but not all of them."""
    filled = [cell for cell in cells if str(as_text(cell)).strip()]
    try:
        return bool(filled) and all(isinstance(float(cell), float) for cell in filled)
    except (ValueError, TypeError):
        return False


def _number(path: str, row: str, column: str, cell: Any) -> float:
    """Return a number; NaN for an empty cell.

    The check of the rows refuses NaN, unless the model takes it.
    """
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return np.nan
    try:
        return float(cell)
    except (ValueError, TypeError):
        place = f"{path}: {row}, column {column[:_SHOWN]!r}"
        if isinstance(cell, CellFault):
            raise InvalidReferencesError(f"{place}: the cell {cell.reason}.") from None
        _check_commas(path, row, str(cell))
        raise InvalidReferencesError(
            f"{place}: {str(cell)[:_SHOWN]!r} is not a number. Encode or drop it, or choose other columns "
            "when compiling (--features)."
        ) from None


def _check_commas(path: str, where: str, cell: str) -> None:
    """Raise InvalidReferencesError for a cell that holds a whole line, divided by something else."""
    split = next((s for s in (";", "\t", "|") if s in cell), None)
    if split is not None:
        raise InvalidReferencesError(
            f"{path}: {where} separates its cells with {split!r}: write the file with commas (and decimal "
            "points)."
        ) from None


def _choose(path: str, header: tuple[str, ...] | None, columns: Sequence[str] | None) -> list[int] | None:
    """Return the wanted columns' indices; None (all) if no columns are named, or the file names none."""
    if header is None or columns is None:
        return None
    positions = _find(path, header, columns)
    twice = [c for c in columns if header.count(c) > 1]
    if twice:
        raise InvalidReferencesError(f"{path}: more than one column is named {quoted(twice)}: rename them.")
    return positions


def _find(path: str, header: tuple[str, ...], columns: Sequence[str]) -> list[int]:
    missing = [c for c in columns if c not in header]
    if missing:
        _check_commas(path, "the header", header[0] if len(header) == 1 else "")
        raise InvalidReferencesError(f"{path}: no column {quoted(missing)}; it has {quoted(header)}.")
    return [header.index(c) for c in columns]


def _read_parquet(source: TableFile) -> Table:
    from pyarrow import parquet

    file = parquet.ParquetFile(source.file)
    file_names = tuple(file.schema_arrow.names)
    header = source.header(file_names)
    index = _choose(source.name, header, source.columns)
    chosen = list(index or range(len(header)))
    _check_types(source, file.schema_arrow, chosen)
    source.check_bytes(file.metadata.num_rows * len(chosen) * np.dtype(np.float64).itemsize)
    table = file.read(None if index is None else [file_names[i] for i in index]).rename_columns(
        [header[i] for i in chosen]
    )
    if table.num_columns != len(chosen):
        raise ValueError("columns whose names have points in them")
    frame = frame_of(table)
    assert frame is not None
    columns = [
        np.asarray(table.column(i).to_pylist(), object)
        if name in source.texts
        else _numbers(source, name, frame.read(i))
        for i, name in enumerate(table.column_names)
    ]
    rows = np.stack(columns, axis=1) if columns else np.zeros(frame.shape)
    return Table({None: rows}, tuple(table.column_names))


def _check_types(source: TableFile, schema: Any, chosen: Sequence[int]) -> None:
    """Raise InvalidReferencesError for lists, maps and structures: they are no column of numbers."""
    for i in chosen:
        kind, name = schema.field(i).type, schema.names[i]
        if name not in source.texts and kind.num_fields:
            raise source.fault(f"column {name!r} holds {str(kind)[:_SHOWN]}, not numbers.")


def _numbers(source: TableFile, name: str, column: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # a NaN that signals becomes one that does not
        return numbers_of(column, name, source.fault, missing=True).astype(np.float64)


def check_format(path: Path, kinds: Collection[str], more: str = "") -> None:
    """Raise InvalidOptionError if the file's ending is unknown or needs a package that is not installed.

    Args:
        kinds: the endings of `FORMATS` that the caller has rows for.
        more: further endings that the caller writes itself, such as ", or .svg, a picture".
    """
    kind = path.suffix.lower()
    if kind not in kinds:
        raise InvalidOptionError(f"{path}: cannot be written: its name must end in {', '.join(kinds)}{more}.")
    if (package := FORMATS[kind].package) is not None:
        alternatives = " or ".join(other for other in kinds if FORMATS[other].package is None)
        require_package(*package, f"{path}: {kind} files", f", or save {alternatives}")


def write_rows(path: Path, rows: RowForms) -> str:
    """Write rows in the format of the file's ending; return a sentence about the file."""
    write = FORMATS[path.suffix.lower()].write
    assert write is not None, path
    return write(path, rows)


@dataclass(frozen=True)
class RowFormat:
    """A format: how to read and write its files, if possible, and the package and extra that it needs."""

    read: Callable[[TableFile], Table] | None = None
    write: Callable[[Path, RowForms], str] | None = None
    package: tuple[str, str] | None = None


def _write_cells(write: WriteTable, path: Path, rows: RowForms) -> str:
    names, cells = rows.cells()
    return f"{write(path, names, cells)} rows of {len(names)} columns"


def _write_parquet(path: Path, rows: RowForms) -> str:
    schema, batches = rows.arrow()
    return f"{write_parquet(path, batches, schema)} rows of {len(schema)} columns"


FORMATS: dict[str, RowFormat] = {
    ".npz": RowFormat(_read_npz, lambda path, rows: write_npz(path, rows.tensors())),
    ".npy": RowFormat(_read_npy),
    ".csv": RowFormat(_read_csv, partial(_write_cells, write_csv)),
    ".json": RowFormat(None, lambda path, rows: f"{write_json(path, rows.records())} objects"),
    ".jsonl": RowFormat(None, lambda path, rows: f"{write_json_lines(path, rows.records())} objects"),
    ".parquet": RowFormat(_read_parquet, _write_parquet, ("pyarrow", "parquet")),
    ".xlsx": RowFormat(_read_xlsx, partial(_write_cells, write_workbook), ("openpyxl", "excel")),
}
