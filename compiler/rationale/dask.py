"""Explanations of a Dask DataFrame and decisions on it: `explain_batches`, `decide_batches` per partition.

from rationale.dask import decide, explain

explain(dask.dataframe.read_parquet("s3://loans"), "/models/credit", keep=["id"]).to_parquet("s3://reasons")
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rationale.portfolios.arrow import batches_schema, explain_batches
from rationale.portfolios.decisions import decide_batches, decisions_schema

if TYPE_CHECKING:
    from dask.dataframe import DataFrame


def explain(rows: "DataFrame", entry: str | Path, keep: Sequence[str] = (), threads: int = 1) -> "DataFrame":
    """Return the explanation of each row, as `rationale.explain_batches` does, with the row's index.

    Args:
        entry: the folder of an entry, at the same path on every worker.
        keep: columns of `rows` to copy into the result.
        threads: cores per task.

    Raises:
        InvalidOptionError, RepositoryError: if the entry or `keep` is invalid; raised before a row is read.
    """
    return _map_partitions(rows, batches_schema, explain_batches, entry, keep, threads)


def decide(rows: "DataFrame", entry: str | Path, keep: Sequence[str] = (), threads: int = 1) -> "DataFrame":
    """Return the decision on each row, as `rationale.decide_batches` does, with the row's index.

    It records nothing. Texts and warnings have Arrow types, so that all partitions have the same types.

    Args:
        entry: the folder of an entry with a decision profile, at the same path on every worker.
        keep: columns of `rows` to copy into the result.
        threads: cores per task.

    Raises:
        InvalidOptionError, RepositoryError: if the entry or `keep` is invalid; raised before a row is read.
    """
    return _map_partitions(rows, decisions_schema, decide_batches, entry, keep, threads)


def _map_partitions(
    rows: "DataFrame",
    schema_of: Callable[..., Any],
    work: Callable[..., Any],
    entry: str | Path,
    keep: Sequence[str],
    threads: int,
) -> "DataFrame":
    """Apply `work` to each partition; `schema_of` returns the result's schema."""
    import pyarrow as pa

    schema_of(entry, pa.Schema.from_pandas(rows._meta, preserve_index=False), keep)
    arguments = (schema_of, work, entry, tuple(keep), threads)
    return rows.map_partitions(_answer_partition, *arguments, meta=_answer_partition(rows._meta, *arguments))


def _answer_partition(
    frame: Any,
    schema_of: Callable[..., Any],
    work: Callable[..., Any],
    entry: str | Path,
    keep: tuple[str, ...],
    threads: int,
) -> Any:
    import pandas as pd
    import pyarrow as pa

    answers = work(entry, pa.Table.from_pandas(frame, preserve_index=False), threads=threads)
    answer = pa.Table.from_batches(answers, schema_of(entry)).to_pandas(types_mapper=_arrow_type)
    columns = frame[[*keep]].iloc[answer.pop("row")]
    return pd.concat([answer.set_index(columns.index), columns], axis=1)


def _arrow_type(kind: Any) -> Any:
    """Return the Arrow type for texts and lists: as objects, they lose it if all values are missing."""
    import pandas as pd
    import pyarrow as pa

    return pd.ArrowDtype(kind) if pa.types.is_string(kind) or pa.types.is_list(kind) else None
