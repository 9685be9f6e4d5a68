"""Decisions on many rows, as Arrow record batches in constant memory and as files."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from rationale.artifact.applicants import applicants_of
from rationale.decisions.decide import Decision
from rationale.decisions.decided import decide_inputs, decision_answer
from rationale.decisions.rows import profile_of
from rationale.errors import InvalidOptionError
from rationale.portfolios.arrow import (
    DIGEST,
    ROWS,
    Entry,
    OpenedEntry,
    empty_batch,
    map_in_order,
    row_errors,
    shared_entry,
    split_batches,
    with_kept,
)
from rationale.schema.manifest import Manifest
from rationale.schema.profile import DecisionProfile
from rationale.tables.written import (
    ROW_GROUP,
    KeptColumns,
    batched,
    check_kind,
    write_csv,
    write_json_lines,
    write_parquet,
)

REASON_COLUMNS = ("code", "text", "feature", "value", "unit", "category", "attribution", "share")
_TYPED_COLUMNS = (
    *REASON_COLUMNS[:4],
    "value_text",
    *REASON_COLUMNS[4:],
)  # a value that is no number is a text
_REASON_NUMBERS = ("value", "attribution", "share")
NUMBERS = ("score", "threshold", "explained_value", "base_value", "completeness_gap")
PROFILE = "rationale.profile"  # in the schema's metadata: the digest of the profile that decided
Line = dict[
    str, Any
]  # of a row: its number, the decision as `:decide` answers it, or a fault: why there is none


def decide_batches(
    entry: Entry,
    batches: Iterable[Any],
    *,
    keep: Sequence[str] = (),
    threads: int | None = None,
    numbered: bool = True,
) -> Iterator[Any]:
    """Decide the rows of Arrow record batches, as they come; nothing is recorded.

    The returned batches have the columns of `rationale decide --save FILE.parquet` but for `id`: `row` (its
    number in the stream), `decision`, score, threshold, the reasons, `warnings`, and `fault` (the reason why
    a row has no decision), then the kept columns. `decisions_schema` returns their schema. The model runs
    each row by itself, as `:decide` does.

    Args:
        entry: the folder of an entry (`model_repository/credit`), or the result of `compile_model`.
        batches: see `explain_batches`; they include the columns that knock-outs test.
        keep: columns of the batches to copy into the answer, such as an id.
        threads: number of cores that decide rows; None for all.
        numbered: whether to write `row`; leave it out if the stream is one of many.

    Raises:
        InvalidOptionError, InvalidReferencesError: if the entry has no profile, or cannot take the columns
            or values.
        RepositoryError: if there is no such entry.
    """
    shared = _deciding_entry(entry)
    numbered_batches, count = split_batches(batches, threads, lambda _: ROWS)
    return map_in_order(partial(_decide_batch, shared, tuple(keep), numbered), numbered_batches, count)


def decisions_schema(
    entry: Entry, schema: Any = None, keep: Sequence[str] = (), *, numbered: bool = True
) -> Any:
    """Return the schema of the batches that `decide_batches` yields.

    Args:
        schema: the schema of the input batches, if any of their columns are kept.

    Raises:
        InvalidOptionError: if a kept column is missing, or has the name of an answer's column.
    """
    return _table(
        _deciding_entry(entry).compiled.manifest, [], empty_batch(schema), keep, numbered=numbered
    ).schema


def _deciding_entry(entry: Entry) -> OpenedEntry:
    opened = shared_entry(entry)
    if opened.compiled.manifest.decision is None:
        raise InvalidOptionError(
            "the entry has no decision profile: compile it with decision=… (--decision decision.yaml)."
        )
    return opened


def _decide_batch(
    entry: OpenedEntry, keep: Sequence[str], numbered: bool, numbered_batch: tuple[int, Any]
) -> Any:
    first, batch = numbered_batch
    manifest, lines = entry.compiled.manifest, list[Line]()
    with row_errors(first, batch):
        inputs, knock_out_cells = applicants_of(entry.compiled, batch)
        for row, decision in enumerate(decide_inputs(manifest, entry.run, inputs, knock_out_cells), first):
            if isinstance(decision, Decision):
                lines.append({"row": row, "decision": decision_answer(manifest, decision)})
            else:
                lines.append({"row": row, **decision.as_json()})
        return _table(manifest, lines, batch, keep, numbered=numbered)


def _table(
    manifest: Manifest, lines: Sequence[Line], batch: Any, keep: Sequence[str], *, numbered: bool
) -> Any:
    """Return lines, and kept columns of the batch that they are about, as a record batch."""
    omitted = ["id"] if numbered else ["id", "row"]
    answer = with_kept(decision_batch(manifest, lines).drop_columns(omitted), batch, keep)
    digests = {DIGEST: manifest.digests.explanation, PROFILE: profile_of(manifest).digest}
    return answer.replace_schema_metadata(digests)


# --- columns ----------------------------------------------------------------------------------------------


def most_reasons(profile: DecisionProfile) -> int:
    """Return how many reasons a decision has at most.

    Those of a score may be followed by one on inquiries; of knock-outs each gives its own.
    """
    of_score = profile.max_reasons + any(text.inquiry for text in profile.reasons.values())
    return max(of_score, len({rule.reason for rule in profile.knock_outs}))


def reason_numbers(manifest: Manifest) -> range:
    """Return the numbers of the reasons that a decision may have, from 1 on."""
    return range(1, most_reasons(profile_of(manifest).profile) + 1)


def decision_schema(manifest: Manifest) -> Any:
    """Return the schema of decisions as a table.

    A value that is no number is a text: a category's, or those of a group's members as JSON.
    """
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    reason = {name: number if name in _REASON_NUMBERS else text for name in _TYPED_COLUMNS}
    kinds = {"row": pa.int64(), "id": text, "decision": text, **dict.fromkeys(NUMBERS, number)}
    kinds |= {f"reason_{k}_{name}": kind for k in reason_numbers(manifest) for name, kind in reason.items()}
    return pa.schema({**kinds, "warnings": pa.list_(text), "fault": text})


def decision_batch(manifest: Manifest, lines: Sequence[Line]) -> Any:
    """Return lines, with the number of each one's `row`, as a record batch."""
    import pyarrow as pa

    rows = [_columns(line, _typed_reason) for line in lines]
    return pa.RecordBatch.from_pylist(rows, schema=decision_schema(manifest))


def _columns(line: Line, reason_cells: Callable[[Mapping[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    decision = line.get("decision")
    columns = {"row": line["row"], "fault": line.get("fault")}
    if decision is None:
        return columns
    columns |= {name: decision.get(name) for name in ("id", "decision", *NUMBERS)}
    columns["warnings"] = decision["warnings"]
    for k, reason in enumerate(decision["reasons"], 1):
        columns |= {f"reason_{k}_{name}": cell for name, cell in reason_cells(reason).items()}
    return columns


def _plain_reason(reason: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reason's cells; the values of a group's members are JSON."""
    cells = {name: reason[name] for name in REASON_COLUMNS}
    return {p: orjson.dumps(c).decode() if isinstance(c, dict) else c for p, c in cells.items()}


def _typed_reason(reason: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same; a value that is no number is a text."""
    cells = _plain_reason(reason)
    value = cells["value"]
    if isinstance(value, str):
        return {**cells, "value": None, "value_text": value}
    return {**cells, "value": None if value is None else float(value)}


# --- files ------------------------------------------------------------------------------------------------


def check_decisions(save: Path) -> None:
    """Raise InvalidOptionError if the file's ending is unknown or needs a package that is not installed."""
    check_kind(save, _WRITERS)


def write_decisions(path: Path, manifest: Manifest, lines: Iterable[Line], kept_columns: KeptColumns) -> None:
    """Write lines, and kept columns beside them: a row for each, or as .jsonl whole answers."""
    _WRITERS[path.suffix.lower()](path, manifest, lines, kept_columns)


def decision_columns(manifest: Manifest) -> list[str]:
    """Return the names of all columns that a file of decisions of any kind may have."""
    return [*_csv_columns(manifest), *(f"reason_{k}_value_text" for k in reason_numbers(manifest))]


def _csv_columns(manifest: Manifest) -> list[str]:
    reasons = [f"reason_{k}_{name}" for k in reason_numbers(manifest) for name in REASON_COLUMNS]
    return ["row", "id", "decision", *NUMBERS, *reasons, "warnings", "fault"]


def _write_csv(path: Path, manifest: Manifest, lines: Iterable[Line], kept_columns: KeptColumns) -> None:
    names = [*_csv_columns(manifest), *kept_columns]
    rows = ({**_columns(line, _plain_reason), **_kept_cells(kept_columns, line)} for line in lines)
    texts = ({**row, "warnings": "; ".join(row.get("warnings", ()))} for row in rows)
    write_csv(path, names, ([row.get(name) for name in names] for row in texts))


def _write_jsonl(path: Path, _: Manifest, lines: Iterable[Line], kept_columns: KeptColumns) -> None:
    write_json_lines(
        path, ({**line, "kept": _kept_cells(kept_columns, line)} if kept_columns else line for line in lines)
    )


def _write_parquet(path: Path, manifest: Manifest, lines: Iterable[Line], kept_columns: KeptColumns) -> None:
    import pyarrow as pa

    columns = pa.record_batch([pa.array(column) for column in kept_columns.values()], list(kept_columns))

    def table_of(group: list[Line]) -> Any:
        rows = columns.take(pa.array([line["row"] for line in group], pa.int64()))
        return with_kept(decision_batch(manifest, group), rows, list(kept_columns))

    write_parquet(path, map(table_of, batched(lines, ROW_GROUP)), table_of([]).schema)


def _kept_cells(kept_columns: KeptColumns, line: Line) -> dict[str, Any]:
    return {name: column[line["row"]] for name, column in kept_columns.items()}


_WRITERS: dict[str, Callable[[Path, Manifest, Iterable[Line], KeptColumns], None]] = {
    ".csv": _write_csv,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}
