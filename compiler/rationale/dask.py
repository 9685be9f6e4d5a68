"""Explanations of a Dask DataFrame: `explain_batches` on each partition.

from rationale.dask import explain

explain(dask.dataframe.read_parquet("s3://loans"), "/models/credit", keep=["id"]).to_parquet("s3://reasons")
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rationale.portfolios.arrow import batches_schema, explain_batches

if TYPE_CHECKING:
    from dask.dataframe import DataFrame


def explain(rows: "DataFrame", entry: str | Path, keep: Sequence[str] = (), threads: int = 1) -> "DataFrame":
    """Return the explanation of each row, as `rationale.explain_batches` does, with the row's index.

    Args:
        entry: the folder of an entry, at the same path on every worker.
        keep: columns of `rows` that are kept.
        threads: cores that a task takes.

    Raises:
        InvalidOptionError, RepositoryError: of what is known before a row is read.
    """
    import pyarrow as pa

    batches_schema(entry, pa.Schema.from_pandas(rows._meta, preserve_index=False), keep)
    given = (entry, tuple(keep), threads)
    return rows.map_partitions(_explained, *given, meta=_explained(rows._meta, *given))


def _explained(frame: Any, entry: str | Path, keep: tuple[str, ...], threads: int) -> Any:
    import pandas as pd
    import pyarrow as pa

    answers = explain_batches(entry, pa.Table.from_pandas(frame, preserve_index=False), threads=threads)
    found = pa.Table.from_batches(answers, batches_schema(entry)).to_pandas()
    kept = frame[[*keep]].iloc[found.pop("row")]
    return pd.concat([found.set_index(kept.index), kept], axis=1)
