"""Explanations of a Ray Dataset: `explain_batches` in each of its tasks.

from rationale.ray import explain

explain(ray.data.read_parquet("s3://loans"), "/models/credit", keep=["id"]).write_parquet("s3://reasons")
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.explanations.arrow import batches_schema, explain_batches

if TYPE_CHECKING:
    from ray.data import Dataset


def explain(
    rows: "Dataset", entry: str | Path, keep: Sequence[str] = (), batch_size: int | None = None
) -> "Dataset":
    """Return the explanation of each row, as `rationale.explain_batches` does.

    Args:
        entry: the folder of an entry, at the same path on every node.
        keep: columns of `rows` that are kept, by which its answer is found: there is no `row`.
        batch_size: rows that a task takes at once; None for a block of the dataset.

    Raises:
        RepositoryError: no such entry here.
    """
    batches_schema(entry)
    work = partial(_explained, entry=entry, keep=tuple(keep))
    return rows.map_batches(work, batch_size=batch_size, batch_format="pyarrow", zero_copy_batch=True)


def _explained(table: Any, entry: str | Path, keep: Sequence[str]) -> Any:
    import pyarrow as pa

    answers = list(explain_batches(entry, table, keep=keep, threads=1, numbered=False))
    return pa.Table.from_batches(answers, batches_schema(entry, table.schema, keep, numbered=False))
