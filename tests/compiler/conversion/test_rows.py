"""Rows of a table, found by what a model says of its columns."""

import sys
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import pandas as pd
import polars as pl
import pytest

from rationale import Compiled, InvalidReferencesError, TreeShap, compile_model, convert
from rationale.conversion.rows import Features, Rows, rows_of
from rationale.from_files import compile_files
from rationale.schema.request import CompileRequest

THREE = np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize("columns", [["a b", "a_b"], ["a_b", "a b"]])
@pytest.mark.parametrize("names", [("a b", "a_b"), ("a_b",), ("a b",)])
def test_a_name_is_found_as_it_stands(columns: list[str], names: Any) -> None:
    table = pd.DataFrame(THREE[:, :2], columns=columns)
    np.testing.assert_array_equal(rows_of(table, Features(len(names), names)).numbers(), table[[*names]])


def test_a_space_is_no_underscore() -> None:
    table = pd.DataFrame(THREE[:, :1], columns=["a b"])
    with pytest.raises(InvalidReferencesError, match=r"'a_b'"):
        rows_of(table, Features(1, ("a_b",)))


def test_but_to_lightgbm() -> None:
    table = pd.DataFrame(THREE, columns=["c", "a b", "other"])
    features = Features(2, ("a_b", "c"), underscored=True)
    np.testing.assert_array_equal(rows_of(table, features).numbers(), THREE[:, [1, 0]])
    table["a_b"] = 0.0
    with pytest.raises(InvalidReferencesError, match=r"'a b', 'a_b' .*'a_b'"):
        rows_of(table, features)


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame", "converted"])
def test_two_names_that_are_one_to_lightgbm_are_refused(kind: str, tmp_path: Path) -> None:
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 2)), columns=["a b", "c"])
    model = lgb.LGBMRegressor(n_estimators=3, verbose=-1).fit(table, table["a b"])
    model.booster_.save_model(tmp_path / "model.txt")

    def compiled(rows: pd.DataFrame) -> Compiled:
        if kind == "frame":
            return compile_model(model, TreeShap(rows))
        if kind == "converted":
            return compile_model(convert(model), TreeShap(rows))
        rows.to_csv(tmp_path / "r.csv", index=False)
        rows.to_parquet(tmp_path / "r.parquet")
        request = CompileRequest(method="treeshap")
        return compile_files(request, tmp_path / "model.txt", tmp_path / f"r.{kind}")

    answer = compiled(table[:20]).explain(table[20:25].to_numpy(np.float32))
    assert answer["variable"][:, 0] == pytest.approx(model.predict(table[20:25]), abs=1e-6)
    with pytest.raises(InvalidReferencesError, match=r"'a b', 'a_b' .*'a_b'"):
        compiled(table[:20].assign(a_b=0.0))


@pytest.mark.parametrize("example", [THREE, pd.DataFrame(THREE)], ids=["array", "positions"])
@pytest.mark.parametrize(("count", "figures"), [(2, r"\b3 columns.* 2\b"), (4, r"\b3 columns.* 4\b")])
def test_columns_too_many_or_too_few(example: Any, count: int, figures: str) -> None:
    with pytest.raises(InvalidReferencesError, match=figures):
        rows_of(example, Features(count, None))
    assert rows_of(example, Features(3, None)).numbers().tolist() == THREE.tolist()


def test_a_table_without_rows_is_refused() -> None:
    model = lgb.LGBMRegressor(n_estimators=1).fit(THREE, [0.0, 1.0])
    with pytest.raises(InvalidReferencesError, match="at least one row"):
        convert(model, pd.DataFrame(THREE[:0]))


def test_whole_numbers_stay_so_in_a_frame_alone() -> None:
    table = pd.DataFrame({"age": [31, 45], "income": [1.5, 2.0], "region": ["north", "south"]})
    frame = rows_of(table, Features(3, None)).frame()
    assert list(frame.dtypes)[:2] == [np.int64, np.float64]
    assert rows_of(table[["age"]], Features(1, None)).numbers().dtype == np.float64


def test_a_frame_is_of_polars_where_pandas_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pl.DataFrame({"age": [31, 45], "income": [1.5, None], "region": ["north", None]})
    rows = rows_of(table, Features(3, ("region", "income", "age")))
    assert isinstance(rows.frame(), pd.DataFrame)
    monkeypatch.setitem(sys.modules, "pandas", None)
    frame = rows.frame()
    assert frame.columns == ["region", "income", "age"]
    assert frame.dtypes == [pl.String, pl.Float64, pl.Int64]
    assert frame["region"].to_list() == ["north", None]
    assert np.isnan(frame["income"][1])
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(InvalidReferencesError, match=r"pandas.*polars"):
        rows.frame()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("more", "is_kept"), [(-1, True), (0, True), (1, False)])
def test_whole_numbers_are_kept_as_far_as_floats_tell_them_apart(sign: int, more: int, is_kept: bool) -> None:
    """2^53 itself is told apart from its neighbours below."""
    number = sign * ((1 << 53) + more)
    frame = rows_of(pd.DataFrame({"id": [0, number]}), Features(1, None))
    if is_kept:
        assert frame.numbers()[:, 0].tolist() == [0, number]
    else:
        with pytest.raises(InvalidReferencesError, match=r"'id' .* 2\^53"):
            frame.numbers()


@pytest.mark.parametrize("missing", ["", None, np.nan, pd.NA])
def test_a_missing_text_is_first_as_the_rows_have_it(missing: Any) -> None:
    """A fitted model that learned "" as a category does not know NaN."""
    rows = Rows((np.array(["own", missing, "rent"], object), np.array(["a", "b", "c"], object)), ("h", "w"))
    first, *forms = rows.missing_texts(0)
    assert first is missing
    assert [repr(form) for form in forms] == ["nan", "None"]
    assert [repr(form) for form in rows.missing_texts(1)] == ["nan", "None"]
    fed = np.array([["own"], [""]], object)
    (housing, _) = rows.from_onnx_inputs({"h": fed, "w": fed}, by_column=True).columns
    assert housing[0] == "own"
    assert housing[1] is missing
