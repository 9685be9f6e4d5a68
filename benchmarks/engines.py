"""Spark and Ray on this machine, as `benchmarks.portfolio` asks them."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

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
