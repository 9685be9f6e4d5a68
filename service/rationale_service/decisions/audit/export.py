"""Export of the trail as a table, for analysis of decisions."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rationale.artifact.repository.folder import atomic_file
from rationale.tables.files import check_format, write_rows
from rationale.tables.written import RowForms, split_batches
from rationale_service.decisions.audit.ledger import Ledger
from rationale_service.decisions.audit.trail import RecordedDecision

_AT_ONCE = 5000  # rows of a row group
_TEXTS = (
    *("id", "application_id", "time", "model", "version", "caller", "request_id", "idempotency_key", "kept"),
    *("kind", "reviews", "review_by"),
)
_OBJECTS = ("answer", "runtime", "instance")
_COLUMNS = (*_TEXTS, "latency_ms", "decision", "score", "codes", *_OBJECTS)
Rows = Iterator[dict[str, Any]]


def export(
    ledger: Ledger,
    file: Path,
    since: str | None = None,
    until: str | None = None,
    model: str | None = None,
    application: str | None = None,
    *,
    with_inputs: bool = False,
) -> int:
    """Write decisions by time into a file, all or nothing; its name's ending decides the format.

    Returns:
        The number of decisions.

    Raises:
        InvalidOptionError: if the file cannot be written, a package is missing, or inputs need another key
            file.
        StateUnavailableError: if the trail cannot be read.
    """
    check_format(file, (".parquet", ".csv", ".jsonl", ".xlsx"))
    count = 0

    def count_rows() -> Rows:
        nonlocal count
        for decision in ledger.in_order(since, until, model, application, with_inputs=with_inputs):
            count += 1
            yield _row(decision)

    with atomic_file(file) as partial_file:
        write_rows(partial_file, _forms(count_rows()))
    return count


def _forms(rows: Rows) -> RowForms:
    def cells() -> tuple[tuple[str, ...], Iterator[list[Any]]]:
        texts = ({**_with_json(row), "codes": "; ".join(row["codes"])} for row in rows)
        return _COLUMNS, ([row[name] for name in _COLUMNS] for row in texts)

    def arrow() -> tuple[Any, Iterator[Any]]:
        import pyarrow as pa

        kinds = dict.fromkeys(_COLUMNS, pa.string())
        kinds |= {"latency_ms": pa.float64(), "score": pa.float64(), "codes": pa.list_(pa.string())}
        schema = pa.schema(kinds)
        groups = (list(map(_with_json, group)) for group in split_batches(rows, _AT_ONCE))
        return schema, (pa.Table.from_pylist(group, schema) for group in groups)

    return RowForms(cells, lambda: rows, arrow)


def _with_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its objects as JSON texts."""
    texts = {name: None if row[name] is None else json.dumps(row[name]) for name in _OBJECTS}
    return {**row, **texts}


def _row(decision: RecordedDecision) -> dict[str, Any]:
    return {
        **{name: getattr(decision, name) for name in _TEXTS},
        "latency_ms": decision.latency_ms,
        "decision": decision.answer.get("decision"),
        "score": decision.answer.get("score"),
        "codes": [reason["code"] for reason in decision.answer.get("reasons", ())],
        "answer": decision.answer,
        "runtime": decision.runtime,
        "instance": decision.instance,
    }
