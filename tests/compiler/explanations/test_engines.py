"""Spark, Ray and Dask explain and decide a dataset's rows as `explain_batches` and `decide_batches` do."""

import os
import sys
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

import rationale
from rationale import Compiled, DeepShap, InvalidOptionError, compile_model, ray, spark
from rationale.dask import decide as decide_by_dask
from rationale.dask import explain as explain_by_dask
from tests.compiler.models import FEATURES, NAMES, mlp, rows
from tests.needs import need

N, ROOT = 3000, Path(__file__).parents[3]
# Files of rows, and cores that explain them. Both engines start in half a minute; every run has stand-ins
# for them, and Dask's own engine.
SIZES = pytest.mark.parametrize(
    ("files", "cores"),
    [pytest.param(1, 1, marks=pytest.mark.full), pytest.param(3, 2, marks=pytest.mark.slow)],
)


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    compiled: Compiled = compile_model(mlp(), DeepShap(rows(6, FEATURES)), targets=[1], feature_names=NAMES)
    compiled.write(tmp_path / "models", "m")
    return tmp_path / "models" / "m"


@pytest.fixture
def deciding(tmp_path: Path) -> Path:
    model = mlp((FEATURES, 16, 1), last="Sigmoid")
    profile = {"output": "y", "threshold": 0.5, "adverse": "below"}
    compiled = compile_model(model, DeepShap(rows(6, FEATURES)), feature_names=NAMES, decision=profile)
    compiled.write(tmp_path / "models", "decides")
    return tmp_path / "models" / "decides"


@pytest.mark.parametrize("verb", [spark.explain, spark.decide])
def test_a_task_of_spark_takes_as_many_cores_as_it_is_given(verb: Any, entry: Path, deciding: Path) -> None:
    from pyspark.sql import types

    arguments: list[Any] = []

    class Rows:
        schema = types.StructType([types.StructField(name, types.FloatType()) for name in NAMES])

        def mapInArrow(self, task: Any, _: Any) -> None:  # noqa: N802  # Spark's name
            arguments.append(task.keywords["threads"])

    for more in ({}, {"threads": 3}):
        verb(Rows(), entry if verb is spark.explain else deciding, **more)
    assert arguments == [1, 3]


def test_a_task_of_ray_takes_one_core(entry: Path) -> None:
    dataset, thread_counts = pa.table(dict(zip(NAMES, rows(4, FEATURES).T, strict=True))), []

    def work(*arguments: Any, **options: Any) -> Any:
        thread_counts.append(options["threads"])
        return rationale.explain_batches(*arguments, **options)

    assert ray._answer_block(dataset, rationale.batches_schema, work, entry, ()).num_rows == 4
    assert thread_counts == [1]


@pytest.fixture
def files() -> int:
    return 3


@pytest.fixture
def loans(tmp_path: Path, files: int) -> Path:
    x = rows(N, FEATURES, seed=9)
    for i in range(files):
        block = slice(i * N // files, (i + 1) * N // files)
        columns = dict(zip(NAMES, x[block].T, strict=True))
        (tmp_path / "loans").mkdir(exist_ok=True)
        parquet.write_table(
            pa.table({"id": np.arange(N)[block], **columns}), tmp_path / "loans" / f"{i}.parquet"
        )
    return tmp_path / "loans"


def check(actual: pa.Table, entry: Path, loans: Path) -> None:
    expected = pa.Table.from_batches(
        rationale.explain_batches(entry, parquet.read_table(loans), keep=["id"])
    ).sort_by("id")
    assert actual.num_rows == N
    assert "row" not in actual.column_names
    for name in (*NAMES, "explained_value", "id"):
        np.testing.assert_allclose(actual.sort_by("id")[name], expected[name], rtol=1e-5, atol=1e-6)


def check_decisions(actual: pa.Table, entry: Path, loans: Path) -> None:
    actual = actual.sort_by("id")
    batches = rationale.decide_batches(entry, parquet.read_table(loans), keep=["id"])
    expected = pa.Table.from_batches(batches).sort_by("id").drop_columns(["row"])
    assert actual.column_names == expected.column_names
    assert {"approve", "decline"} == {*expected["decision"].to_pylist()}
    for name in ("id", "decision", "score", "reason_1_code", "reason_1_value_text", "warnings", "fault"):
        assert actual[name].to_pylist() == expected[name].to_pylist()


@SIZES
@pytest.mark.filterwarnings("ignore")  # of the engines, about themselves
def test_spark(entry: Path, deciding: Path, loans: Path, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    need("Java")
    from pyspark.sql import SparkSession

    from rationale.spark import decide, explain

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    builder = SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false")
    # A JVM that lives for seconds is done sooner without its second compiler.
    session = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1").getOrCreate()
    try:
        answers: Any = explain(session.read.parquet(str(loans)), entry, ["id"])
        check(answers.toArrow(), entry, loans)
        decisions: Any = decide(session.read.parquet(str(loans)), deciding, ["id"])
        check_decisions(decisions.toArrow(), deciding, loans)
    finally:
        session.stop()


@SIZES
@pytest.mark.filterwarnings("ignore")  # of the engines, about themselves
def test_ray(entry: Path, deciding: Path, loans: Path, cores: int, tmp_path: Path) -> None:
    import ray

    from rationale.ray import decide, explain

    paths = {"env_vars": {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}}
    ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False, runtime_env=paths)
    try:
        for task_rows in (500, None):
            to = tmp_path / f"reasons-{task_rows}"
            explain(ray.data.read_parquet(str(loans)), entry, ["id"], task_rows).write_parquet(str(to))
            check(parquet.read_table(to), entry, loans)
        dataset = ray.data.read_parquet(str(loans))
        decide(dataset, deciding, ["id"]).write_parquet(str(tmp_path / "decided"))
        check_decisions(parquet.read_table(tmp_path / "decided"), deciding, loans)
        with pytest.raises(InvalidOptionError, match="--decision"):
            decide(dataset, entry)
    finally:
        ray.shutdown()


def test_dask(entry: Path, loans: Path, tmp_path: Path) -> None:
    dataset = dd.read_parquet(loans)
    answers: Any = explain_by_dask(dataset, entry, ["id"])
    assert list(answers.dtypes) == list(answers.compute().dtypes)
    answers.to_parquet(tmp_path / "reasons")
    check(parquet.read_table(tmp_path / "reasons"), entry, loans)


def test_dask_decides(entry: Path, deciding: Path, loans: Path, tmp_path: Path) -> None:
    dataset = dd.read_parquet(loans)
    decisions: Any = decide_by_dask(dataset, deciding, ["id"])
    assert list(decisions.dtypes) == list(decisions.compute().dtypes)
    decisions.to_parquet(tmp_path / "decided")
    check_decisions(
        parquet.read_table(tmp_path / "decided").drop_columns(["__null_dask_index__"]), deciding, loans
    )
    with pytest.raises(InvalidOptionError, match="--decision"):
        decide_by_dask(dataset, entry)


def test_dask_keeps_the_index_and_types_of_each_row(tmp_path: Path) -> None:
    """Also where a row has an answer for each target, and a partition has no rows."""
    compiled = compile_model(mlp(), DeepShap(rows(6, FEATURES)), targets="all", feature_names=NAMES)
    compiled.write(tmp_path / "models", "all")
    frame = pd.DataFrame(rows(7, FEATURES), columns=NAMES, index=list("abcdefg"))
    frame["when"] = pd.date_range("2026-11-25", periods=7)
    frame["kind"] = pd.Series(["x", None, "y"] * 2 + ["x"], frame.index, "string")
    dataset: Any = dd.from_pandas(frame, npartitions=3)
    dataset = dataset[dataset.index != "g"]
    answers: Any = explain_by_dask(dataset, tmp_path / "models" / "all", ["when", "kind"])
    actual = answers.compute()
    assert list(actual.index) == [name for name in "abcdef" for _ in range(3)]
    assert list(actual["target"]) == [0, 1, 2] * 6
    pd.testing.assert_frame_equal(
        actual[["when", "kind"]], dataset[["when", "kind"]].compute().loc[actual.index]
    )


@pytest.mark.parametrize(("keep", "message"), [("loan", "no column"), ("age", r"\['age'\]")])
def test_dask_knows_what_cannot_be_kept_before_a_row_is_read(
    entry: Path, loans: Path, keep: str, message: str
) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        explain_by_dask(dd.read_parquet(loans), entry, [keep])
