"""Files of rows that are written batch by batch: .npz, .csv, .jsonl and .parquet (.xlsx: `workbooks`)."""

import csv
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from rationale.errors import InvalidOptionError

ROW_GROUP = 10_000  # rows of a parquet file that are written together

Item = TypeVar("Item")
WriteTable = Callable[[Path, Sequence[str], Iterable[Iterable[Any]]], int]  # header and rows, one by one
KeptColumns = Mapping[str, Sequence[Any]]  # columns of the rows, written beside their answers


@dataclass(frozen=True)
class RowForms:
    """Rows in the forms that formats take; the format that is written calls one of them.

    Attributes:
        cells: returns the columns' names, and each row's cells.
        records: returns an object for each row.
        arrow: returns a schema, and Arrow tables or record batches of it.
        tensors: returns arrays by name, batch by batch.
    """

    cells: Callable[[], tuple[Sequence[str], Iterable[Iterable[Any]]]]
    records: Callable[[], Iterable[Any]]
    arrow: Callable[[], tuple[Any, Iterable[Any]]]
    tensors: Callable[[], Iterable[Mapping[str, np.ndarray]]] = dict


def check_kept(keep: Collection[str], answer_columns: Collection[str]) -> None:
    """Raise InvalidOptionError if a column to keep has the name of one of the answer's `answer_columns`."""
    if clash := sorted({*answer_columns} & {*keep}):
        raise InvalidOptionError(
            f"the columns {clash} to keep have the same names as columns of the answer: rename them."
        )


def split_batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield items in lists of `size`."""
    iterator = iter(items)
    while group := list(islice(iterator, size)):
        yield group


def write_csv(path: Path, names: Sequence[str], rows: Iterable[Iterable[Any]]) -> int:
    """Write a header and rows; return the number of rows."""
    count = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for row in rows:
            writer.writerow(row)
            count += 1
    return count


def write_json(path: Path, records: Iterable[Any]) -> int:
    """Write a list of objects, one per line; NaN and infinity become null. Return the number of objects."""
    import orjson

    count = 0
    with path.open("wb") as file:
        for record in records:
            file.write(b",\n" if count else b"[\n")
            file.write(orjson.dumps(record, default=str, option=orjson.OPT_SERIALIZE_NUMPY))
            count += 1
        file.write(b"\n]\n")
    return count


def write_json_lines(path: Path, records: Iterable[Any]) -> int:
    """Write an object per line; return the number of objects."""
    import orjson

    with path.open("wb") as file:
        return sum(1 for record in records if file.write(orjson.dumps(record, default=str) + b"\n"))


def write_parquet(path: Path, batches: Iterable[Any], schema: Any) -> int:
    """Write Arrow tables or record batches, a row group for each; return their number of rows."""
    from pyarrow import parquet

    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for batch in batches:
            writer.write(batch)
            count += batch.num_rows
    return count


@dataclass
class _Tensor:
    """The arrays of one tensor, concatenated in a file."""

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


def write_npz(path: Path, batches: Iterable[Mapping[str, np.ndarray]]) -> str:
    """Write tensors, concatenating those of one name; return a sentence about the file.

    Any name is allowed, and nothing is pickled.
    """
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
