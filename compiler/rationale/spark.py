"""Explanations of, and decisions on, a Spark DataFrame: `explain_batches`, `decide_batches` on each executor.

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
        keep: columns of `rows` that are kept, by which its answer is found: there is no `row`.
        threads: cores that a task takes; as many as `spark.task.cpus`.

    Raises:
        InvalidOptionError, RepositoryError: of what is known before a row is read.
    """
    return _mapped(rows, batches_schema, explain_batches, entry, keep, threads)


def decide(rows: "DataFrame", entry: str | Path, keep: Sequence[str] = (), threads: int = 1) -> "DataFrame":
    """Return the decision on each row, as `rationale.decide_batches` does; nothing is recorded.

    Args:
        entry: the folder of an entry with a decision profile, at the same path on every worker.
        keep: columns of `rows` that are kept, by which its decision is found: there is no `row`.
        threads: cores that a task takes; as many as `spark.task.cpus`.

    Raises:
        InvalidOptionError, RepositoryError: of what is known before a row is read.
    """
    return _mapped(rows, decisions_schema, decide_batches, entry, keep, threads)


def _mapped(
    rows: "DataFrame",
    schema_of: Callable[..., Any],
    work: Callable[..., Any],
    entry: str | Path,
    keep: Sequence[str],
    threads: int,
) -> "DataFrame":
    """Return what `work` makes of the batches of rows, of the schema that `schema_of` tells."""
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    schema = from_arrow_schema(schema_of(entry, to_arrow_schema(rows.schema), keep, numbered=False))
    return rows.mapInArrow(partial(work, entry, keep=tuple(keep), threads=threads, numbered=False), schema)
