"""The trail as a table, for whoever evaluates decisions."""

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rationale.distribution import install
from rationale.errors import InvalidOptionError
from rationale_service.decisions.audit.ledger import Ledger

_AT_ONCE = 5000  # rows of a row group


def export(
    ledger: Ledger,
    file: Path,
    since: str | None = None,
    until: str | None = None,
    model: str | None = None,
    *,
    with_inputs: bool = False,
) -> int:
    """Write decisions by time into a parquet file, whole or not at all; return how many.

    Raises:
        InvalidOptionError: it cannot be written, pyarrow is missing, or inputs need another key file.
        StateUnavailableError: the trail cannot be read.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise InvalidOptionError(f"parquet files need pyarrow: {install('parquet')}") from error
    texts = {
        name: pa.string()
        for name in ("id", "time", "model", "version", "caller", "request_id", "idempotency_key", "kept")
    }
    schema = pa.schema(
        {
            **texts,
            "latency_ms": pa.float64(),
            "decision": pa.string(),
            "score": pa.float64(),
            "codes": pa.list_(pa.string()),
            "answer": pa.string(),
            "runtime": pa.string(),
            "instance": pa.string(),
        }
    )
    rows = _rows(ledger, since, until, model, with_inputs=with_inputs)
    partial, count = file.with_name(f".{file.name}.{os.getpid()}"), 0
    try:
        with pq.ParquetWriter(partial, schema) as writer:
            while batch := list(itertools.islice(rows, _AT_ONCE)):
                writer.write_table(pa.Table.from_pylist(batch, schema))
                count += len(batch)
        partial.replace(file)
    except OSError as error:
        raise InvalidOptionError(f"cannot write {file}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return count


def _rows(
    ledger: Ledger, since: str | None, until: str | None, model: str | None, *, with_inputs: bool
) -> Iterator[dict[str, Any]]:
    for one in ledger.in_order(since, until, model, with_inputs=with_inputs):
        yield {
            "id": one.id,
            "time": one.time,
            "model": one.model,
            "version": one.version,
            "caller": one.caller,
            "request_id": one.request_id,
            "idempotency_key": one.idempotency_key,
            "kept": one.kept,
            "latency_ms": one.latency_ms,
            "decision": one.answer.get("decision"),
            "score": one.answer.get("score"),
            "codes": [reason["code"] for reason in one.answer.get("reasons", ())],
            "answer": json.dumps(one.answer),
            "runtime": json.dumps(one.runtime),
            "instance": None if one.instance is None else json.dumps(one.instance),
        }
