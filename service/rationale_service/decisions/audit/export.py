"""Export of the trail as a table, for analysis of decisions."""

import csv
import importlib.util
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from rationale.artifact.folder import whole
from rationale.distribution import install
from rationale.errors import InvalidOptionError
from rationale_service.decisions.audit.ledger import Ledger
from rationale_service.decisions.trail import RecordedDecision

_AT_ONCE = 5000  # rows of a row group
_TEXTS = ("id", "time", "model", "version", "caller", "request_id", "idempotency_key", "kept")
_OBJECTS = ("answer", "runtime", "instance")
_COLUMNS = (*_TEXTS, "latency_ms", "decision", "score", "codes", *_OBJECTS)
Rows = Iterator[dict[str, Any]]


def export(
    ledger: Ledger,
    file: Path,
    since: str | None = None,
    until: str | None = None,
    model: str | None = None,
    *,
    with_inputs: bool = False,
) -> int:
    """Write decisions by time into a file, all or nothing; its name's ending decides the format.

    Returns:
        The number of decisions.

    Raises:
        InvalidOptionError: if the file cannot be written, pyarrow is missing, or inputs need another key
            file.
        StateUnavailableError: if the trail cannot be read.
    """
    write = _WRITERS.get(file.suffix.lower())
    if write is None:
        raise InvalidOptionError(f"{file}: cannot be written: its name must end in {', '.join(_WRITERS)}.")
    if write is _write_parquet and importlib.util.find_spec("pyarrow") is None:
        raise InvalidOptionError(
            f"{file}: parquet files need pyarrow: {install('parquet')}, or write .csv or .jsonl."
        )
    count = 0

    def counted() -> Rows:
        nonlocal count
        for one in ledger.in_order(since, until, model, with_inputs=with_inputs):
            count += 1
            yield _row(one)

    with whole(file) as part:
        write(part, counted())
    return count


def _write_csv(path: Path, rows: Rows) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({**_with_json(row), "codes": "; ".join(row["codes"])} for row in rows)


def _write_jsonl(path: Path, rows: Rows) -> None:
    with path.open("wb") as file:
        file.writelines(orjson.dumps(row) + b"\n" for row in rows)


def _write_parquet(path: Path, rows: Rows) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    kinds = dict.fromkeys(_COLUMNS, pa.string())
    kinds |= {"latency_ms": pa.float64(), "score": pa.float64(), "codes": pa.list_(pa.string())}
    schema = pa.schema(kinds)
    with parquet.ParquetWriter(path, schema) as writer:
        while batch := list(itertools.islice(rows, _AT_ONCE)):
            writer.write_table(pa.Table.from_pylist([_with_json(row) for row in batch], schema))


_WRITERS: dict[str, Callable[[Path, Rows], None]] = {
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    ".jsonl": _write_jsonl,
}


def _with_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its objects as JSON texts."""
    texts = {name: None if row[name] is None else json.dumps(row[name]) for name in _OBJECTS}
    return {**row, **texts}


def _row(one: RecordedDecision) -> dict[str, Any]:
    return {
        **{name: getattr(one, name) for name in _TEXTS},
        "latency_ms": one.latency_ms,
        "decision": one.answer.get("decision"),
        "score": one.answer.get("score"),
        "codes": [reason["code"] for reason in one.answer.get("reasons", ())],
        "answer": one.answer,
        "runtime": one.runtime,
        "instance": one.instance,
    }
