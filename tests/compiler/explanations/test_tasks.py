"""Adapters give rows to tasks of Spark, Ray and Dask. Stand-ins for their tables record each call."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import rationale
from rationale import DeepShap, InvalidOptionError, compile_model, dask, ray, spark
from tests.compiler.models import FEATURES, NAMES, mlp, rows

COLUMNS = [*NAMES, "id"]


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = mlp((FEATURES, 16, 1), last="Sigmoid")
    profile = {"output": "y", "threshold": 0.5, "adverse": "below"}
    folder = tmp_path_factory.mktemp("models")
    compile_model(model, DeepShap(rows(6, FEATURES)), feature_names=NAMES, decision=profile).write(
        folder, "m"
    )
    return folder / "m"


def table(count: int) -> pa.Table:
    columns = dict(zip(NAMES, rows(count, FEATURES).T, strict=True))
    return pa.table({**columns, "id": [f"loan-{i}" for i in range(count)]})


class RayRows:
    """A Dataset of one block."""

    def __init__(self) -> None:
        self.blocks: list[Any] = []
        self.options: dict[str, Any] = {}

    def repartition(self, *, target_num_rows_per_block: int) -> "RayRows":
        self.blocks.append(target_num_rows_per_block)
        return self

    def map_batches(self, task: Any, **options: Any) -> Any:
        self.options = options
        return task(table(5))


VERBS = {"explain": rationale.explain_batches, "decide": rationale.decide_batches}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("more", "blocks"),
    [({}, [50_000]), ({"task_rows": 7}, [7]), ({"task_rows": 1}, [1]), ({"task_rows": None}, [])],
    ids=str,
)
def test_ray_divides_rows_into_blocks_of_a_task(
    entry: Path, verb: str, more: dict[str, Any], blocks: list[int]
) -> None:
    dataset = RayRows()
    answer = getattr(ray, verb)(dataset, entry, ["id"], **more)
    assert dataset.blocks == blocks
    assert dataset.options == {"batch_size": None, "batch_format": "pyarrow", "zero_copy_batch": True}
    expected = pa.Table.from_batches(VERBS[verb](entry, table(5), keep=["id"], numbered=False))
    assert answer.equals(expected)
    assert answer.column_names[-1] == "id"
    assert "row" not in answer.column_names


class SparkRows:
    """A DataFrame of two batches of one partition."""

    def __init__(self) -> None:
        from pyspark.sql import types

        kinds = [*[types.FloatType()] * len(NAMES), types.StringType()]
        pairs = zip(COLUMNS, kinds, strict=True)
        self.schema = types.StructType([types.StructField(name, kind) for name, kind in pairs])

    def mapInArrow(self, task: Any, schema: Any) -> Any:  # noqa: N802  # Spark's name
        return list(task(table(5).to_batches(max_chunksize=3))), schema


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("more", "threads"), [({}, 1), ({"threads": 1}, 1), ({"threads": 4}, 4)], ids=["default", "1", "4"]
)
def test_spark_explains_batches_on_the_cores_of_a_task(
    entry: Path, verb: str, more: dict[str, Any], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def work(*arguments: Any, **options: Any) -> Any:
        asked.append(options)
        return VERBS[verb](*arguments, **options)

    monkeypatch.setattr(spark, f"{verb}_batches", work)
    batches, schema = getattr(spark, verb)(SparkRows(), entry, ["id"], **more)
    assert asked == [{"keep": ("id",), "threads": threads, "numbered": False}]
    answer = pa.Table.from_batches(batches)
    assert answer.column_names == schema.names
    assert answer["id"].to_pylist() == [f"loan-{i}" for i in range(5)]


class DaskRows:
    """A DataFrame of two partitions."""

    def __init__(self) -> None:
        frame = table(5).to_pandas().set_index(pd.Index([3, 1, 4, 1, 5]))  # one index comes twice
        self._meta, self._parts = frame.iloc[:0], [frame.iloc[:2], frame.iloc[2:]]

    def map_partitions(self, work: Any, *arguments: Any, meta: pd.DataFrame) -> Any:
        return [work(part, *arguments) for part in self._parts], meta


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("threads", [1, 3])
def test_dask_keeps_the_index_of_each_row(
    entry: Path, verb: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def work(*arguments: Any, threads: int) -> Any:
        asked.append(threads)
        return VERBS[verb](*arguments, threads=threads)

    monkeypatch.setattr(dask, f"{verb}_batches", work)
    parts, meta = getattr(dask, verb)(DaskRows(), entry, ["id"], threads=threads)
    assert asked == [threads] * 3  # the types of a partition without rows, and both partitions
    assert [list(part.index) for part in parts] == [[3, 1], [4, 1, 5]]
    answer = pd.concat(parts)
    assert answer["id"].tolist() == [f"loan-{i}" for i in range(5)]
    assert answer.dtypes.equals(meta.dtypes)
    expected = pa.Table.from_batches(VERBS[verb](entry, table(5))).to_pandas()
    column = "explained_value"
    np.testing.assert_array_equal(answer[column], expected[column])


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("keep", [["loan"], ["id", "explained_value"]], ids=str)
@pytest.mark.parametrize("engine", [dask, spark], ids=["dask", "spark"])
def test_what_cannot_be_kept_is_refused_before_a_row_is_read(
    entry: Path, verb: str, engine: Any, keep: list[str]
) -> None:
    dataset = DaskRows() if engine is dask else SparkRows()
    with pytest.raises(InvalidOptionError, match="no column"):
        getattr(engine, verb)(dataset, entry, keep)
