"""A portfolio of rows in parquet files, explained by `rationale explain` and by a bare ONNX Runtime loop.

    python -m benchmarks.portfolio [small credit wide trees leaves] [--engine spark|ray] [--rows 1000000]
        [--turns 3] [--bare-rows N]

Networks: `small` has 23-64-64-2 units and 50 references, `wide` 24-256-256-2 and 100, both with random
weights, and `credit` is that of examples/credit. Trees: `trees` is the XGBoost of benchmarks.trees.model,
`leaves` a LightGBM of 100 trees with 31 leaves each on 23 features, both with 1,000 references.

The bare loop has the rows in memory, runs the same graph on as many at a time (or on --bare-rows), in a
thread on each core, and keeps nothing. `rationale explain` reads the files, checks the rows, and writes a
file for each; and so does an engine: Spark is a local cluster of two workers with one core each, Ray has
two cores. An engine has explained a tenth of the rows before, so that its start is not counted, and its
rows are compared.

Rows per second of each way, in turn; the median of the ratios to the bare loop by the clock and, in brackets,
by the CPU time of all processes, which counts on a machine that does other things too; the same ratios of the
command in a process of its own, whose start counts; and by how much the memory of this process grew from a
tenth of the rows (in whole batches: ONNX Runtime keeps what the largest took) to all, before any loop ran.
Engines need the extra `spark` (and a Java) or `ray`.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil

from benchmarks.cases import parser_of, positive, reporting_errors
from benchmarks.decisions import credit, trees
from benchmarks.runtime import session_of
from benchmarks.timing import REST_S, memory_watched
from benchmarks.trees.model import data, trained
from rationale import DeepShap, TreeShap, compile_model
from rationale.artifact.compiled import Compiled
from rationale.portfolios.arrow import run_rows
from rationale.portfolios.portfolio import explain_portfolio
from rationale.schema.machine import available_cores

FILES = 10
ROOT = Path(__file__).parents[1]
WORKERS = 2
Explain = Callable[[Path, Path, Path], object]  # an entry, files of rows, and where the answers go
Subject = tuple[Compiled, np.ndarray]  # and rows to draw a portfolio from


def perceptron(sizes: Sequence[int], references: int) -> Subject:
    """Return linear layers of these sizes with ReLU between them, of random weights, and normal rows."""
    random = np.random.default_rng(0)
    nodes, weights, last = list[onnx.NodeProto](), list[onnx.TensorProto](), len(sizes) - 2
    for i, shape in enumerate(pairwise(sizes)):
        weight = random.standard_normal(shape) * np.sqrt(2 / shape[0])
        weights.append(onnx.numpy_helper.from_array(weight.astype(np.float32), f"w{i}"))
        nodes.append(onnx.helper.make_node("Gemm", [f"a{i}", f"w{i}"], [f"z{i}"]))
        nodes += [onnx.helper.make_node("Relu", [f"z{i}"], [f"a{i + 1}"])] if i < last else []
    ends = [("a0", sizes[0]), (f"z{last}", sizes[-1])]
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["n", size]) for n, size in ends)
    graph = onnx.helper.make_graph(nodes, "perceptron", [x], [y], weights)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    rows = random.standard_normal((5000, sizes[0])).astype(np.float32)
    names = [f"f{i}" for i in range(sizes[0])]
    return compile_model(model, DeepShap(rows[:references]), feature_names=names), rows[references:]


def leaves() -> Subject:
    """Return 100 trees of LightGBM × 31 leaves on 23 features with 1,000 references, and other rows."""
    booster = trained("lightgbm", trees=100, leaves=31, depth=-1, features=23)
    _, _, rows = data(23)
    names = [f"f{i}" for i in range(23)]
    return compile_model(booster, TreeShap(rows[:1000]), feature_names=names), rows[1000:]


def decided(make: Callable[[], tuple[Compiled, list[Any]]]) -> Subject:
    """Return a subject of benchmarks.decisions."""
    compiled, instances = make()
    return compiled, known_rows(instances)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "small": partial(perceptron, (23, 64, 64, 2), 50),
    "credit": partial(decided, credit),
    "wide": partial(perceptron, (24, 256, 256, 2), 100),
    "trees": partial(decided, trees),
    "leaves": leaves,
}


def write_rows(folder: Path, names: Sequence[str], rows_to_draw: np.ndarray, rows: int) -> np.ndarray:
    """Write rows drawn from known ones, and moved a little, as files; return them."""
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir()
    random, written = np.random.default_rng(0), []
    for i in range(FILES):
        x = rows_to_draw[random.integers(0, len(rows_to_draw), rows // FILES)]
        x = (x * random.uniform(0.9, 1.1, x.shape)).astype(np.float32)
        table = pa.table({"id": np.arange(len(x)) + i * len(x), **dict(zip(names, x.T, strict=True))})
        parquet.write_table(table, folder / f"part-{i}.parquet")
        written.append(x)
    return np.concatenate(written)


def known_rows(instances: Sequence[Mapping[str, float | None]]) -> np.ndarray:
    """Return instances as [rows, features]; missing values are NaN."""
    return np.array([[np.nan if v is None else v for v in row.values()] for row in instances], np.float32)


def bare(compiled: Compiled, rows: np.ndarray, at_once: int) -> None:
    """Run the graph on every row, `at_once` at a time; a thread per core calls one single-thread session."""
    session = session_of(compiled.model.SerializeToString(), 1, on_cpu=True)
    (graph_input,) = session.get_inputs()

    def run(start: int) -> None:
        session.run(None, {graph_input.name: rows[start : start + at_once]})

    with ThreadPoolExecutor(available_cores()) as pool:
        for _ in pool.map(run, range(0, len(rows), at_once)):
            pass


def by_command(entry: Path, rows: Path, to: Path) -> None:
    """Explain in a process of its own."""
    options = ["--repository", str(entry.parent), "--input", str(rows), "--save", str(to), "--keep", "id"]
    command = [sys.executable, "-m", "rationale", "explain", entry.name, *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 (ours)


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


def measured(name: str, rows: int, turns: int, bare_rows: int | None, engine: Explain | None) -> str:
    """Return a line about a model. Raises AssertionError if an engine's explanation of a row differs."""
    compiled, seeds = SUBJECTS[name]()
    (explained_input,) = compiled.manifest.explained
    names = explained_input.feature_names or ()
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)
        entry = compiled.write(folder / "models", name).parent / name
        write_rows(folder / "few", names, seeds, max(rows // 10, FILES * run_rows(compiled)))
        x = write_rows(folder / "all", names, seeds, rows)

        def explained(source: str, to: str) -> None:
            explain_portfolio(entry, str(folder / source), str(folder / to), ["id"])

        peaks = []
        for folder_name in ("few", "all"):
            with memory_watched() as memory:
                explained(folder_name, "warm")
            peaks.append(max(memory))
        grown = max(peaks[1] - peaks[0], 0) >> 20
        ways: list[Callable[[int], object]] = [
            lambda _: bare(compiled, x, bare_rows or run_rows(compiled)),
            lambda i: explained("all", f"own-{i}"),
            lambda i: by_command(entry, folder / "all", folder / f"command-{i}"),
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
    speeds = "".join(f"{speed:12,.0f}" for speed in rows / np.median(seconds[:, :, 0], axis=0))
    ratios = np.median(seconds[:, :1] / seconds, axis=0)[1:]  # [way, clock and CPU]
    shown = "".join(f"{clock:10.2f}{f'({cpu:.2f})':>8}" for clock, cpu in ratios)
    return f"{name:8}{speeds}{shown}{grown:9} MB"


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, SUBJECTS, many=True)
    parser.add_argument("--engine", choices=tuple(ENGINES), help="beside `rationale explain`")
    parser.add_argument("--rows", type=positive, default=1_000_000, help="of each model (1,000,000)")
    parser.add_argument("--turns", type=positive, default=3, help="of each way (3)")
    parser.add_argument("--bare-rows", type=positive, help="of the bare loop's runs (as many as ours)")
    options = parser.parse_args(argv)
    ways = ["rationale", "command", *filter(None, [options.engine])]
    chosen: AbstractContextManager[Explain | None] = (
        ENGINES[options.engine]() if options.engine else nullcontext()
    )
    with reporting_errors(), chosen as engine:
        heads = "".join(f"{way:>12}" for way in ("bare", *ways)) + "".join(f"{way:>18}" for way in ways)
        print(f"rows/s  {heads}{'memory +':>12}")
        for name in options.models or SUBJECTS:
            print(measured(name, options.rows, options.turns, options.bare_rows, engine), flush=True)


if __name__ == "__main__":
    main()
