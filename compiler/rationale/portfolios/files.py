"""Explanations of many rows as a file: .npz, .csv, .json or .parquet, written batch by batch.

A batch has N rows with T targets each.
"""

import csv
import importlib.util
import math
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from rationale.artifact.compiled import Explanation
from rationale.artifact.folder import whole
from rationale.distribution import install
from rationale.errors import InvalidOptionError
from rationale.pictures.panels import targets_of
from rationale.schema.outputs import OUTPUT_KINDS

MOST_COLUMNS = 16_384  # what spreadsheets read
ROW_GROUP = 10_000  # rows of a parquet file that are written together

Columns = dict[str, np.ndarray]
Kept = Mapping[str, Sequence[Any]]


def check_kind(path: Path, keep: Collection[str] = ()) -> None:
    """Raise InvalidOptionError for a name with an unknown ending, or one that needs what is not installed.

    Args:
        keep: columns to write beside the explanations, which a .npz has no place for.
    """
    if keep and path.suffix.lower() == ".npz":
        raise InvalidOptionError(f"{path}: has no columns to keep: save .csv, .json or .parquet.")
    if path.suffix.lower() not in _WRITERS:
        raise InvalidOptionError(
            f"{path}: cannot be written: its name must end in {', '.join(_WRITERS)}, or .svg, a picture."
        )
    if path.suffix.lower() == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise InvalidOptionError(
            f"{path}: parquet files need pyarrow: {install('parquet')}, or save .csv or .npz."
        )


def write_explanations(path: Path, batches: Iterable[Explanation], kept: Kept | None = None) -> str:
    """Write them, whole or not at all; return what was written, in words.

    A .npz holds every tensor of the answers; the others have a row for each row of the input and target.

    Args:
        kept: columns to write beside them, a cell for each row of the input.

    Raises:
        InvalidOptionError: the file cannot be written, or cannot hold the features or the kept columns.
    """
    check_kind(path, kept or ())
    with whole(path) as part:
        return _WRITERS[path.suffix.lower()](part, batches, kept or {})


# -- every tensor --------------------------------------------------------------------------------------


@dataclass
class _Tensor:
    """The arrays of one tensor, one behind the other in a file."""

    aside: Path
    dtype: np.dtype
    shapes: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, array: np.ndarray) -> None:
        with self.aside.open("ab") as file:
            np.save(file, array, allow_pickle=False)
        self.dtype = np.result_type(self.dtype, array.dtype)  # of texts, the longest
        self.shapes.append(array.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return sum(rows for rows, *_ in self.shapes), *self.shapes[0][1:]

    def write(self, member: IO[bytes]) -> None:
        """Write as one .npy."""
        head = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(member, {**head, "shape": self.shape})
        with self.aside.open("rb") as file:
            for _ in self.shapes:
                member.write(np.load(file).astype(self.dtype).tobytes())


def _write_npz(path: Path, batches: Iterable[Explanation], _: Kept) -> str:
    """Write tensors: any name is fine, and none is pickled."""
    tensors: dict[str, _Tensor] = {}
    for answer in batches:
        for name, array in answer.items():
            a = array.astype(str) if array.dtype.kind == "O" else array
            aside = path.with_name(f"{len(tensors)}.npy")
            tensors.setdefault(name, _Tensor(aside, a.dtype)).add(a)
    with zipfile.ZipFile(path, "w") as archive:
        for name, tensor in tensors.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                tensor.write(member)
    return ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())


# -- a row for each row and target ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    """Columns [N·T]: facts about a row and target, numbers by kind of output and feature, kept ones."""

    facts: Columns
    by_feature: dict[str, Columns]
    kept: Columns = field(default_factory=dict)

    @property
    def columns(self) -> Columns:
        return {
            **self.facts,
            **{
                f"{feature}{OUTPUT_KINDS[kind].suffix}": column
                for kind, columns in self.by_feature.items()
                for feature, column in columns.items()
            },
            **self.kept,
        }


def _tables(batches: Iterable[Explanation], kept: Kept) -> Iterator[_Rows]:
    first, cells = 0, {name: np.asarray(column, object) for name, column in kept.items()}
    for answer in batches:
        rows = _rows_of(answer, first)
        check_kept(kept, rows.columns)
        yield replace(rows, kept={name: column[rows.facts["row"]] for name, column in cells.items()})
        first += len(answer[answer.manifest.explained_value])


def check_kept(keep: Collection[str], own: Collection[str]) -> None:
    """Raise InvalidOptionError if a column to keep has the name of one of the answer's `own`."""
    if clash := sorted({*own} & {*keep}):
        raise InvalidOptionError(f"columns {clash} to keep are named as the answer's own: rename them.")


def columns_of_answer(answer: Explanation, first: int) -> Columns:
    """Return an answer as columns [N·T]: `row` (counted from `first`), `target`, values, attributions.

    Raises:
        InvalidOptionError: too many features for columns, or names that are taken.
    """
    return _rows_of(answer, first).columns


def _rows_of(answer: Explanation, first: int) -> _Rows:
    manifest = answer.manifest
    n, t = answer[manifest.explained_value].shape
    facts = {"row": np.repeat(np.arange(first, first + n), t), "target": targets_of(answer).reshape(-1)}
    for kind, name in manifest.values.items():
        if OUTPUT_KINDS[kind].in_tables:
            facts[kind] = answer[name].reshape(-1)
    by_feature: dict[str, Columns] = {}
    for explained in manifest.attributed:
        width = math.prod(answer[explained.attributions].shape[2:])
        names = explained.names(width)
        if len(names) > MOST_COLUMNS:
            raise InvalidOptionError(
                f"{explained.tensor.name!r} has {len(names)} features, too many for columns of a table: save "
                ".npz instead."
            )
        for kind, name in explained.outputs.items():
            values = answer[name].reshape(n * t, width).T
            by_feature.setdefault(kind, {}).update(zip(names, values, strict=True))
    clash = sorted(facts.keys() & by_feature["attributions"].keys())
    if clash:
        raise InvalidOptionError(
            f"features are named {clash}, as columns of the file's own: save .npz instead."
        )
    return _Rows(facts, by_feature)


def _write_csv(path: Path, batches: Iterable[Explanation], kept: Kept) -> str:
    rows, names = 0, list[str]()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        for table in _tables(batches, kept):
            if not names:
                names = list(table.columns)
                writer.writerow(names)
            writer.writerows(zip(*table.columns.values(), strict=True))
            rows += len(table.facts["row"])
    return f"{rows} rows of {len(names)} columns"


def _write_json(path: Path, batches: Iterable[Explanation], kept: Kept) -> str:
    """Write a list of objects, one in a line; what is no number is null."""
    import orjson

    rows = 0
    with path.open("wb") as file:
        for table in _tables(batches, kept):
            for i in range(len(table.facts["row"])):
                record = {name: column[i] for name, column in table.facts.items()}
                for kind, columns in table.by_feature.items():
                    member = OUTPUT_KINDS[kind].member
                    record[member] = {name: column[i] for name, column in columns.items()}
                if table.kept:
                    record["kept"] = {name: column[i] for name, column in table.kept.items()}
                file.write(b",\n" if rows else b"[\n")
                file.write(orjson.dumps(record, default=str, option=orjson.OPT_SERIALIZE_NUMPY))
                rows += 1
        file.write(b"\n]\n")
    return f"{rows} objects"


def _write_parquet(path: Path, batches: Iterable[Explanation], kept: Kept) -> str:
    import pyarrow as pa
    from pyarrow import parquet

    rows, writer, table = 0, None, None
    with ExitStack() as stack:
        kinds = {name: pa.array(column).type for name, column in kept.items()}
        for columns in _groups(batches, kept):
            typed = {name: pa.array(columns[name], kind, from_pandas=True) for name, kind in kinds.items()}
            table = pa.table({**columns, **typed})
            writer = writer or stack.enter_context(parquet.ParquetWriter(path, table.schema))
            writer.write_table(table)
            rows += table.num_rows
    return f"{rows} rows of {0 if table is None else table.num_columns} columns"


def _groups(batches: Iterable[Explanation], kept: Kept) -> Iterator[Columns]:
    """Return the columns of several batches together."""
    waiting: list[Columns] = []
    for table in _tables(batches, kept):
        waiting.append(table.columns)
        if sum(len(columns["row"]) for columns in waiting) >= ROW_GROUP:
            yield {name: np.concatenate([c[name] for c in waiting]) for name in waiting[0]}
            waiting = []
    if waiting:
        yield {name: np.concatenate([c[name] for c in waiting]) for name in waiting[0]}


_WRITERS: dict[str, Callable[[Path, Iterable[Explanation], Kept], str]] = {
    ".npz": _write_npz,
    ".csv": _write_csv,
    ".json": _write_json,
    ".parquet": _write_parquet,
}
