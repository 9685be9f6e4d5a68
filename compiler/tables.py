"""Files of rows: .npz, .npy, .csv and .parquet, read with distrust."""

import csv
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compiler.errors import InvalidReferencesError

Columns = Sequence[str] | None

_DAMAGE = (  # what numpy, zipfile, csv and pyarrow raise for files of other kinds
    ValueError,
    TypeError,
    KeyError,
    EOFError,
    SyntaxError,
    MemoryError,
    OverflowError,
    NotImplementedError,
    csv.Error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class Table:
    """Rows read from a file: one array per input (None: the only one), and the names of its columns."""

    arrays: dict[str | None, np.ndarray]
    columns: tuple[str, ...] | None = None


def read_rows(path: Path, columns: Columns = None) -> Table:
    """Reads .npz, .npy, .csv or .parquet: references, or rows to explain.

    Args:
        columns: which columns of a table to take, in that order; None takes all. A file without column
            names is taken as it stands.

    Raises:
        InvalidReferencesError: the file cannot be read, or holds something that is no number.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InvalidReferencesError(f"{path}: unknown kind of file; use {', '.join(_READERS)}.")
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        return reader(path, columns)
    except OSError as error:
        raise InvalidReferencesError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except _DAMAGE as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise InvalidReferencesError(
            f"{path}: damaged, or not what its name says: {reason}. Write or copy it again."
        ) from error


def _read_npz(path: Path, _: Columns) -> Table:
    with path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("a single array with the name of an archive")
        if archive.files == ["arr_0"]:  # what numpy.savez(file, array) makes of an array without a name
            return Table({None: archive["arr_0"]})
        return Table({name: archive[name] for name in archive.files})


def _read_npy(path: Path, _: Columns) -> Table:
    with path.open("rb") as file:
        array = np.load(file, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("an archive with the name of a single array")
    return Table({None: array})


def _read_csv(path: Path, columns: Columns) -> Table:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        rows = [(reader.line_num, row) for row in reader if row]
    if not rows:
        raise InvalidReferencesError(f"{path}: empty: at least one row is needed.")
    first = rows[0][1]
    header = None if _are_numbers(first) else tuple(cell.strip() for cell in first)
    index = _choose(path, header, columns)
    names = header or tuple(str(i) for i in range(len(first)))
    body = []
    for line, row in rows if header is None else rows[1:]:
        if len(row) != len(first):
            raise InvalidReferencesError(
                f"{path}: line {line} has {len(row)} cells where {len(first)} are due. Repair it, or "
                "write the file again."
            )
        body.append([_number(path, line, names[i], row[i]) for i in index or range(len(first))])
    array = np.asarray(body, np.float64).reshape(len(body), len(index or first))
    return Table({None: array}, tuple(columns) if index and columns else header)


def _are_numbers(cells: Sequence[str]) -> bool:
    try:
        return all(isinstance(float(cell), float) for cell in cells)
    except ValueError:
        return False


def _number(path: Path, line: int, column: str, cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        split = next((s for s in (";", "\t", "|") if s in cell), None)
        if split is not None:
            raise InvalidReferencesError(
                f"{path}: line {line} is divided by {split!r}: write the file with commas "
                "(and decimal points)."
            ) from None
        what = f"{cell!r} is no number" if cell.strip() else "the cell is empty"
        raise InvalidReferencesError(
            f"{path}: line {line}, column {column!r}: {what}. Encode, impute or drop it, or choose "
            "other columns with --features."
        ) from None


def _choose(path: Path, header: tuple[str, ...] | None, columns: Columns) -> list[int] | None:
    """Indices of the wanted columns; None for all, which is also what a file without names gives."""
    if header is None or columns is None:
        return None
    missing = [c for c in columns if c not in header]
    if missing:
        raise InvalidReferencesError(f"{path}: no column {missing}; it has {list(header)}.")
    twice = [c for c in columns if header.count(c) > 1]
    if twice:
        raise InvalidReferencesError(f"{path}: more than one column is named {twice}: rename them.")
    return [header.index(c) for c in columns]


def _read_parquet(path: Path, columns: Columns) -> Table:
    try:
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise InvalidReferencesError(
            "parquet files need pyarrow: pip install 'rationale[parquet]', or use .csv or .npz."
        ) from error
    with path.open("rb") as file:
        table = parquet.ParquetFile(file).read()
    header = tuple(table.column_names)
    index = _choose(path, header, columns)
    chosen = [_column(path, header[i], table.column(i)) for i in index or range(len(header))]
    array = np.stack(chosen, axis=1) if chosen else np.zeros((table.num_rows, 0))
    return Table({None: array}, tuple(header[i] for i in index or range(len(header))))


def _column(path: Path, name: str, column: Any) -> np.ndarray:
    """A column as float64; nulls are NaN, and refused where the rows are checked."""
    array = column.to_numpy()
    if array.dtype.kind in "fiub":
        return np.asarray(array, np.float64)
    if column.null_count and all(v is None or isinstance(v, bool | int | float) for v in array):
        return np.asarray([np.nan if v is None else v for v in array], np.float64)
    raise InvalidReferencesError(
        f"{path}: column {name!r} holds {column.type}, not numbers. Encode or drop it, or choose other "
        "columns with --features."
    )


_READERS: dict[str, Callable[[Path, Columns], Table]] = {
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
