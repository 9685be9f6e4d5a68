"""A portfolio explained by Spark or Ray on this machine, beside `rationale explain` and a bare loop.

    python -m benchmarks.engines --engine spark|ray [credit trees] [--rows 1000000] [--turns 3]
        [--bare-rows 500]

Spark is a local cluster of two workers with one core each; Ray has two cores. Each engine has explained a
tenth of the rows before, so that its start is not counted. Rows per second of each way, in turn, over the
same files; the median of the engine's ratios to the bare loop (see benchmarks.portfolio), by the clock and by
the CPU time of all processes, which counts on a machine that does other things too; every row is compared.
pip install 'rationale[spark]' (and a Java) or 'rationale[ray]', and psutil, first.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.arguments import parser_of, positive
from benchmarks.decisions import SUBJECTS
from benchmarks.portfolio import bare, known_rows, seconds_of, write_rows
from compiler.explanations.arrow import ROWS
from compiler.explanations.portfolio import explain_portfolio
from compiler.terminal import reporting_errors

ROOT = Path(__file__).parents[1]
WORKERS = 2
Explain = Callable[[Path, Path, Path], object]  # an entry, files of rows, and where the answers go


@contextmanager
def by_spark() -> Iterator[Explain]:
    """Yield what explains files on a local cluster."""
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
    """Yield what explains files on Ray's own processes."""
    import ray

    from rationale.ray import explain

    paths = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, runtime_env=paths)
    try:
        yield lambda entry, rows, to: explain(ray.data.read_parquet(str(rows)), entry, ["id"]).write_parquet(
            str(to), use_dictionary=False
        )
    finally:
        ray.shutdown()


ENGINES = {"spark": by_spark, "ray": by_ray}


def answers(folder: Path) -> Any:
    """Return what was written, in the order of the rows."""
    from pyarrow import parquet

    table = parquet.read_table(folder)
    return table.drop_columns([name for name in table.column_names if name == "row"]).sort_by("id")


def measured(engine: Explain, name: str, rows: int, turns: int, bare_rows: int) -> str:
    """Return a line about a model. Raises AssertionError where a row is explained otherwise."""
    compiled, instances = SUBJECTS[name]()
    names = list(instances[0])
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)
        entry = compiled.write(folder / "models", name).parent / name
        write_rows(folder / "few", names, known_rows(instances), rows // 10)
        write_rows(folder / "all", names, known_rows(instances), rows)
        engine(entry, folder / "few", folder / "warm")
        ways: list[Callable[[int], object]] = [
            lambda _: bare(compiled, folder / "all", names, bare_rows),
            lambda i: explain_portfolio(entry, str(folder / "all"), str(folder / f"own-{i}"), ["id"]),
            lambda i: engine(entry, folder / "all", folder / f"its-{i}"),
        ]
        taken = np.array([[times_of(partial(way, i)) for way in ways] for i in range(turns)])
        due, found = answers(folder / "own-0"), answers(folder / "its-0")
        for column in due.column_names:
            np.testing.assert_allclose(found[column], due[column], rtol=1e-5, atol=1e-6)
    speeds = "".join(f"{speed:14,.0f}" for speed in rows / np.median(taken[:, :, 0], axis=0))
    ratios = np.median(taken[:, :1] / taken, axis=0)  # [way, clock and CPU]
    return f"{name:8}{speeds}{ratios[1, 0]:12.2f}{ratios[2, 0]:10.2f}{ratios[2, 1]:10.2f}"


def times_of(run: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that it takes, and of CPU in this process and those that it has started."""
    before = _cpu_s()
    taken = seconds_of(run)
    return taken, _cpu_s() - before


def _cpu_s() -> float:
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return float(sum(t.user + t.system + t.children_user + t.children_system for t in times))


def main() -> None:
    parser = parser_of(__doc__, SUBJECTS, many=True)
    parser.add_argument("--engine", choices=tuple(ENGINES), required=True, help="which one")
    parser.add_argument("--rows", type=positive, default=1_000_000, help="of each model (1,000,000)")
    parser.add_argument("--turns", type=positive, default=3, help="of either way (3)")
    parser.add_argument("--bare-rows", type=positive, default=ROWS, help=f"of the bare loop's runs ({ROWS})")
    asked = parser.parse_args()
    with reporting_errors(), ENGINES[asked.engine]() as engine:
        heads = (
            f"{'bare':>14}{'rationale':>14}{asked.engine:>14}{'rationale':>12}{asked.engine:>10}{'CPU':>10}"
        )
        print(f"{'':8}{'rows/s':>14}{'':28}{'ratio to bare':>18}\n{'':8}{heads}")
        for name in asked.models or SUBJECTS:
            print(measured(engine, name, asked.rows, asked.turns, asked.bare_rows), flush=True)


if __name__ == "__main__":
    main()
