"""Explanations of Arrow record batches: a stream in, a stream out, in constant memory.

Whoever has an engine for tables (Spark, Ray, Dask, DuckDB) hands its batches to `explain_batches`.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any
from warnings import warn

import numpy as np
import onnx

from rationale.artifact.columns import answer_columns
from rationale.artifact.compiled import Compiled, Explanation
from rationale.artifact.entry import open_entry
from rationale.artifact.rows import inputs_of_arrow
from rationale.errors import CheckFailedError, InvalidOptionError, RationaleError, quoted
from rationale.graph.memory.budget import rows_that_fit
from rationale.graph.runtime.session import Run, outline
from rationale.schema.machine import available_cores
from rationale.schema.manifest import FILE_NAME
from rationale.schema.outputs import OUTPUT_KINDS
from rationale.tables.written import check_kept

DIGEST = "rationale.explanation"  # in the schema's metadata: the manifest's digest of the explanation
ROWS = 500  # that a thread decides at once
_RUNS = 32  # of the graph in a thread's part of the rows, if the entry's memory budget allows it for all
_MOST_ROWS = 8192  # of a part
_CACHE_BYTES = 2_500_000  # of a core: more rows in a run are slower, and ONNX Runtime keeps their memory
_FEWEST = 32  # rows of a run, however much each takes: weights are read once for all of them
_ENTRIES = 4  # that a process keeps open
_AHEAD = 2  # batches that are under way for each thread

Entry = str | Path | Compiled


def explain_batches(
    entry: Entry,
    batches: Iterable[Any],
    *,
    keep: Sequence[str] = (),
    threads: int | None = None,
    numbered: bool = True,
) -> Iterator[Any]:
    """Explain the rows of Arrow record batches, as they come.

    The returned batches have the columns of `rationale explain --save FILE.parquet`: `row` (its number in the
    stream) and `target`, the explained value, the base value, the attribution of each feature by its name,
    and the completeness gap; then the kept columns. `batches_schema` returns their schema. A process opens an
    entry once, and holds at most a few batches for each thread in memory. A batch with categories that the
    model was not trained on causes a UserWarning, in Spark on the executor.

    Args:
        entry: the folder of an entry (`model_repository/credit`), or the result of `compile_model`.
        batches: `pyarrow.RecordBatch`es, one or many, or a source of them (a `RecordBatchReader`, a table of
            pyarrow, pandas or polars, a query of DuckDB); columns are found by name.
        keep: columns of the batches to copy into the answer, such as an id.
        threads: number of cores that explain rows; None for all.
        numbered: whether to write `row`; leave it out if the stream is one of many.

    Raises:
        InvalidOptionError, InvalidReferencesError: if the model cannot take the columns or values.
        RepositoryError: if there is no such entry.
    """
    return explain_streams(entry, [record_batches(batches)], keep, threads, numbered=numbered)


def explain_streams(
    entry: Entry,
    streams: Iterable[Iterable[Any]],
    keep: Sequence[str] = (),
    threads: int | None = None,
    *,
    numbered: bool = True,
) -> Iterator[Any]:
    """Explain the rows of several streams of record batches, one after the other, like `explain_batches`.

    The rows of each stream are numbered from 0. The threads begin a stream while they finish the one before.
    """
    shared, count = shared_entry(entry), count_threads(threads)
    most = min(_RUNS * run_rows(shared.compiled), _MOST_ROWS)
    rows = max(rows_that_fit(shared.compiled.manifest.memory, count * most) // count, 1)
    parts = chain.from_iterable(numbered_batches(stream, rows) for stream in streams)
    return map_in_order(partial(_explain_batch, shared, tuple(keep), numbered), parts, count)


def count_threads(threads: int | None) -> int:
    """Return the number of threads, all cores for None; raise InvalidOptionError for no such number."""
    count = available_cores() if threads is None else threads
    if not isinstance(count, int) or count < 1:
        raise InvalidOptionError(f"threads={threads}: give a whole number, 1 or more.")
    return count


def record_batches(batches: Any) -> Iterable[Any]:
    """Return the record batches of a batch, a table or a stream; raise InvalidOptionError for others."""
    if hasattr(batches, "__arrow_c_stream__"):  # pandas, polars, DuckDB, or a table of Arrow
        import pyarrow as pa

        reader: Iterable[Any] = pa.RecordBatchReader.from_stream(batches)
        return reader
    if hasattr(batches, "num_rows"):
        return [batches]
    if not isinstance(batches, Iterable):
        raise _no_batches_error(batches)
    return batches


def run_rows(compiled: Compiled) -> int:
    """Return how many rows of a batch the graph is run on at once."""
    return max(_FEWEST, _CACHE_BYTES // max(compiled.manifest.memory.work, 1))


def batches_schema(
    entry: Entry, schema: Any = None, keep: Sequence[str] = (), *, numbered: bool = True
) -> Any:
    """Return the schema of the batches that `explain_batches` yields.

    Args:
        schema: the schema of the input batches, if any of their columns are kept.

    Raises:
        InvalidOptionError: if a kept column is missing, or has the name of an answer's column.
    """
    return _answer_batch(
        shared_entry(entry).empty_answer(), 0 if numbered else None, empty_batch(schema), keep
    ).schema


def empty_batch(schema: Any) -> Any:
    """Return a batch of a schema, or of None, without rows."""
    import pyarrow as pa

    fields = [] if schema is None else list(schema)
    return pa.record_batch([pa.nulls(0, field.type) for field in fields], [f.name for f in fields])


@dataclass(frozen=True, eq=False)
class OpenedEntry:
    """An entry, with a session whose runs take one core each: a thread of ours runs on each."""

    compiled: Compiled
    run: Run

    def explain(self, batch: Any) -> Explanation:
        """Return the explanation of a batch's rows, as columns need it."""
        inputs, step = inputs_of_arrow(self.compiled, batch), run_rows(self.compiled)
        blocks = [
            self.run({name: rows[start : start + step] for name, rows in inputs.items()}, self.output_names)
            for start in range(0, batch.num_rows, step)
        ]
        answers = {name: np.concatenate([block[name] for block in blocks]) for name in self.output_names}
        return Explanation(answers, self.compiled.manifest, inputs)

    @cached_property
    def output_names(self) -> list[str]:
        """The outputs that become columns."""
        manifest = self.compiled.manifest
        named = [name for kind, name in manifest.values.items() if OUTPUT_KINDS[kind].in_tables]
        named += [name for item in manifest.attributed for name in item.outputs.values()]
        named += [manifest.explained_output]
        there = {value.name for value in outline(self.compiled.graph).graph.output}
        return [name for name in dict.fromkeys(named) if name in there]

    def empty_answer(self) -> Explanation:
        """Return an answer about no rows."""
        outputs = {}
        for value in outline(self.compiled.graph).graph.output:
            tensor = value.type.tensor_type
            shape = [0, *(d.dim_value for d in tensor.shape.dim[1:])]
            outputs[value.name] = np.zeros(shape, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        return Explanation(outputs, self.compiled.manifest, {})


def shared_entry(entry: Entry) -> OpenedEntry:
    """Open an entry, or return the one that this process has open. Raise RepositoryError."""
    if isinstance(entry, Compiled):
        return _session(entry)
    path = Path(entry)
    stamps = [file.stat().st_mtime_ns for file in sorted(path.parent.glob(f"{path.name}*/{FILE_NAME}"))]
    return _session(_read(path, tuple(stamps)))


@lru_cache(_ENTRIES)
def _read(path: Path, _: tuple[int, ...]) -> Compiled:
    return open_entry(path.parent, path.name)


@lru_cache(_ENTRIES)
def _session(compiled: Compiled) -> OpenedEntry:
    return OpenedEntry(compiled, compiled.loaded(threads=1))


def numbered_batches(batches: Iterable[Any], rows: int) -> Iterator[tuple[int, Any]]:
    """Yield the batches in parts of at most `rows` rows, each with the number of its first row."""
    first = 0
    for batch in batches:
        if not hasattr(batch, "num_rows"):
            raise _no_batches_error(batch)
        for start in range(0, batch.num_rows, rows):
            yield first + start, batch.slice(start, rows)
        first += batch.num_rows


def _no_batches_error(batch: Any) -> InvalidOptionError:
    return InvalidOptionError(
        f"a {type(batch).__name__} is not an Arrow record batch: give record batches, or a table of pandas, "
        "polars, pyarrow or DuckDB."
    )


def _explain_batch(
    entry: OpenedEntry, keep: tuple[str, ...], numbered: bool, numbered_batch: tuple[int, Any]
) -> Any:
    first, batch = numbered_batch
    with row_errors(first, batch):
        answer = entry.explain(batch)
        table = _answer_batch(answer, first if numbered else None, batch, keep)
    warned = [
        (i, warnings) for i, warnings in enumerate(answer.manifest.unknown_texts(answer.inputs)) if warnings
    ]
    if warned:
        (row, warnings), more = warned[0], f"; and {len(warned) - 1} more of its rows" * (len(warned) > 1)
        warn(f"batch from row {first}: row {first + row}: {'; '.join(warnings)}{more}", stacklevel=2)
    return table


@contextmanager
def row_errors(first: int, batch: Any) -> Iterator[None]:
    """Name the rows of a batch in errors. A row that the model cannot take raises InvalidOptionError."""
    try:
        yield
    except CheckFailedError as error:
        raise InvalidOptionError(
            f"rows {first} to {first + batch.num_rows - 1}: the model cannot take one of them (an id outside "
            f"of its table?): {error}"
        ) from error
    except RationaleError as error:
        raise type(error)(f"rows {first} to {first + batch.num_rows - 1}: {error}") from error


def kept_columns(batch: Any, keep: Sequence[str], answer_columns: Collection[str] = ()) -> dict[str, Any]:
    """Return columns of a batch to write beside `answer_columns`.

    Raises:
        InvalidOptionError: if a column is missing, or has the name of one of `answer_columns`.
    """
    missing = [name for name in keep if name not in batch.schema.names]
    if missing:
        raise InvalidOptionError(
            f"no column {quoted(missing)} to keep; there are {quoted(batch.schema.names)}."
        )
    check_kept(keep, answer_columns)
    return {name: batch.column(name) for name in keep}


def with_kept(answer: Any, batch: Any, keep: Sequence[str]) -> Any:
    """Return a record batch with columns of another beside its own; raise as `kept_columns`."""
    for name, column in kept_columns(batch, keep, answer.schema.names).items():
        answer = answer.append_column(batch.schema.field(name), column)
    return answer


def _answer_batch(answer: Explanation, first: int | None, batch: Any, keep: Sequence[str]) -> Any:
    """Return an answer as a record batch: a row for each row and target, numbered from `first` on."""
    import pyarrow as pa

    manifest = answer.manifest
    columns: dict[str, Any] = dict(answer_columns(answer, first or 0).columns)
    if first is None:
        del columns["row"]
    kept_arrays = kept_columns(batch, keep, columns)
    n, targets = answer[manifest.explained_value].shape
    rows = np.repeat(np.arange(n), targets)
    arrays = {name: _array_of(column) for name, column in columns.items()}
    arrays |= {name: column if targets == 1 else column.take(rows) for name, column in kept_arrays.items()}
    table = pa.record_batch(list(arrays.values()), list(arrays))
    return table.replace_schema_metadata({DIGEST: manifest.digests.explanation})


def _array_of(column: np.ndarray) -> Any:
    """Return a column for Arrow. Its numbers go by their buffer: `pa.array` would import pandas."""
    import pyarrow as pa

    if column.dtype.kind not in "iuf":
        return pa.array(column)
    buffer = pa.py_buffer(np.ascontiguousarray(column))
    return pa.Array.from_buffers(pa.from_numpy_dtype(column.dtype), len(column), [None, buffer])


def map_in_order(work: Callable[[Any], Any], items: Iterable[Any], threads: int) -> Iterator[Any]:
    """Yield `work`'s result for each part, in the parts' order, on `threads` threads.

    An error of `items` is raised behind the results of the parts before it.
    """
    waiting: deque[Future[Any]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for future in _submitted(pool, work, items):
            waiting.append(future)
            if len(waiting) > _AHEAD * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _submitted(
    pool: ThreadPoolExecutor, work: Callable[[Any], Any], items: Iterable[Any]
) -> Iterator[Future[Any]]:
    try:
        for item in items:
            yield pool.submit(work, item)
    except Exception as error:  # of any reader
        failed = Future[Any]()
        failed.set_exception(error)
        yield failed
