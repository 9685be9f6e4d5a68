"""Decisions as tables: a row for each, and its reasons in columns."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from rationale.portfolios.decisions import (
    NUMBERS,
    REASON_PARTS,
    Line,
    batch_of,
    cell_of,
    reason_numbers,
    schema_of,
)
from rationale.schema.manifest import Manifest

Kept = Mapping[str, Sequence[Any]]  # columns of the rows that are written beside their decisions
_GROUP = 10_000  # rows of a parquet file that are written together


def own_columns(manifest: Manifest) -> list[str]:
    """Return the names of all columns that a table of decisions may have, whatever its kind."""
    return [*_csv_columns(manifest), *(f"reason_{k}_value_text" for k in reason_numbers(manifest))]


def _csv_columns(manifest: Manifest) -> list[str]:
    reasons = [f"reason_{k}_{part}" for k in reason_numbers(manifest) for part in REASON_PARTS]
    return ["row", "id", "decision", *NUMBERS, *reasons, "warnings", "fault"]


def write_csv(path: Path, manifest: Manifest, lines: Iterable[Line], kept: Kept) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*_csv_columns(manifest), *kept], lineterminator="\n")
        writer.writeheader()
        for line in lines:
            decision = line.get("decision")
            cells = {"row": line["row"], "fault": line.get("fault"), **_kept(kept, line)}
            if decision is not None:
                cells |= {name: decision[name] for name in ("id", "decision", *NUMBERS)}
                for k, reason in enumerate(decision["reasons"], 1):
                    cells |= {f"reason_{k}_{part}": cell_of(reason[part]) for part in REASON_PARTS}
                cells["warnings"] = "; ".join(decision["warnings"])
            writer.writerow(cells)


def _kept(kept: Kept, line: Line) -> dict[str, Any]:
    return {name: column[line["row"]] for name, column in kept.items()}


def write_jsonl(path: Path, _: Manifest, lines: Iterable[Line], kept: Kept) -> None:
    with path.open("wb") as file:
        for line in lines:
            whole = {**line, "kept": _kept(kept, line)} if kept else line
            file.write(orjson.dumps(whole, default=str) + b"\n")


def write_parquet(path: Path, manifest: Manifest, lines: Iterable[Line], kept: Kept) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    columns, schema = {name: pa.array(column) for name, column in kept.items()}, schema_of(manifest)
    for name, column in columns.items():
        schema = schema.append(pa.field(name, column.type))
    with parquet.ParquetWriter(path, schema) as writer:
        for group in _groups(lines):
            batch, rows = batch_of(manifest, group), [line["row"] for line in group]
            for name, column in columns.items():
                batch = batch.append_column(schema.field(name), column.take(pa.array(rows)))
            writer.write_batch(batch)


def _groups(lines: Iterable[Line]) -> Iterator[list[Line]]:
    left = iter(lines)
    while group := list(islice(left, _GROUP)):
        yield group


WRITERS: dict[str, Callable[[Path, Manifest, Iterable[Line], Kept], None]] = {
    ".csv": write_csv,
    ".jsonl": write_jsonl,
    ".parquet": write_parquet,
}
