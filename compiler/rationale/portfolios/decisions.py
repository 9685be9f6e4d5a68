"""Decisions on many rows, as Arrow record batches in constant memory and as files."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    count_threads,
    empty_batch,
    map_in_order,
    numbered_batches,
    record_batches,
    row_errors,
    shared_entry,
    with_kept,
)
from rationale.schema.manifest import Manifest
from rationale.schema.profile import DecisionProfile
from rationale.tables.files import check_format, write_rows
from rationale.tables.written import ROW_GROUP, KeptColumns, RowForms, split_batches

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


@dataclass(frozen=True)
class FurtherColumn:
    """A column of decisions for a caller who asks for it.

    Attributes:
        cell: a function from a decision, as `:decide` answers it, to the column's cell.
    """

    name: str
    is_number: bool
    cell: Callable[[Mapping[str, Any]], Any]


Further = Sequence[FurtherColumn]


def recourse_columns(manifest: Manifest) -> Further:
    """Return the columns of recourse; raise InvalidOptionError if no decision of the entry has a plan."""
    if not profile_of(manifest).profile.actionable:
        raise InvalidOptionError(
            f"recourse: the decision profile of '{manifest.model}' does not say what an applicant can "
            "change: give actionable"
        )
    return RECOURSE_COLUMNS


def _of_plan(member: str) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that returns a member of a decision's cheapest plan; None if it has no plan."""

    def cell(decision: Mapping[str, Any]) -> Any:
        plans = (decision.get("recourse") or {}).get("plans")
        return plans[0][member] if plans else None

    return cell


def _as_json(cell: Callable[[Mapping[str, Any]], Any]) -> Callable[[Mapping[str, Any]], str | None]:
    return lambda decision: None if (value := cell(decision)) is None else orjson.dumps(value).decode()


RECOURSE_COLUMNS = (
    FurtherColumn("recourse_changes", False, _as_json(_of_plan("changes"))),
    FurtherColumn("recourse_cost", True, _of_plan("cost")),
)


def decide_batches(
    entry: Entry,
    batches: Iterable[Any],
    *,
    keep: Sequence[str] = (),
    threads: int | None = None,
    numbered: bool = True,
    recourse: bool = False,
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
        recourse: whether to add the cheapest plan of each row that is not approved, as `recourse_changes`
            (JSON) and `recourse_cost`: a search for each row.

    Raises:
        InvalidOptionError, InvalidReferencesError: if the entry has no profile, or cannot take the columns
            or values.
        RepositoryError: if there is no such entry.
    """
    shared = _deciding_entry(entry)
    parts = numbered_batches(record_batches(batches), ROWS)
    further = recourse_columns(shared.compiled.manifest) if recourse else ()
    decide = partial(_decide_batch, shared, tuple(keep), numbered, further)
    return map_in_order(decide, parts, count_threads(threads))


def decisions_schema(
    entry: Entry,
    schema: Any = None,
    keep: Sequence[str] = (),
    *,
    numbered: bool = True,
    recourse: bool = False,
) -> Any:
    """Return the schema of the batches that `decide_batches` yields.

    Args:
        schema: the schema of the input batches, if any of their columns are kept.

    Raises:
        InvalidOptionError: if a kept column is missing, or has the name of an answer's column.
    """
    manifest = _deciding_entry(entry).compiled.manifest
    further = recourse_columns(manifest) if recourse else ()
    return _table(manifest, [], empty_batch(schema), keep, further, numbered=numbered).schema


def _deciding_entry(entry: Entry) -> OpenedEntry:
    opened = shared_entry(entry)
    if opened.compiled.manifest.decision is None:
        raise InvalidOptionError(
            "the entry has no decision profile: compile it with decision=… (--decision decision.yaml)."
        )
    return opened


def _decide_batch(
    entry: OpenedEntry,
    keep: Sequence[str],
    numbered: bool,
    further: Further,
    numbered_batch: tuple[int, Any],
) -> Any:
    first, batch = numbered_batch
    manifest, lines = entry.compiled.manifest, list[Line]()
    with row_errors(first, batch):
        inputs, knock_out_cells = applicants_of(entry.compiled, batch)
        decided: Iterator[tuple[Any, Any]] = (
            entry.compiled.decisions_with_recourse(inputs, knock_out_cells)
            if further
            else ((each, None) for each in decide_inputs(manifest, entry.run, inputs, knock_out_cells))
        )
        for row, (decision, found) in enumerate(decided, first):
            if isinstance(decision, Decision):
                recourse = {} if found is None else {"recourse": found.as_json()}
                lines.append({"row": row, "decision": {**decision_answer(manifest, decision), **recourse}})
            else:
                lines.append({"row": row, **decision.as_json()})
        return _table(manifest, lines, batch, keep, further, numbered=numbered)


def _table(
    manifest: Manifest,
    lines: Sequence[Line],
    batch: Any,
    keep: Sequence[str],
    further: Further,
    *,
    numbered: bool,
) -> Any:
    """Return lines, and kept columns of the batch that they are about, as a record batch."""
    omitted = ["id"] if numbered else ["id", "row"]
    answer = with_kept(decision_batch(manifest, lines, further).drop_columns(omitted), batch, keep)
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


def decision_schema(manifest: Manifest, further: Further = ()) -> Any:
    """Return the schema of decisions as a table.

    A value that is no number is a text: a category's, or those of a group's members as JSON.
    """
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    reason = {name: number if name in _REASON_NUMBERS else text for name in _TYPED_COLUMNS}
    kinds = {"row": pa.int64(), "id": text, "decision": text, **dict.fromkeys(NUMBERS, number)}
    kinds |= {f"reason_{k}_{name}": kind for k in reason_numbers(manifest) for name, kind in reason.items()}
    kinds |= {"warnings": pa.list_(text), "fault": text}
    return pa.schema({**kinds, **{each.name: number if each.is_number else text for each in further}})


def decision_batch(manifest: Manifest, lines: Sequence[Line], further: Further = ()) -> Any:
    """Return lines, with the number of each one's `row`, as a record batch."""
    import pyarrow as pa

    rows = [_columns(line, _typed_reason, further) for line in lines]
    return pa.RecordBatch.from_pylist(rows, schema=decision_schema(manifest, further))


def _columns(
    line: Line, reason_cells: Callable[[Mapping[str, Any]], dict[str, Any]], further: Further
) -> dict[str, Any]:
    decision = line.get("decision")
    columns = {"row": line["row"], "fault": line.get("fault")}
    if decision is None:
        return columns
    columns |= {name: decision.get(name) for name in ("id", "decision", *NUMBERS)}
    columns["warnings"] = decision["warnings"]
    columns |= {each.name: each.cell(decision) for each in further}
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
    check_format(save, (".csv", ".jsonl", ".parquet", ".xlsx"))


def write_decisions(
    path: Path,
    manifest: Manifest,
    lines: Iterable[Line],
    kept_columns: KeptColumns,
    further: Further = (),
) -> None:
    """Write lines, and kept columns beside them: a row for each, or as .jsonl whole answers."""

    def cells() -> tuple[list[str], Iterator[list[Any]]]:
        names = [*_csv_columns(manifest, further), *kept_columns]
        rows = (
            {**_columns(line, _plain_reason, further), **_kept_cells(kept_columns, line)} for line in lines
        )
        texts = ({**row, "warnings": "; ".join(row.get("warnings", ()))} for row in rows)
        return names, ([row.get(name) for name in names] for row in texts)

    def records() -> Iterable[Line]:
        return ({**line, "kept": _kept_cells(kept_columns, line)} if kept_columns else line for line in lines)

    def arrow() -> tuple[Any, Iterator[Any]]:
        import pyarrow as pa

        columns = pa.record_batch([pa.array(column) for column in kept_columns.values()], list(kept_columns))

        def table_of(group: list[Line]) -> Any:
            rows = columns.take(pa.array([line["row"] for line in group], pa.int64()))
            return with_kept(decision_batch(manifest, group, further), rows, list(kept_columns))

        return table_of([]).schema, map(table_of, split_batches(lines, ROW_GROUP))

    write_rows(path, RowForms(cells, records, arrow))


def decision_columns(manifest: Manifest, further: Further = ()) -> list[str]:
    """Return the names of all columns that a file of decisions of any kind may have."""
    return [*_csv_columns(manifest, further), *(f"reason_{k}_value_text" for k in reason_numbers(manifest))]


def _csv_columns(manifest: Manifest, further: Further) -> list[str]:
    reasons = [f"reason_{k}_{name}" for k in reason_numbers(manifest) for name in REASON_COLUMNS]
    own = ["row", "id", "decision", *NUMBERS, *reasons, "warnings", "fault"]
    return [*own, *(each.name for each in further)]


def _kept_cells(kept_columns: KeptColumns, line: Line) -> dict[str, Any]:
    return {name: column[line["row"]] for name, column in kept_columns.items()}
