"""Explanations of many rows as a file: .npz, .csv, .json, .parquet or .xlsx, written batch by batch.

A batch has N rows with T targets each.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rationale.artifact.columns import AnswerColumns, Columns, answer_columns
from rationale.artifact.compiled import Explanation
from rationale.artifact.repository.folder import atomic_file
from rationale.errors import InvalidOptionError
from rationale.schema.outputs import OUTPUT_KINDS
from rationale.tables.files import check_format, write_rows
from rationale.tables.written import ROW_GROUP, KeptColumns, RowForms, check_kept

_FORMATS = (".npz", ".csv", ".json", ".parquet", ".xlsx")
Table = TypeVar("Table")


def check_explanations(path: Path, keep: Collection[str] = ()) -> None:
    """Raise InvalidOptionError if the file's ending is unknown or needs a package that is not installed.

    Args:
        keep: columns to write beside the explanations; a .npz cannot hold them.
    """
    if keep and path.suffix.lower() == ".npz":
        raise InvalidOptionError(
            f"{path}: this format cannot keep columns: save .csv, .json, .parquet or .xlsx."
        )
    check_format(path, _FORMATS, ", or .svg, a picture")


def write_explanations(
    path: Path, batches: Iterable[Explanation], kept_columns: KeptColumns | None = None
) -> str:
    """Write explanations, all or none; return a sentence about the file.

    A .npz holds every tensor of the answers; other files have a row for each row of the input and target.

    Args:
        kept_columns: columns to write beside them, a cell for each row of the input.

    Raises:
        InvalidOptionError: if the file cannot be written, or cannot hold the features or the kept columns.
    """
    check_explanations(path, kept_columns or ())
    with atomic_file(path) as partial_file:
        return write_rows(partial_file, _forms(batches, kept_columns or {}))


# -- a row for each row and target ---------------------------------------------------------------------


def _numbered_tables(batches: Iterable[Explanation], kept_columns: KeptColumns) -> Iterator[AnswerColumns]:
    first, cells = 0, {name: np.asarray(column, object) for name, column in kept_columns.items()}
    for answer in batches:
        rows = answer_columns(answer, first)
        check_kept(kept_columns, rows.columns)
        yield replace(rows, kept={name: column[rows.facts["row"]] for name, column in cells.items()})
        first += len(answer[answer.manifest.explained_value])


def _with_first(tables: Iterable[Table]) -> tuple[Table, Iterator[Table]]:
    """Return the first table, and all of them."""
    remaining = iter(tables)
    first = next(remaining)
    return first, chain([first], remaining)


def _forms(batches: Iterable[Explanation], kept_columns: KeptColumns) -> RowForms:
    def cells() -> tuple[list[str], Iterator[tuple[Any, ...]]]:
        first, tables = _with_first(table.columns for table in _numbered_tables(batches, kept_columns))
        return list(first), (row for table in tables for row in zip(*table.values(), strict=True))

    def arrow() -> tuple[Any, Iterator[Any]]:
        import pyarrow as pa

        kinds = {name: pa.array(column).type for name, column in kept_columns.items()}

        def table_of(columns: Columns) -> Any:
            typed = {name: pa.array(columns[name], kind, from_pandas=True) for name, kind in kinds.items()}
            return pa.table({**columns, **typed})

        first, tables = _with_first(map(table_of, _batched_columns(batches, kept_columns)))
        return first.schema, tables

    return RowForms(cells, lambda: _records(_numbered_tables(batches, kept_columns)), arrow, lambda: batches)


def _records(tables: Iterable[AnswerColumns]) -> Iterator[dict[str, Any]]:
    for table in tables:
        for i in range(len(table.facts["row"])):
            record = {name: column[i] for name, column in table.facts.items()}
            for kind, columns in table.by_feature.items():
                member = OUTPUT_KINDS[kind].member
                record[member] = {name: column[i] for name, column in columns.items()}
            if table.kept:
                record["kept"] = {name: column[i] for name, column in table.kept.items()}
            yield record


def _batched_columns(batches: Iterable[Explanation], kept_columns: KeptColumns) -> Iterator[Columns]:
    """Yield the columns of several batches together."""
    waiting: list[Columns] = []
    for table in _numbered_tables(batches, kept_columns):
        waiting.append(table.columns)
        if sum(len(columns["row"]) for columns in waiting) >= ROW_GROUP:
            yield _concatenate(waiting)
            waiting = []
    if waiting:
        yield _concatenate(waiting)


def _concatenate(parts: list[Columns]) -> Columns:
    return {name: np.concatenate([columns[name] for columns in parts]) for name in parts[0]}
