"""A portfolio of rows in parquet files, explained by `rationale explain` and by a bare ONNX Runtime loop.

    python -m benchmarks.portfolio [credit trees] [--engine spark|ray] [--rows 1000000] [--turns 3]
        [--bare-rows 500]

`credit` is the network of examples/credit, `trees` the XGBoost of benchmarks.trees. The bare loop reads the
same files, runs the same graph on --bare-rows rows at a time in a thread on each core, and keeps nothing;
`rationale explain` also checks the rows, and writes a file for each, and so does an engine: Spark is a local
cluster of two workers with one core each, Ray has two cores; it has explained a tenth of the rows before, so
that its start is not counted, and its rows are compared.

Rows per second of each way, in turn; the median of the ratios to the bare loop by the clock and, in brackets,
by the CPU time of all processes, which counts on a machine that does other things too; and by how much the
memory of this process grew from a tenth of the rows (in whole batches: ONNX Runtime keeps what the largest
took) to all, before any loop ran. Engines need the extra `spark` (and a Java) or `ray`.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.cases import parser_of, positive, reporting_errors
from benchmarks.decisions import SUBJECTS
from benchmarks.runtime import session_of
from benchmarks.timing import REST_S, memory_watched
from rationale.artifact.compiled import Compiled
from rationale.portfolios.arrow import ROWS
from rationale.portfolios.portfolio import explain_portfolio
from rationale.schema.machine import available_cores

FILES = 10
ROOT = Path(__file__).parents[1]
WORKERS = 2
Explain = Callable[[Path, Path, Path], object]  # an entry, files of rows, and where the answers go


def write_rows(folder: Path, names: list[str], rows_to_draw: np.ndarray, rows: int) -> None:
    """Write rows drawn from known ones, and moved a little, as files."""
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir()
    random = np.random.default_rng(0)
    for i in range(FILES):
        x = rows_to_draw[random.integers(0, len(rows_to_draw), rows // FILES)]
        x = (x * random.uniform(0.9, 1.1, x.shape)).astype(np.float32)
        table = pa.table({"id": np.arange(len(x)) + i * len(x), **dict(zip(names, x.T, strict=True))})
        parquet.write_table(table, folder / f"part-{i}.parquet")


def known_rows(instances: Sequence[Mapping[str, float | None]]) -> np.ndarray:
    """Return instances as [rows, features]; missing values are NaN."""
    return np.array([[np.nan if v is None else v for v in row.values()] for row in instances], np.float32)


def bare(compiled: Compiled, folder: Path, names: list[str], at_once: int) -> None:
    """Run the graph on every row, `at_once` at a time; a thread per core calls one single-thread session."""
    from pyarrow import parquet

    session = session_of(compiled.model.SerializeToString(), 1, on_cpu=True)
    (graph_input,) = session.get_inputs()

    def run(batch: Any) -> None:
        x = np.stack([column.to_numpy(zero_copy_only=False) for column in batch.columns], axis=1)
        session.run(None, {graph_input.name: x})

    with ThreadPoolExecutor(available_cores()) as pool:
        for file in sorted(folder.glob("*.parquet")):
            for _ in pool.map(run, parquet.ParquetFile(file).iter_batches(at_once, columns=names)):
                pass


def times_of(run: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that it takes, and of CPU in this process and those that it has started."""
    time.sleep(REST_S)
    began, used = time.perf_counter(), _cpu_s()
    run()
    return time.perf_counter() - began, _cpu_s() - used


def _cpu_s() -> float:
    this_process = psutil.Process()
    times = [process.cpu_times() for process in (this_process, *this_process.children(recursive=True))]
    return float(sum(t.user + t.system + t.children_user + t.children_system for t in times))


def answers(folder: Path) -> Any:
    """Return the written answers, in the order of the rows."""
    from pyarrow import parquet

    table = parquet.read_table(folder)
    return table.drop_columns([name for name in table.column_names if name == "row"]).sort_by("id")


@contextmanager
def by_spark() -> Iterator[Explain]:
    """Yield a function that explains files on a local cluster."""
    from pyspark.sql import SparkSession

    from rationale.spark import explain

    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    builder = SparkSession.builder.master(f"local-cluster[{WORKERS},1,2048]")
    session = builder.config("spark.ui.enabled", "false").getOrCreate()
    try:
        yield (
            lambda entry, rows, to: (
                explain(session.read.parquet(str(rows)), entry, ["id"])
                .write.option("parquet.enable.dictionary", "false")
                .parquet(str(to))
            )
        )
    finally:
        session.stop()


@contextmanager
def by_ray() -> Iterator[Explain]:
    """Yield a function that explains files on Ray's own processes."""
    import ray

    from rationale.ray import explain

    paths = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, runtime_env=paths)
    ray.data.DataContext.get_current().use_datasource_v2 = False  # the second reads all files in one task

    def explained(entry: Path, rows: Path, to: Path) -> None:
        files = len(list(rows.glob("*.parquet")))
        dataset = ray.data.read_parquet(str(rows), override_num_blocks=files)
        explain(dataset, entry, ["id"], task_rows=None).write_parquet(str(to), use_dictionary=False)

    try:
        yield explained
    finally:
        ray.shutdown()


ENGINES = {"spark": by_spark, "ray": by_ray}


def measured(name: str, rows: int, turns: int, bare_rows: int, engine: Explain | None) -> str:
    """Return a line about a model. Raises AssertionError if an engine's explanation of a row differs."""
    compiled, instances = SUBJECTS[name]()
    names = list(instances[0])
    seeds = known_rows(instances)
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)
        entry = compiled.write(folder / "models", name).parent / name
        write_rows(folder / "few", names, seeds, max(rows // 10, FILES * ROWS))
        write_rows(folder / "all", names, seeds, rows)

        def explained(source: str, to: str) -> None:
            explain_portfolio(entry, str(folder / source), str(folder / to), ["id"])

        peaks = []
        for folder_name in ("few", "all"):
            with memory_watched() as memory:
                explained(folder_name, "warm")
            peaks.append(max(memory))
        grown = max(peaks[1] - peaks[0], 0) >> 20
        ways: list[Callable[[int], object]] = [
            lambda _: bare(compiled, folder / "all", names, bare_rows),
            lambda i: explained("all", f"own-{i}"),
        ]
        if engine is not None:
            run_engine = engine
            run_engine(entry, folder / "few", folder / "its-warm")
            ways.append(lambda i: run_engine(entry, folder / "all", folder / f"its-{i}"))
        seconds = np.array([[times_of(partial(way, i)) for way in ways] for i in range(turns)])
        if engine is not None:
            expected, actual = answers(folder / "own-0"), answers(folder / "its-0")
            for column in expected.column_names:
                np.testing.assert_allclose(actual[column], expected[column], rtol=1e-5, atol=1e-6)
    speeds = "".join(f"{speed:14,.0f}" for speed in rows / np.median(seconds[:, :, 0], axis=0))
    ratios = np.median(seconds[:, :1] / seconds, axis=0)[1:]  # [way, clock and CPU]
    shown = "".join(f"{clock:10.2f}{f'({cpu:.2f})':>8}" for clock, cpu in ratios)
    return f"{name:8}{speeds}{shown}{grown:9} MB"


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, SUBJECTS, many=True)
    parser.add_argument("--engine", choices=tuple(ENGINES), help="beside `rationale explain`")
    parser.add_argument("--rows", type=positive, default=1_000_000, help="of each model (1,000,000)")
    parser.add_argument("--turns", type=positive, default=3, help="of each way (3)")
    parser.add_argument("--bare-rows", type=positive, default=ROWS, help=f"of the bare loop's runs ({ROWS})")
    options = parser.parse_args(argv)
    ways = ["rationale", *filter(None, [options.engine])]
    chosen: AbstractContextManager[Explain | None] = (
        ENGINES[options.engine]() if options.engine else nullcontext()
    )
    with reporting_errors(), chosen as engine:
        heads = "".join(f"{way:>14}" for way in ("bare", *ways)) + "".join(f"{way:>18}" for way in ways)
        print(f"rows/s  {heads}{'memory +':>12}")
        for name in options.models or SUBJECTS:
            print(measured(name, options.rows, options.turns, options.bare_rows, engine), flush=True)


if __name__ == "__main__":
    main()
