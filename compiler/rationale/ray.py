"""Explanations of a Ray Dataset: `explain_batches` in each of its tasks.

from rationale.ray import explain

explain(ray.data.read_parquet("s3://loans"), "/models/credit", keep=["id"]).write_parquet("s3://reasons")
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rationale.portfolios.arrow import batches_schema, explain_batches

if TYPE_CHECKING:
    from ray.data import Dataset


ROWS = 50_000  # Ray counts bytes, and would explain 100 MB of small rows on one core


def explain(
    rows: "Dataset", entry: str | Path, keep: Sequence[str] = (), task_rows: int | None = ROWS
) -> "Dataset":
    """Return the explanation of each row, as `rationale.explain_batches` does.

    Args:
        entry: the folder of an entry, at the same path on every node.
        keep: columns of `rows` that are kept, by which its answer is found: there is no `row`.
        task_rows: rows that a task explains; the dataset is divided into blocks of as many. None leaves its
            blocks as they are read, and one task reads, explains and writes: faster where each file is a
            block, as with `override_num_blocks` of Ray's first reader (docs/portfolios.md).

    Raises:
        RepositoryError: no such entry here.
    """
    batches_schema(entry)
    work = partial(_explained, entry=entry, keep=tuple(keep))
    blocks = rows if task_rows is None else rows.repartition(target_num_rows_per_block=task_rows)
    return blocks.map_batches(work, batch_size=None, batch_format="pyarrow", zero_copy_batch=True)


def _explained(table: Any, entry: str | Path, keep: Sequence[str]) -> Any:
    import pyarrow as pa

    answers = list(explain_batches(entry, table, keep=keep, threads=1, numbered=False))
    schema = batches_schema(entry, table.schema, keep, numbered=False)
    return pa.Table.from_batches(answers, schema).combine_chunks()
