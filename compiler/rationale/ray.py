"""Explanations of a Ray Dataset and decisions on it: `explain_batches`, `decide_batches` in each task.

from rationale.ray import decide, explain

explain(ray.data.read_parquet("s3://loans"), "/models/credit", keep=["id"]).write_parquet("s3://reasons")
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rationale.portfolios.arrow import batches_schema, explain_batches
from rationale.portfolios.decisions import decide_batches, decisions_schema

if TYPE_CHECKING:
    from ray.data import Dataset


ROWS = 50_000  # Ray splits by bytes, and would explain 100 MB of small rows on one core


def explain(
    rows: "Dataset", entry: str | Path, keep: Sequence[str] = (), task_rows: int | None = ROWS
) -> "Dataset":
    """Return the explanation of each row, as `rationale.explain_batches` does.

    Args:
        entry: the folder of an entry, at the same path on every node.
        keep: columns of `rows` to copy, which identify the row: the result has no `row` column.
        task_rows: rows per task; the dataset is divided into blocks of this size. None keeps the blocks as
            read, and one task reads, explains and writes: this is faster if each file is a block, as with
            `override_num_blocks` of Ray's first reader (docs/portfolios.md).

    Raises:
        RepositoryError: if this machine has no such entry.
    """
    return _map_blocks(rows, batches_schema, explain_batches, entry, keep, task_rows)


def decide(
    rows: "Dataset", entry: str | Path, keep: Sequence[str] = (), task_rows: int | None = ROWS
) -> "Dataset":
    """Return the decision on each row, as `rationale.decide_batches` does; it records nothing.

    Args:
        entry: the folder of an entry with a decision profile, at the same path on every node.
        keep: columns of `rows` to copy, which identify the row: the result has no `row` column.
        task_rows: rows per task; see `explain`.

    Raises:
        InvalidOptionError, RepositoryError: if this machine has no such entry, or the entry does not decide.
    """
    return _map_blocks(rows, decisions_schema, decide_batches, entry, keep, task_rows)


def _map_blocks(
    rows: "Dataset",
    schema_of: Callable[..., Any],
    work: Callable[..., Any],
    entry: str | Path,
    keep: Sequence[str],
    task_rows: int | None,
) -> "Dataset":
    """Apply `work` to the blocks of rows; `schema_of` returns the result's schema."""
    schema_of(entry)
    task = partial(_answer_block, schema_of=schema_of, work=work, entry=entry, keep=tuple(keep))
    blocks = rows if task_rows is None else rows.repartition(target_num_rows_per_block=task_rows)
    return blocks.map_batches(task, batch_size=None, batch_format="pyarrow", zero_copy_batch=True)


def _answer_block(
    table: Any,
    schema_of: Callable[..., Any],
    work: Callable[..., Any],
    entry: str | Path,
    keep: Sequence[str],
) -> Any:
    import pyarrow as pa

    answers = list(work(entry, table, keep=keep, threads=1, numbered=False))
    schema = schema_of(entry, table.schema, keep, numbered=False)
    return pa.Table.from_batches(answers, schema).combine_chunks()
