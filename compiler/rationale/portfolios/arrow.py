"""Explanations of Arrow record batches: a stream in, a stream out, in constant memory.

Whoever has an engine for tables (Spark, Ray, Dask, DuckDB) hands its batches to `explain_batches`.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any
from warnings import warn

import numpy as np
import onnx

from rationale.artifact.compiled import Compiled, Explanation
from rationale.artifact.entry import inputs_of_arrow, open_entry
from rationale.errors import CheckFailedError, InvalidOptionError, RationaleError
from rationale.graph.memory.budget import rows_that_fit
from rationale.graph.runtime.session import Run, outline
from rationale.portfolios.files import columns_of_answer
from rationale.schema.machine import available_cores
from rationale.schema.manifest import FILE_NAME
from rationale.schema.outputs import OUTPUT_KINDS
from rationale.tables.written import check_kept

DIGEST = "rationale.explanation"  # in the schema's metadata: the manifest's digest of what explained the rows
ROWS = 500  # that a thread reads and answers at once, where the entry's memory budget holds so many for all
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

    The batches that are returned have the columns of `rationale explain --save FILE.parquet`: `row` (its
    number in the stream) and `target`, the explained value, the base value, the attribution of each feature
    by its name, and the completeness gap; then those that are kept. `batches_schema` is theirs. A process
    opens an entry once, and at most a few batches for each thread are in memory. A batch with categories that
    the model was not trained on is a UserWarning, in Spark on the executor.

    Args:
        entry: the folder of an entry (`model_repository/credit`), or what `compile_model` returned.
        batches: `pyarrow.RecordBatch`es, one or many, or what gives some (a `RecordBatchReader`, a table of
            pyarrow, pandas or polars, a query of DuckDB); columns are found by name.
        keep: columns of the batches that go into the answer as they are, such as an id.
        threads: rows are explained on so many cores; None for all.
        numbered: whether `row` is there; it means nothing where a stream is one of many.

    Raises:
        InvalidOptionError, InvalidReferencesError: columns or values that the model cannot take.
        RepositoryError: no such entry.
    """
    opened = opened_entry(entry)
    memory = opened.compiled.manifest.memory
    parts, count = parts_of(batches, threads, lambda n: max(rows_that_fit(memory, n * ROWS) // n, 1))
    return in_turn(partial(_explained, opened, tuple(keep), numbered), parts, count)


def parts_of(
    batches: Any, threads: int | None, most: Callable[[int], int]
) -> tuple[Iterator[tuple[int, Any]], int]:
    """Return the batches in parts, each with the number of its first row, and how many threads work on them.

    Args:
        most: the rows of a part at most, by the number of threads.

    Raises:
        InvalidOptionError: no number of threads, or no batches.
    """
    count = available_cores() if threads is None else threads
    if not isinstance(count, int) or count < 1:
        raise InvalidOptionError(f"threads={threads}: give a whole number, 1 or more.")
    if hasattr(batches, "__arrow_c_stream__"):  # pandas, polars, DuckDB, or a table of Arrow
        import pyarrow as pa

        batches = pa.RecordBatchReader.from_stream(batches)
    elif hasattr(batches, "num_rows"):
        batches = [batches]
    elif not isinstance(batches, Iterable):
        raise _no_batches(batches)
    return _parts(batches, most(count)), count


def run_rows(compiled: Compiled) -> int:
    """Return how many rows of a batch the graph is run on at once."""
    return max(_FEWEST, _CACHE_BYTES // max(compiled.manifest.memory.work, 1))


def batches_schema(
    entry: Entry, given: Any = None, keep: Sequence[str] = (), *, numbered: bool = True
) -> Any:
    """Return the schema of the batches that `explain_batches` yields.

    Args:
        given: the schema of the input batches, if any of their columns are kept.

    Raises:
        InvalidOptionError: if a kept column is missing, or has the name of an answer's column.
    """
    return _answer(opened_entry(entry).nothing(), 0 if numbered else None, nothing_of(given), keep).schema


def nothing_of(schema: Any) -> Any:
    """Return a batch of a schema, or of None, without rows."""
    import pyarrow as pa

    fields = [] if schema is None else list(schema)
    return pa.record_batch([pa.array([], field.type) for field in fields], [f.name for f in fields])


@dataclass(frozen=True, eq=False)
class OpenedEntry:
    """An entry, with a session whose runs take one core each: a thread of ours runs on each."""

    compiled: Compiled
    run: Run

    def explain(self, batch: Any) -> Explanation:
        """Return the explanation of a batch's rows, as columns need it."""
        inputs, step = inputs_of_arrow(self.compiled, batch), run_rows(self.compiled)
        parts = [
            self.run({name: rows[start : start + step] for name, rows in inputs.items()}, self.wanted)
            for start in range(0, batch.num_rows, step)
        ]
        answers = {name: np.concatenate([part[name] for part in parts]) for name in self.wanted}
        return Explanation(answers, self.compiled.manifest, inputs)

    @cached_property
    def wanted(self) -> list[str]:
        """The outputs that columns are made of."""
        manifest = self.compiled.manifest
        named = [name for kind, name in manifest.values.items() if OUTPUT_KINDS[kind].in_tables]
        named += [name for item in manifest.attributed for name in item.outputs.values()]
        named += [manifest.explained_output]
        there = {value.name for value in outline(self.compiled.graph).graph.output}
        return [name for name in dict.fromkeys(named) if name in there]

    def nothing(self) -> Explanation:
        """Return an answer about no rows."""
        outputs = {}
        for value in outline(self.compiled.graph).graph.output:
            tensor = value.type.tensor_type
            shape = [0, *(d.dim_value for d in tensor.shape.dim[1:])]
            outputs[value.name] = np.zeros(shape, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        return Explanation(outputs, self.compiled.manifest, {})


def opened_entry(entry: Entry) -> OpenedEntry:
    """Open an entry, or return it as this process has it open already. Raise RepositoryError."""
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


def _parts(batches: Iterable[Any], rows: int) -> Iterator[tuple[int, Any]]:
    """Yield the batches in parts of at most `rows` rows, each with the number of its first row."""
    first = 0
    for batch in batches:
        if not hasattr(batch, "num_rows"):
            raise _no_batches(batch)
        for start in range(0, batch.num_rows, rows):
            yield first + start, batch.slice(start, rows)
        first += batch.num_rows


def _no_batches(given: Any) -> InvalidOptionError:
    return InvalidOptionError(
        f"a {type(given).__name__} where Arrow record batches are due: a table of pandas, polars, pyarrow or "
        "DuckDB is taken as well."
    )


def _explained(opened: OpenedEntry, keep: tuple[str, ...], numbered: bool, part: tuple[int, Any]) -> Any:
    first, batch = part
    with naming_rows(first, batch):
        answer = opened.explain(batch)
        table = _answer(answer, first if numbered else None, batch, keep)
    odd = [(i, own) for i, own in enumerate(answer.manifest.unknown_texts(answer.inputs)) if own]
    if odd:
        (row, own), more = odd[0], f"; and {len(odd) - 1} more of its rows" * (len(odd) > 1)
        warn(f"batch from row {first}: row {first + row}: {'; '.join(own)}{more}", stacklevel=2)
    return table


@contextmanager
def naming_rows(first: int, batch: Any) -> Iterator[None]:
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


def kept_columns(batch: Any, keep: Sequence[str], own: Collection[str] = ()) -> dict[str, Any]:
    """Return columns of a batch, to be written beside `own`.

    Raises:
        InvalidOptionError: one is not there, or is named as one of `own`.
    """
    missing = [name for name in keep if name not in batch.schema.names]
    if missing:
        raise InvalidOptionError(f"no column {missing} to keep; there are {batch.schema.names}.")
    check_kept(keep, own)
    return {name: batch.column(name) for name in keep}


def with_kept(found: Any, batch: Any, keep: Sequence[str]) -> Any:
    """Return a record batch with columns of another beside its own; raise as `kept_columns`."""
    for name, column in kept_columns(batch, keep, found.schema.names).items():
        found = found.append_column(batch.schema.field(name), column)
    return found


def _answer(answer: Explanation, first: int | None, batch: Any, keep: Sequence[str]) -> Any:
    """Return an answer as a record batch: a row for each row and target, numbered from `first` on."""
    import pyarrow as pa

    manifest = answer.manifest
    columns: dict[str, Any] = dict(columns_of_answer(answer, first or 0))
    if first is None:
        del columns["row"]
    kept = kept_columns(batch, keep, columns)
    n, targets = answer[manifest.explained_value].shape
    rows = np.repeat(np.arange(n), targets)
    columns |= {name: column if targets == 1 else column.take(rows) for name, column in kept.items()}
    return pa.record_batch(columns).replace_schema_metadata({DIGEST: manifest.digests.explanation})


def in_turn(work: Callable[[Any], Any], parts: Iterable[Any], threads: int) -> Iterator[Any]:
    """Yield `work`'s result for each part, in the parts' order, on `threads` threads."""
    waiting: deque[Future[Any]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for part in parts:
            waiting.append(pool.submit(work, part))
            if len(waiting) > _AHEAD * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
