"""Tables in memory: columns are matched by name, whichever library holds them."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from rationale import (
    Compiled,
    DeepShap,
    ExpectedGradients,
    Gradient,
    IntegratedGradients,
    Lrp,
    OpenReferences,
    SmoothGrad,
    ZBox,
    compile_model,
    load,
)
from rationale.errors import InvalidOptionError, InvalidReferencesError, RepositoryError
from rationale.methods.engine import Method
from rationale.tables.frames import as_texts, columns_in_order, frame_of, index_of
from tests.compiler.models import FEATURES, HIDDEN, NAMES, mlp, parsed, rows, two_inputs

R, X = rows(4, FEATURES), rows(3, FEATURES, seed=9)
BACK = NAMES[::-1]


def arrow(table: pd.DataFrame) -> pa.Table:
    return pa.Table.from_arrays(
        [pa.array(column) for _, column in table.items()], names=[str(name) for name in table]
    )


LIBRARIES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda table: table,
    "pyarrow": arrow,
    "record batch": lambda table: arrow(table).combine_chunks().to_batches()[0],
    "polars": lambda table: pl.from_arrow(arrow(table)),
    "duckdb": lambda table: duckdb.from_arrow(arrow(table)),
}


def table(values: np.ndarray, names: list[Any] | None = None) -> pd.DataFrame:
    return pd.DataFrame(values, columns=NAMES if names is None else names)


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_model(mlp(), DeepShap(table(R)), targets="all")


def assert_same(answer: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    assert set(answer) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(answer[name], value)


# -- rows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", LIBRARIES)
def test_rows_are_matched_by_name(compiled: Compiled, library: str) -> None:
    make = LIBRARIES[library]
    for names in (NAMES, BACK, ["debt", "age", "cards", "years", "income"]):
        frame_ = make(table(X)[names])
        assert_same(compiled.explain(frame_), compiled.explain(X))
        assert_same(compiled.explain({"x": frame_}), compiled.explain(X))


@pytest.mark.parametrize("library", LIBRARIES)
def test_columns_that_the_model_does_not_read_are_passed_over(compiled: Compiled, library: str) -> None:
    more = table(X)[BACK].assign(branch="north", id=[7, 8, 9])
    if library in ("pandas", "pyarrow"):
        more.insert(2, "id", 1, allow_duplicates=True)
    assert_same(compiled.explain(LIBRARIES[library](more)), compiled.explain(X))
    assert_same(compiled.explain({"x": LIBRARIES[library](more)}), compiled.explain(X))


def test_an_entry_that_was_written_knows_the_names(compiled: Compiled, tmp_path: Path) -> None:
    compiled.write(tmp_path, "m")
    assert_same(load(tmp_path, "m").explain(table(X)[BACK]), compiled.explain(X))
    assert_same(load(str(tmp_path), "m").explain(X), compiled.explain(X))
    with pytest.raises(RepositoryError, match="n_explain"):
        load(tmp_path, "n")


COLUMNS = {
    "unknown and missing": (
        table(X).assign(id=7).drop(columns="age"),
        r"'x': columns 'id' are not features and columns 'age' are missing\. The features are",
    ),
    "missing": (table(X).drop(columns="debt"), r"'x': columns 'debt' are missing"),
    "renamed": (
        table(X, ["Age", *NAMES[1:]]),
        r"'Age' are not features and columns 'age' are missing",
    ),
    "doubled": (table(X, ["age", *NAMES[:4]]), r"more than one column is named 'age'"),
    "too few positions": (table(X, list(range(5))).drop(columns=4), r"columns '0', '1', '2', '3' are no"),
}


@pytest.mark.parametrize("case", COLUMNS)
@pytest.mark.parametrize("library", ["pandas", "pyarrow"])
def test_columns_that_are_no_features(compiled: Compiled, case: str, library: str) -> None:
    frame_, words = COLUMNS[case]
    with pytest.raises(InvalidOptionError, match=words):
        compiled.explain(LIBRARIES[library](frame_))


@pytest.mark.parametrize("lacking", [[0], [2], [1, 2], [0, 1, 2]])
def test_the_first_row_without_a_value_is_named(compiled: Compiled, lacking: list[int]) -> None:
    lacks = table(X)
    lacks.loc[lacking, "debt"] = np.nan
    with pytest.raises(InvalidOptionError, match=rf"column 'debt' has no value in row {lacking[0]}\."):
        compiled.explain(lacks)


def test_a_table_that_is_not_computed_yet(compiled: Compiled) -> None:
    lazy = pl.from_arrow(arrow(table(X))).lazy()
    with pytest.raises(InvalidOptionError, match=r"LazyFrame .*collect\(\)"):
        compiled.explain(lazy)
    with pytest.raises(InvalidOptionError, match=r"LazyFrame .*collect\(\)"):
        compile_model(mlp(), DeepShap(lazy))


class Query:
    """A table that counts how often its stream is read, since a DuckDB query runs each time."""

    def __init__(self, table: pa.Table) -> None:
        self.table, self.runs = table, 0

    def __arrow_c_stream__(self, schema: object = None) -> object:
        self.runs += 1
        return self.table.__arrow_c_stream__(schema)


def test_a_query_is_run_once(compiled: Compiled) -> None:
    query = Query(arrow(table(X)))
    assert_same(compiled.explain(query), compiled.explain(X))
    assert query.runs == 1
    for method in (DeepShap(query), DeepShap({"x": query}), DeepShap(OpenReferences(3, query))):
        query.runs = 0
        assert compile_model(mlp(), method).manifest.explained[0].feature_names == tuple(NAMES)
        assert query.runs == 1


@pytest.mark.parametrize(
    "make", [LIBRARIES["duckdb"], lambda rows: Query(arrow(rows))], ids=["duckdb", "stream"]
)
def test_what_needs_pyarrow_says_what_installs_it(
    make: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame_ = make(table(X))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidOptionError, match="pip install 'pyarrow"):
        frame_of(frame_)


PLAIN = """
import importlib.abc, sys

class Nothing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pandas", "pyarrow"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Nothing())
import numpy as np, polars as pl
from pathlib import Path
from rationale.tables.files import read_rows
from rationale.tables.frames import frame_of, columns_in_order
from rationale.tables.written import write_csv, write_npz

write_csv(Path("a.csv"), ["b", "a"], [[1.5, 2], [3, 4]])
write_npz(Path("a.npz"), [{"x": np.eye(2)}] * 2)
assert read_rows(Path("a.csv"), ["a", "b"]).rows.tolist() == [[2, 1.5], [4, 3]]
assert read_rows(Path("a.npz")).rows["x"].shape == (4, 2)
frame = frame_of(pl.DataFrame({"b": [1.5, None], "a": [2, 4]}))
assert columns_in_order(frame, ["a", "b"], ValueError, missing=True)[0].tolist() == [2, 1.5]
assert {"pandas", "pyarrow"}.isdisjoint(sys.modules)
"""


def test_csv_npz_and_polars_need_neither_pandas_nor_pyarrow(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", PLAIN],
        cwd=tmp_path,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
    )


COLUMN = np.array([1.0, 0.0, 1.0])
NUMBERS = {
    "integers": COLUMN.astype(np.int8),
    "booleans": COLUMN.astype(bool),
    "nullable integers": pd.array([1, 0, 1], dtype="Int64"),
    "nullable floats": pd.array([1, 0, 1], dtype="Float32"),
    "nullable booleans": pd.array([True, False, True], dtype="boolean"),
    "categories that are numbers": pd.Categorical([1.0, 0.0, 1.0]),
    "sparse numbers": pd.arrays.SparseArray(COLUMN),
    "objects": np.array([1, 0.0, True], object),
    "decimals": [Decimal(1), Decimal(0), 1],
    "arrow": pd.array([1, 0, 1], dtype="int64[pyarrow]"),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_columns_of_any_kind_of_numbers(compiled: Compiled, kind: str) -> None:
    expected = X.copy()
    expected[:, 1] = COLUMN
    frame_ = table(X)[BACK].assign(income=NUMBERS[kind])
    assert_same(compiled.explain(frame_), compiled.explain(expected))


OTHER_TABLES = {
    "words": (["1", "0", "1"], "column 'income' holds '1', not numbers"),
    "categories": (pd.Categorical(["a", "b", "a"]), "column 'income' holds 'a', not numbers"),
    "dates": (pd.to_datetime(["2020-01-01"] * 3), r"column 'income' holds datetime64\[\w+\], not numbers"),
    "complex numbers": ([1j, 2, 3], "column 'income' holds complex128, not numbers"),
    "lists": ([[1], [2], [3]], r"column 'income' holds '\[1\]', not numbers"),
    "NaN": ([1.0, np.nan, 2.0], "column 'income' has no value in row 1"),
    "NA": (pd.array([1, 2, None], dtype="Int64"), "column 'income' has no value in row 2"),
    "NA among booleans": (pd.array([None, True, True], dtype="boolean"), "'income' has no value in row 0"),
    "None": (np.array([1, None, 2], object), "column 'income' has no value in row 1"),
    "infinity": ([1.0, np.inf, 2.0], r"'x' holds inf at \[1, 1\]"),
}


@pytest.mark.parametrize("kind", OTHER_TABLES)
def test_columns_that_hold_no_numbers(compiled: Compiled, kind: str) -> None:
    column, words = OTHER_TABLES[kind]
    with pytest.raises(InvalidOptionError, match=words):
        compiled.explain(table(X)[BACK].assign(income=column))


def test_words_go_to_an_input_of_words() -> None:
    text = """g (float[N, 3] x, string[N, 2] s) => (float[N, 3] y, string[N, 2] t) {
        y = Relu (x)
        t = Identity (s)
    }"""
    combined = compile_model(parsed(text), DeepShap(table(rows(4, 3), list("abc"))), targets="all")
    words = pd.DataFrame({"city": ["Rome", "Oslo"], "code": pd.Categorical(["r", "o"])})
    answer = combined.explain({"x": table(rows(2, 3), list("abc"))[list("cab")], "s": words})
    assert answer["t"].tolist() == [["Rome", "r"], ["Oslo", "o"]]
    np.testing.assert_array_equal(answer["y"], np.maximum(rows(2, 3), 0))


# -- one table of cases for all libraries ---------------------------------------------------------------

HOLDERS: dict[str, Callable[[pa.Table], Any]] = {
    "pandas": lambda table: table.to_pandas(),
    "pandas of Arrow's types": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": pl.from_arrow,
    "pyarrow": lambda table: table,
    "duckdb": duckdb.from_arrow,
}
NAN = float("nan")
WORDS = pa.dictionary(pa.int8(), pa.string())
CELLS: dict[str, tuple[Any, list[Any], list[Any]]] = {  # type, what is given, what is expected
    "float64": (pa.float64(), [1.5, -2.0, 1e300], [1.5, -2, 1e300]),
    "float32": (pa.float32(), [1.5, -2.0, None], [1.5, -2, NAN]),
    "NaN": (pa.float64(), [1.5, NAN, None], [1.5, NAN, NAN]),
    "int64": (pa.int64(), [1, -(2**53), 3], [1, -(2**53), 3]),
    "uint8 with nulls": (pa.uint8(), [1, None, 255], [1, NAN, 255]),
    "booleans": (pa.bool_(), [True, False, True], [1, 0, 1]),
    "booleans with nulls": (pa.bool_(), [None, False, True], [NAN, 0, 1]),
    "decimals": (pa.decimal128(5, 2), [Decimal("1.5"), None, Decimal("-2.25")], [1.5, NAN, -2.25]),
    "categories that are numbers": (
        pa.dictionary(pa.int8(), pa.float64()),
        [2.5, None, 1.5],
        [2.5, NAN, 1.5],
    ),
    "nulls": (pa.float64(), [None, None, None], [NAN, NAN, NAN]),
    "texts": (pa.string(), ["1", None, "ü"], ["1", "", "ü"]),
    "large texts": (pa.large_string(), ["a", "", None], ["a", "", ""]),
    "categories": (WORDS, ["b", None, "a"], ["b", "", "a"]),
    "dates": (pa.date32(), [0, 1, 2], []),
    "times": (pa.timestamp("us"), [0, 1, 2], []),
    "lists": (pa.list_(pa.int8()), [[1], [2], None], []),
    "structures": (pa.struct({"a": pa.int8()}), [{"a": 1}, {"a": 2}, None], []),
}


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("library", HOLDERS)
def test_cells_are_the_same_in_every_library(kind: str, library: str) -> None:
    dtype, frame_, expected = CELLS[kind]
    cells, remaining = pa.array(frame_, dtype), pa.array([7, 8, 9])
    frame = frame_of(HOLDERS[library](pa.table({"other": remaining, "cells": cells, "last": remaining})))
    assert frame is not None
    assert frame.shape == (3, 3)
    if not all(isinstance(cell, str) for cell in expected):
        actual = columns_in_order(frame, ["last", "cells"], InvalidOptionError, missing=True)
        np.testing.assert_array_equal(actual, np.transpose([[7, 8, 9], expected]))
        return
    with pytest.raises(InvalidOptionError, match=r"column 'cells' holds .*, not numbers"):
        columns_in_order(frame, ["cells"], InvalidOptionError, missing=True)
    if expected:
        assert as_texts(frame["cells"]).tolist() == expected


# -- names that nobody gave ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unnamed() -> Compiled:
    return compile_model(mlp(), DeepShap(R), targets="all")


@pytest.mark.parametrize("names", [NAMES, BACK, [0, 1, 2, 3, 4], [2019, 2020, 2021, 2022, 2023]])
def test_names_that_nobody_gave_match_by_position(unnamed: Compiled, names: list[Any]) -> None:
    assert_same(unnamed.explain(table(X, names)), unnamed.explain(X))


def test_names_that_were_made_up_are_names_for_whoever_uses_them(unnamed: Compiled) -> None:
    names = list(unnamed.manifest.explained[0].feature_names or ())
    assert_same(unnamed.explain(table(X, names)[names[::-1]]), unnamed.explain(X))


@pytest.mark.parametrize("which", ["compiled", "unnamed"])
def test_numbers_from_0_on_are_positions(which: str, request: pytest.FixtureRequest) -> None:
    combined = request.getfixturevalue(which)
    plain = pd.DataFrame(X)
    assert_same(combined.explain(plain), combined.explain(X))
    assert_same(combined.explain(plain[[3, 0, 4, 1, 2]]), combined.explain(X))


# -- references ----------------------------------------------------------------------------------------

METHODS: dict[str, Callable[[Any], Method]] = {
    "DeepShap": DeepShap,
    "by input": lambda value: DeepShap({"x": value}),
    "ExpectedGradients": lambda rows_given: ExpectedGradients(rows_given, samples=7),
    "IntegratedGradients": lambda frame_: IntegratedGradients(frame_, steps=3),
    "OpenReferences": lambda inputs: DeepShap(OpenReferences(3, inputs)),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_columns_of_references_are_feature_names(method: str, library: str) -> None:
    make = METHODS[method]
    combined = compile_model(mlp(), make(LIBRARIES[library](table(R))))
    assert combined.manifest.explained[0].feature_names == tuple(NAMES)
    assert combined.manifest.digests == compile_model(mlp(), make(R)).manifest.digests


@pytest.mark.parametrize("library", LIBRARIES)
def test_references_are_matched_with_names_that_are_given(library: str) -> None:
    frame_ = LIBRARIES[library](table(R)[BACK])
    manifest = compile_model(mlp(), DeepShap(frame_), feature_names=NAMES).manifest
    assert manifest.digests == compile_model(mlp(), DeepShap(R)).manifest.digests
    assert manifest.explained[0].feature_names == tuple(NAMES)
    more = compile_model(mlp(), DeepShap(table(R).assign(id=1)), feature_names={"x": NAMES}).manifest
    assert more.digests == manifest.digests
    with pytest.raises(InvalidReferencesError, match=r"references of 'x': columns 'age' are missing"):
        compile_model(mlp(), DeepShap(table(R).drop(columns="age")), feature_names={"x": NAMES})


def test_numbered_columns_of_references_name_nothing() -> None:
    for frame_ in (pd.DataFrame(R), pd.DataFrame(R)[[3, 0, 4, 1, 2]]):
        manifest = compile_model(mlp(), DeepShap(frame_)).manifest
        assert manifest.explained[0].feature_names == tuple(f"x[{i}]" for i in range(FEATURES))
        assert manifest.digests == compile_model(mlp(), DeepShap(R)).manifest.digests


REFERENCES = {
    "doubled": (table(R, ["age", *NAMES[:4]]), r"references of 'x': more than one column is named 'age'"),
    "words": (table(R).assign(age="old"), "references of 'x': column 'age' holds 'old', not numbers"),
    "missing values": (table(R).assign(age=[1, np.nan, 2, 3]), "column 'age' has no value in row 1"),
    "one more": (table(R).assign(id=1), r"have shape \[4, 6\]; the model needs \[K, 5\]. Choose .* columns"),
}


@pytest.mark.parametrize("case", REFERENCES)
def test_references_that_do_not_fit(case: str) -> None:
    frame_, words = REFERENCES[case]
    with pytest.raises(InvalidReferencesError, match=words):
        compile_model(mlp(), DeepShap(frame_))


def test_references_of_an_inner_tensor_do_not_name_what_they_are_computed_from() -> None:
    combined = compile_model(mlp(), DeepShap(table(R)), inputs=["h1"])
    assert combined.manifest.digests == compile_model(mlp(), DeepShap(R), inputs=["h1"]).manifest.digests
    assert combined.manifest.explained[0].feature_names == tuple(f"h1[{i}]" for i in range(HIDDEN))
    names = list("abcdefg")
    reference = table(rows(4, HIDDEN), names)[names[::-1]]
    combined = compile_model(mlp(), DeepShap(reference), inputs=["h1"], feature_names=names)
    expected = compile_model(mlp(), DeepShap(rows(4, HIDDEN)), inputs=["h1"])
    assert combined.manifest.digests == expected.manifest.digests


# -- other options of methods --------------------------------------------------------------------------


def test_bounds_and_deviations_are_matched_by_name() -> None:
    frame_ = table(R)
    low, high = frame_.min() - 9, frame_[BACK].max() + 9
    lrp = compile_model(mlp(), Lrp(rules=[("first", ZBox())], low=low, high=high))
    expected = compile_model(mlp(), Lrp(rules=[("first", ZBox())], low=R.min(0) - 9, high=R.max(0) + 9))
    assert lrp.manifest.digests == expected.manifest.digests
    assert lrp.manifest.explained[0].feature_names == tuple(NAMES)
    assert_same(lrp.explain(table(X)[BACK]), expected.explain(X))

    for sigma in (frame_[BACK].std(), frame_[BACK].std().to_frame().T):
        noisy = compile_model(mlp(), SmoothGrad(5, {"x": sigma}), feature_names=NAMES)
        assert noisy.manifest.method.options["sigma"] == {"x": frame_.std().tolist()}
    with pytest.raises(InvalidOptionError, match=r"sigma of 'x': columns 'age' are missing"):
        compile_model(mlp(), SmoothGrad(5, frame_.std()[1:]), feature_names=NAMES)


def test_bounds_of_a_layer_have_no_names() -> None:
    low, high = table(R).min(), table(R).max()
    with pytest.raises(InvalidOptionError, match=r"ZBox.*low.*high"):
        ZBox(low, high)
    assert ZBox(pd.Series([1.0, 2.0]), pd.Series([2.0, 3.0])).low is not None


# -- several inputs ------------------------------------------------------------------------------------


def test_a_table_for_each_input() -> None:
    a, b = list("pqr"), list("stuv")
    frame_ = {"a": table(rows(4, 3), a), "b": table(rows(4, 4), b)}
    combined = compile_model(two_inputs(), DeepShap(frame_))
    assert [e.feature_names for e in combined.manifest.explained] == [tuple(a), tuple(b)]
    x, y = rows(2, 3, seed=5), rows(2, 4, seed=6)
    expected = combined.explain({"a": x, "b": y})
    assert_same(combined.explain({"a": table(x, a)[a[::-1]], "b": table(y, b)[b[::-1]]}), expected)
    joined = table(np.hstack([y, x]), b + a)[list("vpsqtru")]
    assert_same(combined.explain(joined), expected)


def columns_as_inputs() -> Any:
    """As skl2onnx writes a pipeline that was fitted to a DataFrame: an input for each column."""
    text = """g (float[N, 1] age, int64[N, 1] id, float[N, 1] income, float[N, 1] debt) => (float[N, 2] y) {
        x = Concat <axis = 1> (debt, age, income)
        z = MatMul (x, w)
        h = Tanh (z)
        i = Cast <to = 1> (id)
        y = Add (h, i)
    }"""
    return parsed(text, {"w": rows(3, 2, seed=1)})


def test_one_table_for_inputs_of_one_column() -> None:
    names = ["age", "income", "debt"]
    references, x = table(rows(4, 3), names), table(rows(2, 3, seed=3), names).assign(id=[7, 8])
    by_input = {name: references[[name]].to_numpy() for name in names}
    expected = compile_model(columns_as_inputs(), DeepShap(by_input))
    for frame_ in (references[["debt", "age", "income"]], references.assign(id=1)):
        combined = compile_model(columns_as_inputs(), DeepShap(frame_))
        assert [e.feature_names for e in combined.manifest.explained] == [(name,) for name in names]
        assert combined.manifest.digests == expected.manifest.digests
        answer = combined.explain(x[["id", "debt", "income", "age"]])
        assert_same(answer, expected.explain({name: x[[name]].to_numpy() for name in x}))
    for bad, words in (
        (x.drop(columns="id"), r"the rows: columns 'id' are missing"),
        (x.assign(id=1.5), r"'id' holds 1\.5 at \[0, 0\], which cannot be explained as int64"),
    ):
        with pytest.raises(InvalidOptionError, match=words):
            combined.explain(bad)
    with pytest.raises(InvalidReferencesError, match=r"references: columns 'debt' are missing"):
        compile_model(columns_as_inputs(), DeepShap(references.drop(columns="debt")))


def test_one_table_for_inputs_whose_features_have_no_names() -> None:
    with pytest.raises(InvalidReferencesError, match=r"\b2 inputs.*'a', 'b'"):
        compile_model(two_inputs(), DeepShap(table(rows(4, 7), list("abcdefg"))))
    combined = compile_model(two_inputs(), Gradient())
    with pytest.raises(InvalidOptionError, match=r"the rows: .*\b2 inputs"):
        combined.explain(table(rows(4, 7), list("abcdefg")))


@pytest.mark.parametrize(
    ("index", "due"),
    [
        ([0, 1], ()),
        ([1, 0], [1, 0]),
        (["a", "b"], ["a", "b"]),
        ([pd.NA, 1], [pd.NA, 1]),
        (pd.date_range("2020-01-01", periods=2), [*pd.date_range("2020-01-01", periods=2)]),
    ],
    ids=["count", "numbers", "words", "missing", "dates"],
)
def test_row_labels_are_those_that_do_not_count_the_rows(index: Any, due: Any) -> None:
    assert [*index_of(pd.DataFrame({"x": [1, 2]}, index=pd.Index(index)))] == [*due]
