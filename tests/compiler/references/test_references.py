"""Reference sets: what is refused and why, what changes the answer and what does not."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from rationale import DeepShap, Gradient, compile_model
from rationale.errors import InvalidReferencesError
from rationale.references.reference_set import prepare
from rationale.tables.files import read_rows, read_stream
from tests.compiler.models import FEATURES, mlp, rows, two_inputs

R = rows(4, FEATURES)
SPEC = {"x": ((1, FEATURES), np.dtype(np.float32))}


def with_value(value: float, dtype: type = np.float64) -> np.ndarray:
    array = R.astype(dtype)
    array[1, 2] = value
    return array


# -- arrays --------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Any, str]] = {
    "too wide": (rows(4, 6), r"shape \[4, 6\]; the model needs \[K, 5\]\. .*--features"),
    "too narrow": (rows(4, 3), r"shape \[4, 3\]; the model needs \[K, 5\]\.$"),
    "one row without its axis": (rows(5), r"shape \[5\]; the model needs \[K, 5\]"),
    "an axis too many": (rows(4, 5, 1), r"shape \[4, 5, 1\]; the model needs \[K, 5\]"),
    "a number": (3.0, r"shape \[\]; the model needs \[K, 5\]"),
    "no rows": (np.zeros((0, FEATURES)), "empty: at least one row"),
    "nothing": (None, "deepshap needs references"),
    "strings": (np.full((4, FEATURES), "1.0"), "hold <U3, not numbers. The model takes float32"),
    "objects": (np.full((4, FEATURES), None), "hold object, not numbers"),
    "complex numbers": (R.astype(np.complex128), "hold complex128, not numbers"),
    "dates": (np.full((4, FEATURES), np.datetime64("2024-01-01")), "not numbers"),
    "NaN": (with_value(np.nan), r"hold nan at \[1, 2\], a missing value .* does not take\. Impute or drop"),
    "infinity": (
        with_value(-np.inf),
        r"hold -inf at \[1, 2\], which is not a finite number\. Impute or drop",
    ),
    "too large for float32": (
        with_value(1e300),
        r"1e\+300 at \[1, 2\], which is too large for float32\. Scale",
    ),
    "rows of different lengths": ([[1.0, 2.0], [3.0]], "rows differ in length"),
    "masked values": (np.ma.masked_greater(R, 0), "masked in places"),
    "another name": ({"z": R}, r"given for \['z'\], but the explained inputs are \['x'\]"),
    "a name too many": ({"x": R, 0: R}, r"given for \['0', 'x'\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_references_that_do_not_fit(name: str) -> None:
    references, words = REFUSED[name]
    with pytest.raises(InvalidReferencesError, match=words):
        compile_model(mlp(), DeepShap(references))


def test_references_of_two_inputs() -> None:
    a, b = rows(4, 3), rows(4, 4)
    with pytest.raises(InvalidReferencesError, match=r"\b2 inputs.*\(a, b\)"):
        compile_model(two_inputs(), DeepShap(a))
    with pytest.raises(InvalidReferencesError, match=r"\(a: 4, b: 3\)"):
        compile_model(two_inputs(), DeepShap({"a": a, "b": b[:3]}))
    with pytest.raises(InvalidReferencesError, match=r"given for \['a'\], .* are \['a', 'b'\]"):
        compile_model(two_inputs(), DeepShap({"a": a}))


WEIGHTS: dict[str, tuple[Any, str]] = {
    "too few": ([1, 1, 1], r"shape \[3\]; 4 references need \[4\]"),
    "one number": (1.0, r"shape \[\]; 4 references need \[4\]"),
    "a table": ([[1, 1, 1, 1]], r"shape \[1, 4\]"),
    "negative": ([1, -1, 1, 1], "must be finite, not negative, and not all zero"),
    "NaN": ([1, np.nan, 1, 1], "must be finite"),
    "infinite": ([1, np.inf, 1, 1], "must be finite"),
    "all zero": ([0, 0, 0, 0], "not all zero"),
    "words": (["a"] * 4, "weights must be 4 numbers"),
    "complex": ([1j] * 4, "weights must be 4 numbers"),
    "a mapping": ({}, "weights must be 4 numbers"),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_do_not_fit(name: str) -> None:
    weights, words = WEIGHTS[name]
    with pytest.raises(InvalidReferencesError, match=words):
        compile_model(mlp(), DeepShap(R, weights))


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.longdouble, np.int8, np.uint64, bool])
def test_any_numbers_are_taken(dtype: type) -> None:
    prepared = prepare((R * 4).astype(dtype), None, SPEC)
    assert prepared.arrays["x"].dtype == np.float32
    np.testing.assert_array_equal(prepared.arrays["x"][:1], (R * 4).astype(dtype).astype(np.float32)[:1])


# -- values --------------------------------------------------------------------------------------------


def attributions(references: Any, weights: Any = None) -> dict[str, np.ndarray]:
    compiled = compile_model(mlp(), DeepShap(references, weights), targets="all")
    return dict(compiled.explain(rows(3, FEATURES, seed=9)))


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    for name in ("x_attributions", "base_value", "explained_value"):
        np.testing.assert_allclose(a[name], b[name], rtol=1e-5, atol=1e-6)


def test_equal_references_are_merged_and_change_nothing() -> None:
    repeated = np.concatenate([R, R[:2], R[:1]])
    compiled = compile_model(mlp(), DeepShap(repeated), targets="all")
    assert compiled.manifest.references is not None
    assert (compiled.manifest.references.given, compiled.manifest.references.count) == (7, 4)
    x = rows(3, FEATURES, seed=9)
    one_by_one = [attributions(row[None]) for row in repeated]
    expected = np.mean([e["x_attributions"] for e in one_by_one], axis=0)
    np.testing.assert_allclose(compiled.explain(x)["x_attributions"], expected, rtol=1e-5, atol=1e-6)
    assert_same(dict(compiled.explain(x)), attributions(R, [3, 2, 1, 1]))


def test_weights_are_the_weights_of_a_mean() -> None:
    weights = np.array([0.1, 0.5, 0.0, 0.4])
    alone = [attributions(row[None]) for row in R]
    weighted = attributions(R, weights)
    for name in ("x_attributions", "base_value"):
        expected = sum(w * a[name].astype(np.float64) for w, a in zip(weights, alone, strict=True))
        np.testing.assert_allclose(weighted[name], expected, rtol=1e-5, atol=1e-6)
    assert np.abs(weighted["x_attributions"] - attributions(R)["x_attributions"]).max() > 1e-3


@pytest.mark.parametrize("scale", [1.0, 1e-300, 1e308])
def test_only_the_ratio_of_weights_counts(scale: float) -> None:
    assert_same(attributions(R, np.full(4, scale)), attributions(R))


def test_order_and_repetition_of_the_whole_set_change_nothing() -> None:
    plain = attributions(R)
    assert_same(attributions(R[[2, 0, 3, 1]]), plain)
    assert_same(attributions(np.tile(R, (3, 1))), plain)


def test_small_differences_of_weights_are_kept() -> None:
    count = 2000
    weights = np.full(count, 1 / count)
    weights[:2] += [4e-9, -4e-9]
    repeated = np.concatenate([rows(count - 1, FEATURES), rows(1, FEATURES)])
    prepared = prepare(repeated, weights, SPEC)
    assert prepared.count == count - 1
    assert prepared.weights is not None
    assert prepared.weights[1] - prepared.weights[2] == pytest.approx(-4e-9, rel=1e-3)


def test_equal_rows_of_two_inputs_merge_only_together() -> None:
    a, b = np.zeros((3, 2), np.float32), np.array([[1], [2], [1]], np.float32)
    spec = {"a": ((1, 2), np.dtype(np.float32)), "b": ((1, 1), np.dtype(np.float32))}
    prepared = prepare({"a": a, "b": b}, None, spec)
    assert prepared.given_rows == 3
    np.testing.assert_array_equal(prepared.arrays["b"], [[1], [2]])
    np.testing.assert_allclose(prepared.weights, [2 / 3, 1 / 3])


def test_a_method_without_references_has_no_base_value() -> None:
    manifest = compile_model(mlp(), Gradient()).manifest
    assert (manifest.references, manifest.base_value, manifest.completeness_gap) == (None, None, None)


# -- files ---------------------------------------------------------------------------------------------


def written(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path) -> None:
    names = list("abcde")
    text = "\n".join(",".join(repr(float(v)) for v in row) for row in R)
    np.save(tmp_path / "r.npy", R)
    np.savez(tmp_path / "named.npz", x=R)
    np.savez_compressed(tmp_path / "r.npz", R)
    written(tmp_path / "plain.csv", text)
    written(tmp_path / "header.csv", "a,b , c,d,e\n" + text + "\n\n")
    written(tmp_path / "marked.csv", "\ufeffa,b,c,d,e\r\n" + text.replace("\n", "\r\n"))
    written(
        tmp_path / "quoted.csv",
        '"a","b","c","d","e"\n' + '"' + text.replace(",", '","').replace("\n", '"\n"') + '"',
    )
    parquet.write_table(pa.table(dict(zip(names, R.T, strict=True))), tmp_path / "r.parquet")
    for name in ("r.npy", "r.npz", "plain.csv", "header.csv", "marked.csv", "quoted.csv", "r.parquet"):
        table = read_rows(tmp_path / name)
        np.testing.assert_array_equal(table.arrays[None].astype(np.float32), R, err_msg=name)
        assert table.columns == (tuple(names) if name[0] in "hmq" or name.endswith("parquet") else None)
    np.testing.assert_array_equal(read_rows(tmp_path / "named.npz").arrays["x"], R)


CSV = {
    "words": ("a,b\n1,2\n3,red\n", "line 3, column 'b': 'red' is not a number. .*--features"),
    "ragged": ("a,b\n1,2\n3\n", "line 3 .*1 .*2"),
    "ragged after blank lines": ("1,2\n\n\n3\n", "line 4 .*1 .*2"),
    "semicolons": ("a;b\n1;2\n", "line 2 separates its cells with ';': write the file with commas"),
    "tabs": ("a\tb\n1\t2\n", "separates its cells with '\\\\t': write the file with commas"),
    "nothing": ("", "empty: at least one row"),
    "another encoding": ("a,b\n1,2\n".encode("utf-16"), "damaged"),
    "an endless field": ("a,b\n" + "1" * 200_000 + ",2\n", "damaged"),
}


@pytest.mark.parametrize("name", CSV)
def test_a_csv_that_cannot_be_used(tmp_path: Path, name: str) -> None:
    content, words = CSV[name]
    with pytest.raises(InvalidReferencesError, match=f"(?s)r\\.csv: .*{words}"):
        read_rows(written(tmp_path / "r.csv", content))


@pytest.mark.parametrize("header", [" a ,b", "a,\tb ", "\ufeffa,b", '" a","b "'])
def test_the_names_of_a_header_stand_without_spaces_around_them(tmp_path: Path, header: str) -> None:
    table = read_rows(written(tmp_path / "r.csv", f"{header}\n1,2\n"), ["b", "a"])
    assert table.columns == ("b", "a")
    np.testing.assert_array_equal(table.arrays[None], [[2, 1]])


@pytest.mark.parametrize("text", ["a,b,c\n1,,3\n4,5, \n", "1,,3\n4,5, \n"], ids=["header", "none"])
def test_an_empty_cell_is_a_missing_value(tmp_path: Path, text: str) -> None:
    rows = read_rows(written(tmp_path / "r.csv", text)).arrays[None]
    np.testing.assert_array_equal(rows, [[1, np.nan, 3], [4, 5, np.nan]])


class Huge(io.BytesIO):
    """A file that no memory holds."""

    def read(self, size: int | None = -1) -> bytes:
        raise MemoryError(f"{size} bytes")


def test_a_file_that_no_memory_holds() -> None:
    with pytest.raises(InvalidReferencesError, match=r"r\.npy: .*memory"):
        read_stream(Huge(), ".npy", "r.npy")


def test_a_header_without_rows(tmp_path: Path) -> None:
    with pytest.raises(InvalidReferencesError, match=r"r\.csv: a header"):
        read_rows(written(tmp_path / "r.csv", "a,b,c,d,e\n"))
    with pytest.raises(InvalidReferencesError, match="'x' are empty"):
        compile_model(mlp(), DeepShap(np.zeros((0, 5))))


def test_columns_are_chosen_by_name_and_the_others_may_hold_anything(tmp_path: Path) -> None:
    path = written(tmp_path / "r.csv", "id,b,note,a\nx1,1,,2\nx2,3,red,4\n")
    table = read_rows(path, ["a", "b"])
    assert table.columns == ("a", "b")
    np.testing.assert_array_equal(table.arrays[None], [[2, 1], [4, 3]])
    columns = {"id": ["x1", "x2"], "b": [1, 3], "note": [None, "red"], "a": [2.0, 4.0]}
    parquet.write_table(pa.table(columns), tmp_path / "r.parquet")
    table = read_rows(tmp_path / "r.parquet", ["a", "b"])
    assert table.columns == ("a", "b")
    np.testing.assert_array_equal(table.arrays[None], [[2, 1], [4, 3]])
    with pytest.raises(InvalidReferencesError, match=r"no column 'c'; it has 'id', 'b', 'note', 'a'"):
        read_rows(path, ["a", "c"])
    with pytest.raises(InvalidReferencesError, match=r"twice\.csv: .*'a'"):
        read_rows(written(tmp_path / "twice.csv", "a,a\n1,2\n"), ["a"])


def test_columns_that_something_else_divides(tmp_path: Path) -> None:
    with pytest.raises(InvalidReferencesError, match=r"r\.csv: .*';'"):
        read_rows(written(tmp_path / "r.csv", "a;b\n1;2\n"), ["a", "b"])


PARQUET = {
    "text": (["red", "blue"], "column 'b' holds 'red', not numbers. .*--features"),
    "dates": (np.array(["2024-01-01", "2024-01-02"], "M8[s]"), "column 'b' holds datetime64"),
    "lists": ([[1], [2]], "column 'b' holds list"),
}


@pytest.mark.parametrize("name", PARQUET)
def test_a_parquet_column_that_holds_no_numbers(tmp_path: Path, name: str) -> None:
    values, words = PARQUET[name]
    parquet.write_table(pa.table({"a": [1, 2], "b": values}), tmp_path / "r.parquet")
    with pytest.raises(InvalidReferencesError, match=words):
        read_rows(tmp_path / "r.parquet")


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.bool_()])
def test_nulls_of_a_parquet_file_are_refused_with_the_rows(tmp_path: Path, kind: pa.DataType) -> None:
    columns = {name: [1.0] * 3 for name in "abcd"} | {"e": pa.array([True, None, False]).cast(kind)}
    parquet.write_table(pa.table(columns), tmp_path / "r.parquet")
    rows_ = read_rows(tmp_path / "r.parquet").arrays[None]
    with pytest.raises(InvalidReferencesError, match=r"\bnan at \[1, 4\]"):
        compile_model(mlp(), DeepShap(rows_))


def test_a_missing_category_of_a_parquet_file_is_missing(tmp_path: Path) -> None:
    categories = pa.array([2, None, 1, 3]).dictionary_encode()
    parquet.write_table(pa.table({"a": categories}), tmp_path / "r.parquet")
    np.testing.assert_array_equal(read_rows(tmp_path / "r.parquet").rows, [[2], [np.nan], [1], [3]])


def test_files_that_are_not_what_their_name_says(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, R)
    np.save(tmp_path / "pickled.npy", np.array([{"a": 1}], object), allow_pickle=True)
    np.savez(tmp_path / "pickled.npz", x=np.array([{"a": 1}], object))
    np.savez(tmp_path / "whole.npz", x=R)
    written(tmp_path / "cut.npz", (tmp_path / "whole.npz").read_bytes()[:150])
    written(tmp_path / "cut.npy", buffer.getvalue()[:-7])
    written(tmp_path / "single.npz", buffer.getvalue())
    written(tmp_path / "archive.npy", (tmp_path / "whole.npz").read_bytes())
    for name in ("text.npy", "text.npz", "text.parquet"):
        written(tmp_path / name, "a,b\n1,2\n")
    for name in ("empty.npy", "empty.npz", "empty.parquet"):
        written(tmp_path / name, b"")
    (tmp_path / "whole.npz").unlink()
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 12
    for path in paths:
        with pytest.raises(InvalidReferencesError, match=f"{path.name}: damaged"):
            read_rows(path)


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".csv", ".parquet"])
def test_a_file_that_is_not_there_or_a_folder(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(InvalidReferencesError, match=rf"none{suffix}: "):
        read_rows(tmp_path / f"none{suffix}")
    (tmp_path / f"folder{suffix}").mkdir()
    with pytest.raises(InvalidReferencesError, match=rf"folder{suffix}: .*folder"):
        read_rows(tmp_path / f"folder{suffix}")


@pytest.mark.parametrize("name", ["r.xls", "r", "r.csv.gz"])
def test_an_unknown_suffix(name: str) -> None:
    with pytest.raises(InvalidReferencesError, match=r"\.npz, \.npy, \.csv, \.parquet"):
        read_rows(Path(name))


def file_content(suffix: str) -> bytes:
    buffer = io.BytesIO()
    if suffix == ".npy":
        np.save(buffer, R)
    elif suffix == ".npz":
        np.savez(buffer, x=R)
    elif suffix == ".csv":
        buffer.write(b"a,b,c,d,e\n1,2,3,4,5\n")
    else:
        parquet.write_table(pa.table(dict(zip("abcde", R.T, strict=True))), buffer)
    return buffer.getvalue()


def test_a_nan_that_signals_is_a_nan(tmp_path: Path) -> None:
    signalling = np.array([0x7F800001], np.uint32).view(np.float32)
    parquet.write_table(pa.table({"a": signalling}), tmp_path / "r.parquet")
    assert np.isnan(read_rows(tmp_path / "r.parquet").arrays[None]).all()


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".csv", ".parquet"])
@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_one_byte_of_a_file_changed(tmp_path: Path, suffix: str, place: float, byte: int) -> None:
    content = bytearray(file_content(suffix))
    content[int(place * len(content))] = byte
    try:
        table = read_rows(written(tmp_path / f"r{suffix}", bytes(content)))
    except InvalidReferencesError:
        return
    assert all(isinstance(array, np.ndarray) for array in table.arrays.values())


def test_the_warmup_row_is_the_weighted_mean() -> None:
    references = np.stack([np.zeros(5), np.ones(5), np.ones(5)]).astype(np.float32)
    merged = compile_model(mlp(), DeepShap(references))
    weighted = compile_model(mlp(), DeepShap(references[:2], weights=[1, 2]))
    for compiled in (merged, weighted):
        np.testing.assert_allclose(compiled.sample["x"], np.full((1, 5), 2 / 3), atol=1e-6)
