"""Decisions as tables: a row for each, and its reasons in columns."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from rationale.decisions.rows import profile_of
from rationale.schema.manifest import Manifest
from rationale.schema.profile import DecisionProfile
from rationale_service.decisions.rows import Line

_REASON = ("code", "text", "feature", "value", "unit", "category", "attribution", "share")
_NUMBERS = ("score", "threshold", "explained_value", "base_value", "completeness_gap")
Kept = Mapping[str, Sequence[Any]]  # columns of the rows that are written beside their decisions
_GROUP = 10_000  # rows of a parquet file that are written together


def most_reasons(profile: DecisionProfile) -> int:
    """Return how many reasons a decision has at most.

    Those of a score may be followed by one on inquiries; of knock-outs each gives its own.
    """
    of_score = profile.max_reasons + any(text.inquiry for text in profile.reasons.values())
    return max(of_score, len({rule.reason for rule in profile.knock_outs}))


def _reasons(manifest: Manifest) -> range:
    return range(1, most_reasons(profile_of(manifest).profile) + 1)


def own_columns(manifest: Manifest) -> list[str]:
    """Return the names of all columns that a table of decisions may have, whatever its kind."""
    return [*_csv_columns(manifest), *(f"reason_{k}_value_text" for k in _reasons(manifest))]


def _csv_columns(manifest: Manifest) -> list[str]:
    reasons = [f"reason_{k}_{part}" for k in _reasons(manifest) for part in _REASON]
    return ["row", "id", "decision", *_NUMBERS, *reasons, "warnings", "fault"]


def write_csv(path: Path, manifest: Manifest, lines: Iterable[Line], kept: Kept) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*_csv_columns(manifest), *kept], lineterminator="\n")
        writer.writeheader()
        for line in lines:
            decision = line.get("decision")
            cells = {"row": line["row"], "fault": line.get("fault"), **_kept(kept, line)}
            if decision is not None:
                cells |= {name: decision[name] for name in ("id", "decision", *_NUMBERS)}
                for k, reason in enumerate(decision["reasons"], 1):
                    cells |= {f"reason_{k}_{part}": _cell(reason[part]) for part in _REASON}
                cells["warnings"] = "; ".join(decision["warnings"])
            writer.writerow(cells)


def _kept(kept: Kept, line: Line) -> dict[str, Any]:
    return {name: column[line["row"]] for name, column in kept.items()}


def _cell(value: Any) -> Any:
    """Return the values of a group's members, as JSON."""
    return orjson.dumps(value).decode() if isinstance(value, dict) else value


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


# --- columns of Arrow -------------------------------------------------------------------------------------


def schema_of(manifest: Manifest) -> Any:
    """Return the schema of decisions as a table.

    A value that is no number is a text: a category's, or those of a group's members as JSON.
    """
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    reason = {part: number if part in ("value", "attribution", "share") else text for part in _REASON}
    reason = {name: kind for part, kind in reason.items() for name, kind in _with_text(part, kind, text)}
    kinds = {"row": pa.int64(), "id": text, "decision": text, **dict.fromkeys(_NUMBERS, number)}
    kinds |= {f"reason_{k}_{part}": kind for k in _reasons(manifest) for part, kind in reason.items()}
    return pa.schema({**kinds, "warnings": pa.list_(text), "fault": text})


def _with_text(part: str, kind: Any, text: Any) -> list[tuple[str, Any]]:
    return [(part, kind), ("value_text", text)] if part == "value" else [(part, kind)]


def batch_of(manifest: Manifest, lines: Sequence[Line]) -> Any:
    """Return lines, with the number of each one's `row`, as a record batch."""
    import pyarrow as pa

    return pa.RecordBatch.from_pylist([_columns(line) for line in lines], schema=schema_of(manifest))


def _columns(line: Line) -> dict[str, Any]:
    decision = line.get("decision")
    columns = {"row": line["row"], "fault": line.get("fault")}
    if decision is None:
        return columns
    columns |= {name: decision[name] for name in ("id", "decision", *_NUMBERS)}
    columns["warnings"] = decision["warnings"]
    for k, reason in enumerate(decision["reasons"], 1):
        columns |= {f"reason_{k}_{part}": cell for part, cell in _reason(reason).items()}
    return columns


def _reason(reason: Mapping[str, Any]) -> dict[str, Any]:
    cells = {part: _cell(reason[part]) for part in _REASON}
    value = cells["value"]
    if isinstance(value, str):
        return {**cells, "value": None, "value_text": value}
    return {**cells, "value": None if value is None else float(value)}
