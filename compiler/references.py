"""Reference sets: read, checked against the model, equal rows merged with weights."""

import csv
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from compiler.errors import InvalidReferencesError


@dataclass(frozen=True)
class ReferenceSet:
    """K reference rows for each explained input.

    Attributes:
        arrays: [K, *shape of the input], by input name.
        weights: K weights that sum to 1; None where all are equal.
        given: how many rows there were before equal ones were merged.
    """

    arrays: dict[str, np.ndarray]
    weights: np.ndarray | None
    given: int
    digest: str

    @property
    def count(self) -> int:
        return len(next(iter(self.arrays.values())))


@dataclass(frozen=True)
class Table:
    """Rows read from a file: one array per input (None: the only one), and the names of its columns."""

    arrays: dict[str | None, np.ndarray]
    columns: tuple[str, ...] | None = None


def prepare(
    given: npt.ArrayLike | Mapping[str, npt.ArrayLike],
    weights: npt.ArrayLike | None,
    inputs: Mapping[str, tuple[tuple[int, ...], np.dtype]],
) -> ReferenceSet:
    """Checks references against the explained inputs (row shape [1, …] and dtype by name).

    Raises:
        InvalidReferencesError: names, shape, dtype, NaN or infinity, no rows, or weights that do not fit.
    """
    arrays = _by_name(given, list(inputs))
    checked = {name: _check(name, arrays[name], *inputs[name]) for name in inputs}
    counts = {len(a) for a in checked.values()}
    if len(counts) > 1:
        sizes = ", ".join(f"{name}: {len(a)}" for name, a in checked.items())
        raise InvalidReferencesError(f"every input needs the same number of references ({sizes}).")
    w = _check_weights(weights, counts.pop())
    digest = hashlib.sha256()
    for name, array in checked.items():
        digest.update(f"{name}{array.dtype}{array.shape}".encode() + array.tobytes())
    digest.update(b"" if w is None else w.tobytes())
    merged, merged_weights, given_count = _merge(checked, w)
    return ReferenceSet(merged, merged_weights, given_count, digest.hexdigest())


def _by_name(
    given: npt.ArrayLike | Mapping[str, npt.ArrayLike], names: list[str]
) -> dict[str, npt.ArrayLike]:
    if not isinstance(given, Mapping):
        if len(names) != 1:
            raise InvalidReferencesError(
                f"{len(names)} inputs are explained ({', '.join(names)}): give a mapping from name to array, "
                "or a .npz file with an array for each."
            )
        return {names[0]: given}
    if set(given) != set(names):
        raise InvalidReferencesError(
            f"references are given for {sorted(given)}, but the explained inputs are {sorted(names)}."
        )
    return dict(given)


def _check(name: str, given: npt.ArrayLike, row: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    array = np.asarray(given)
    if array.dtype.kind not in "fiub":
        raise InvalidReferencesError(
            f"references of {name!r} hold {array.dtype}, not numbers. The model takes {dtype}."
        )
    if array.ndim != len(row) or array.shape[1:] != row[1:]:
        want = "[K" + "".join(f", {n}" for n in row[1:]) + "]"
        raise InvalidReferencesError(
            f"references of {name!r} have shape {list(array.shape)}; the model needs {want}."
        )
    if len(array) == 0:
        raise InvalidReferencesError(f"references of {name!r} are empty: at least one row is needed.")
    with np.errstate(over="ignore"):
        cast = np.ascontiguousarray(array, dtype)
    if not np.isfinite(cast).all():
        place = [int(i) for i in np.argwhere(~np.isfinite(cast))[0]]
        raise InvalidReferencesError(
            f"references of {name!r} hold {array[tuple(place)]} at {place}. Impute or drop such rows."
        )
    return cast


def _check_weights(weights: npt.ArrayLike | None, count: int) -> np.ndarray | None:
    if weights is None:
        return None
    w = np.asarray(weights, np.float64)
    if w.shape != (count,):
        raise InvalidReferencesError(
            f"weights have shape {list(w.shape)}; {count} references need [{count}]."
        )
    if not np.isfinite(w).all() or (w < 0).any() or w.sum() <= 0:
        raise InvalidReferencesError("weights must be finite, not negative, and not all zero.")
    return w / w.sum()


def _merge(
    arrays: dict[str, np.ndarray], weights: np.ndarray | None
) -> tuple[dict[str, np.ndarray], np.ndarray | None, int]:
    """Equal references are one with their weights added: exact, and cheaper."""
    count = len(next(iter(arrays.values())))
    rows = np.concatenate(
        [np.ascontiguousarray(a).reshape(count, -1).view(np.uint8) for a in arrays.values()], 1
    )
    keys = [row.tobytes() for row in rows]
    first = {key: i for i, key in reversed(list(enumerate(keys)))}
    order = sorted(first.values())
    if len(order) == count:
        return arrays, weights, count
    place = {keys[i]: j for j, i in enumerate(order)}
    total = np.zeros(len(order))
    for i, key in enumerate(keys):
        total[place[key]] += 1 / count if weights is None else weights[i]
    merged = {name: a[order] for name, a in arrays.items()}
    return merged, None if np.allclose(total, total[0], rtol=1e-12) else total, count


def sample_rows(model: onnx.ModelProto, references: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One row for each input that is nobody's: the mean of the references, zeros elsewhere."""
    rows = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        known = references.get(value.name)
        shape = (1, *(d.dim_value or 1 for d in tensor.shape.dim[1:]))
        row = np.zeros(shape) if known is None else known.mean(axis=0, dtype=np.float64, keepdims=True)
        rows[value.name] = row.astype(dtype)
    return rows


def read_rows(path: Path, columns: Sequence[str] | None = None) -> Table:
    """Reads .npz, .npy, .csv or .parquet: references, or rows to explain.

    Args:
        columns: which columns of a table to take, in that order; None takes all.

    Raises:
        InvalidReferencesError: the file cannot be read, or holds something that is no number.
    """
    readers = {".npz": _read_npz, ".npy": _read_npy, ".csv": _read_csv, ".parquet": _read_parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InvalidReferencesError(f"{path}: unknown kind of file; use {', '.join(readers)}.")
    try:
        table = reader(path)
    except OSError as error:
        raise InvalidReferencesError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise InvalidReferencesError(f"{path}: damaged, or not what its name says: {error}") from error
    return table if columns is None else _choose(path, table, columns)


def _choose(path: Path, table: Table, columns: Sequence[str]) -> Table:
    if table.columns is None:
        return table  # the names are for its columns as they stand
    missing = [c for c in columns if c not in table.columns]
    if missing:
        raise InvalidReferencesError(f"{path}: no column {missing}; it has {list(table.columns)}.")
    index = [table.columns.index(c) for c in columns]
    return Table({None: table.arrays[None][:, index]}, tuple(columns))


def _read_npz(path: Path) -> Table:
    with np.load(path, allow_pickle=False) as archive:
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("a single array with the name of an archive")
        return Table({name: archive[name] for name in archive.files})


def _read_npy(path: Path) -> Table:
    array = np.load(path, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("an archive with the name of a single array")
    return Table({None: array})


def _read_csv(path: Path) -> Table:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if row]
    if not rows:
        raise ValueError("no rows")
    header = None if _is_number(rows[0]) else tuple(cell.strip() for cell in rows[0])
    body = rows if header is None else rows[1:]
    width = len(rows[0])
    for line, row in enumerate(body, start=1 if header is None else 2):
        if len(row) != width:
            raise ValueError(f"line {line} has {len(row)} cells where {width} are due")
        if not _is_number(row):
            cell = next(c for c in row if not _is_number([c]))
            raise ValueError(f"line {line}: {cell!r} is no number")
    return Table({None: np.asarray(body, np.float64).reshape(len(body), width)}, header)


def _is_number(cells: Sequence[str]) -> bool:
    try:
        [float(cell) for cell in cells]
    except ValueError:
        return False
    return True


def _read_parquet(path: Path) -> Table:
    try:
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise InvalidReferencesError(
            "parquet files need pyarrow: pip install 'rationale[parquet]', or use .csv or .npz."
        ) from error
    table = parquet.read_table(path)
    columns = [np.asarray(column.to_numpy(), np.float64) for column in table.columns]
    return Table({None: np.stack(columns, axis=1)}, tuple(table.column_names))
