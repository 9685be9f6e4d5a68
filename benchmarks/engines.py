"""A portfolio explained by Spark or Ray on this machine, beside `rationale explain`, on the same files.

    python -m benchmarks.engines --engine spark|ray [credit trees] [--rows 1000000] [--turns 3]

Spark is a local cluster of two workers with one core each; Ray has two cores. Each engine has explained a
tenth of the rows before, so that its start is not counted. Rows per second of either way, in turn, and the
median of the ratios of their times; every row is compared. pip install 'rationale[spark]' (and a Java) or
'rationale[ray]' first.
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

from benchmarks.arguments import parser_of, positive
from benchmarks.decisions import SUBJECTS
from benchmarks.portfolio import known_rows, seconds_of, write_rows
from compiler.explanations.portfolio import explain_portfolio
from compiler.terminal import told_plainly

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
        yield lambda entry, rows, to: explain(session.read.parquet(str(rows)), entry, ["id"]).write.parquet(
            str(to)
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
            str(to)
        )
    finally:
        ray.shutdown()


ENGINES = {"spark": by_spark, "ray": by_ray}


def answers(folder: Path) -> Any:
    """Return what was written, in the order of the rows."""
    from pyarrow import parquet

    table = parquet.read_table(folder)
    return table.drop_columns([name for name in table.column_names if name == "row"]).sort_by("id")


def measured(engine: Explain, name: str, rows: int, turns: int) -> str:
    """Return a line about a model. Raises AssertionError where a row is explained otherwise."""
    compiled, instances = SUBJECTS[name]()
    names = list(instances[0])
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)
        entry = compiled.write(folder / "models", name).parent / name
        write_rows(folder / "few", names, known_rows(instances), rows // 10)
        write_rows(folder / "all", names, known_rows(instances), rows)
        engine(entry, folder / "few", folder / "warm")
        own, its = [], []
        for i in range(turns):
            save = folder / f"own-{i}"
            own.append(seconds_of(partial(explain_portfolio, entry, str(folder / "all"), str(save), ["id"])))
            its.append(seconds_of(partial(engine, entry, folder / "all", folder / f"its-{i}")))
        due, found = answers(folder / "own-0"), answers(folder / "its-0")
        for column in due.column_names:
            np.testing.assert_allclose(found[column], due[column], rtol=1e-5, atol=1e-6)
    speeds = [rows / float(np.median(times)) for times in (own, its)]
    return f"{name:8}{speeds[0]:14,.0f}{speeds[1]:14,.0f}{np.median(np.divide(own, its)):10.2f}"


def main() -> None:
    parser = parser_of(__doc__, SUBJECTS, many=True)
    parser.add_argument("--engine", choices=tuple(ENGINES), required=True, help="which one")
    parser.add_argument("--rows", type=positive, default=1_000_000, help="of each model (1,000,000)")
    parser.add_argument("--turns", type=positive, default=3, help="of either way (3)")
    asked = parser.parse_args()
    with told_plainly(), ENGINES[asked.engine]() as engine:
        print(f"{'rows/s':8}{'rationale':>14}{asked.engine:>14}{'ratio':>10}")
        for name in asked.models or SUBJECTS:
            print(measured(engine, name, asked.rows, asked.turns), flush=True)


if __name__ == "__main__":
    main()
