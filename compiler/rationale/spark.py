"""Explanations of a Spark DataFrame and decisions on it: `explain_batches`, `decide_batches` per executor.

from rationale.spark import decide, explain

reasons = explain(spark.read.parquet("s3://loans"), "/models/credit", keep=["id"])
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rationale.portfolios.arrow import batches_schema, explain_batches
from rationale.portfolios.decisions import decide_batches, decisions_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def explain(rows: "DataFrame", entry: str | Path, keep: Sequence[str] = (), threads: int = 1) -> "DataFrame":
    """Return the explanation of each row, as `rationale.explain_batches` does.

    Args:
        entry: the folder of an entry, at the same path on every worker.
        keep: columns of `rows` to copy, which identify the row: the result has no `row` column.
        threads: cores per task; set it to `spark.task.cpus`.

    Raises:
        InvalidOptionError, RepositoryError: if the entry or `keep` is invalid; raised before a row is read.
    """
    return _map_batches(rows, batches_schema, explain_batches, entry, keep, threads)


def decide(rows: "DataFrame", entry: str | Path, keep: Sequence[str] = (), threads: int = 1) -> "DataFrame":
    """Return the decision on each row, as `rationale.decide_batches` does; it records nothing.

    Args:
        entry: the folder of an entry with a decision profile, at the same path on every worker.
        keep: columns of `rows` to copy, which identify the row: the result has no `row` column.
        threads: cores per task; set it to `spark.task.cpus`.

    Raises:
        InvalidOptionError, RepositoryError: if the entry or `keep` is invalid; raised before a row is read.
    """
    return _map_batches(rows, decisions_schema, decide_batches, entry, keep, threads)


def _map_batches(
    rows: "DataFrame",
    schema_of: Callable[..., Any],
    work: Callable[..., Any],
    entry: str | Path,
    keep: Sequence[str],
    threads: int,
) -> "DataFrame":
    """Apply `work` to the batches of rows; `schema_of` returns the result's schema."""
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    schema = from_arrow_schema(schema_of(entry, to_arrow_schema(rows.schema), keep, numbered=False))
    return rows.mapInArrow(partial(work, entry, keep=tuple(keep), threads=threads, numbered=False), schema)
