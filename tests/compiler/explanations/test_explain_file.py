"""`rationale explain`: many rows in batches, a few of them told, all of them saved in every kind of file."""

import csv
import json
import re
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner, Result

from rationale import AttnLrp, Compiled, DeepShap, Explanation, Gradient, compile_model
from rationale.cli.compile import app
from rationale.errors import InvalidOptionError
from rationale.portfolios import files
from rationale.portfolios.explain import TARGETS
from rationale.portfolios.files import check_explanations, write_explanations
from rationale.tables.workbooks import MOST_COLUMNS
from rationale.tables.written import write_npz
from tests.compiler.models import FEATURES, NAMES, mlp, parsed, rows, two_inputs

N, K = 150, 6  # three batches of 64 and less
REFERENCES, X = rows(K, FEATURES), rows(N, FEATURES, seed=9)
Read = Callable[[Path], dict[str, list[Any]]]


def read_csv(path: Path) -> dict[str, list[Any]]:
    with path.open(newline="") as file:
        table = list(csv.DictReader(file))
    return {name: [row[name] if name == "target" else float(row[name]) for row in table] for name in table[0]}


def read_json(path: Path) -> dict[str, list[Any]]:
    records = json.loads(path.read_text())
    flat = [
        {**{k: v for k, v in r.items() if k not in ("attributions", "standard_errors")}, **r["attributions"]}
        | {f"{name}_standard_error": v for name, v in r.get("standard_errors", {}).items()}
        for r in records
    ]
    return {name: [r[name] for r in flat] for name in flat[0]}


def read_parquet(path: Path) -> dict[str, list[Any]]:
    return dict(parquet.read_table(path).to_pydict())


def loaded(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def read_excel(path: Path) -> dict[str, list[Any]]:
    return pd.read_excel(path).to_dict("list")


TABLES: dict[str, Read] = {
    "csv": read_csv,
    "json": read_json,
    "parquet": read_parquet,
    "xlsx": read_excel,
}


def explain(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["explain", "m", "--input", "x.npy", *arguments])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    return tmp_path


def written(targets: Any = "all", model: onnx.ModelProto | None = None, **options: Any) -> Compiled:
    compiled = compile_model(
        model or mlp(), DeepShap(REFERENCES, **options), targets=targets, feature_names=NAMES
    )
    compiled.write("model_repository", "m")
    return compiled


# -- saved ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("value", ["csv", "parquet", "xlsx"])
@pytest.mark.usefixtures("place")
def test_columns_to_keep_are_written_beside(kind: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ROW_GROUP", 100)
    written()
    ids = [f"loan-{i}" for i in range(N)]
    table = pa.table(dict(zip(NAMES, X.T, strict=True)) | {"id": ids, "day": [i % 28 for i in range(N)]})
    csv_file, parquet_file = Path("x.csv"), Path("x.parquet")
    parquet.write_table(table, parquet_file)
    with csv_file.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table.column_names)
        writer.writerows(zip(*table.to_pydict().values(), strict=True))
    pd.DataFrame(table.to_pydict()).to_excel("x.xlsx", index=False)
    words = ("--input", f"x.{value}", "--save", f"a.{kind}", "--keep", "id,day")
    assert CliRunner().invoke(app, ["explain", "m", *words]).exit_code == 0
    if kind == "csv":
        with Path("a.csv").open() as file:
            records: Any = list(csv.DictReader(file))
    elif kind == "json":
        records = [{**lines, **lines["kept"]} for lines in json.loads(Path("a.json").read_text())]
    elif kind == "xlsx":
        records = pd.read_excel("a.xlsx").to_dict("records")
    else:
        records = parquet.read_table("a.parquet").to_pylist()
    targets = len(records) // N
    assert targets > 1
    assert [item["id"] for item in records] == [entry for entry in ids for _ in range(targets)]
    is_number = (value != "csv" and kind != "csv") or kind == "xlsx"
    assert [each["day"] for each in records] == [
        i % 28 if is_number else str(i % 28) for i in range(N) for _ in range(targets)
    ]
    refused = CliRunner().invoke(app, ["explain", "m", *words[:4], "--keep", "target"])
    assert refused.exit_code == 2


@pytest.mark.parametrize("ending", [".npz", ".NPZ"])
def test_a_file_of_arrays_keeps_no_columns(ending: str) -> None:
    check_explanations(Path(f"a{ending}"))
    with pytest.raises(InvalidOptionError, match="cannot keep columns"):
        check_explanations(Path(f"a{ending}"), ["id"])


@pytest.mark.parametrize("kind", TABLES)
def test_a_row_for_each_row_and_target(place: Path, kind: str) -> None:
    want = written([2, 0], standard_error=True).explain(X)
    result = explain("--save", f"a.{kind}")
    assert result.exit_code == 0, result.output
    table = TABLES[kind](place / f"a.{kind}")
    errors = [f"{name}_standard_error" for name in NAMES]
    expected = ["row", "target", "explained_value", "base_value", "completeness_gap"]
    assert list(table) == [*expected, *NAMES, *errors]
    assert table["row"] == [i for i in range(N) for _ in range(2)]
    assert [int(t) for t in table["target"]] == [2, 0] * N
    for name in expected[2:]:
        np.testing.assert_allclose(table[name], want[name].reshape(-1), rtol=1e-5, atol=1e-6)
    for k, name in enumerate(NAMES):
        for column, tensor in ((name, "x_attributions"), (errors[k], "x_standard_error")):
            got = want[tensor][:, :, k].reshape(-1)
            np.testing.assert_allclose(table[column], got, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", TABLES)
def test_columns_of_players(place: Path, kind: str) -> None:
    """A group by its name, beside features of another input."""
    model, method = two_inputs(), DeepShap({"a": rows(K, 3), "b": rows(K, 4)})
    compiled = compile_model(model, method, targets=[1], groups={"ends": ["b[3]", "b[0]"]})
    compiled.write("model_repository", "m")
    x = {"a": rows(N, 3, seed=9), "b": rows(N, 4, seed=8)}
    np.savez("x.npz", **x)
    result = CliRunner().invoke(
        app, ["explain", "m", "--input", "x.npz", "--save", f"a.{kind}", "--top", "6"]
    )
    assert result.exit_code == 0, result.output
    table, want = TABLES[kind](place / f"a.{kind}"), compiled.explain(x)
    expected = ["row", "target", "explained_value", "base_value", "completeness_gap"]
    assert list(table) == [*expected, "a[0]", "a[1]", "a[2]", "ends", "b[1]", "b[2]"]
    np.testing.assert_allclose(table["ends"], want["group_attributions"][:, 0, 0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(table["a[2]"], want["a_attributions"][:, 0, 2], rtol=1e-4, atol=1e-6)
    message = dict(line.split()[::-1] for line in result.stdout.splitlines()[2:8])
    assert message.keys() == {*list(table)[5:]}
    assert float(message["ends"]) == pytest.approx(want["group_attributions"][0, 0, 0], rel=1e-4)


def test_every_tensor(place: Path) -> None:
    want = written().explain(X)
    assert explain("--save", "a.npz").stdout.startswith("wrote a.npz: y [150, 3], x_attributions [150, 3, 5]")
    answer = loaded(place / "a.npz")
    assert list(answer) == list(want)
    for name in want:
        assert answer[name].dtype == want[name].dtype
        np.testing.assert_allclose(answer[name], want[name], rtol=1e-5, atol=1e-6)


def test_the_predicted_class_is_named_where_it_is_known(place: Path) -> None:
    """It is known of an output; of an inner tensor the answer holds the value alone."""
    want = written("predicted").explain(X)["y"].argmax(axis=1)
    result = explain("--save", "a.csv", "--rows", "1")
    assert [int(t) for t in read_csv(place / "a.csv")["target"]] == list(want)
    assert f"Row 1, target {want[0]} (predicted): " in result.stdout
    compile_model(mlp(), DeepShap(REFERENCES), logits=True).write("model_repository", "m")
    assert "Row 1, target predicted: " in explain("--save", "a.csv").stdout
    assert set(read_csv(place / "a.csv")["target"]) == {"predicted"}
    assert list(read_csv(place / "a.csv"))[-1] == "x[4]"


def test_what_a_method_lacks_has_no_column(place: Path) -> None:
    compile_model(mlp(), Gradient(), targets=[1]).write("model_repository", "m")
    assert explain("--save", "a.csv").exit_code == 0
    assert list(read_csv(place / "a.csv"))[:4] == ["row", "target", "explained_value", "x[0]"]
    compile_model(mlp(last="Tanh"), AttnLrp(), targets=[1]).write("model_repository", "m")
    assert explain("--save", "a.csv").exit_code == 0
    assert list(read_csv(place / "a.csv"))[2:4] == ["explained_value", "completeness_gap"]


def test_features_of_several_inputs_stand_together(place: Path) -> None:
    x = {"a": rows(70, 3, seed=1), "b": rows(70, 4, seed=2)}
    compiled = compile_model(
        two_inputs(), DeepShap({name: a[:K] for name, a in x.items()}), feature_names={"a": ["p", "q", "r"]}
    )
    compiled.write("model_repository", "m")
    np.savez("x.npz", **x)
    result = explain("--input", "x.npz", "--save", "a.csv", "--rows", "1", "--top", "2")
    table, want = read_csv(place / "a.csv"), compiled.explain(x)
    assert list(table)[5:] == ["p", "q", "r", "b[0]", "b[1]", "b[2]", "b[3]"]
    np.testing.assert_allclose(table["b[3]"], want["b_attributions"][:, 0, 3], rtol=1e-4, atol=1e-6)
    joined = np.concatenate([want["a_attributions"][0, 0], want["b_attributions"][0, 0]])
    largest = [list(table)[5 + k] for k in np.argsort(-np.abs(joined))[:2]]
    assert [line.split()[1] for line in result.stdout.splitlines()[2:4]] == largest


def test_outputs_of_text(place: Path) -> None:
    """Words of any length, the longest in a later batch."""
    text = """g (float[N, 5] x) => (float[N, 3] y, string[N] word) {
        y = MatMul (x, w)
        first = ArgMax <axis = 1, keepdims = 0> (y)
        word = Gather (words, first)
    }"""
    model = parsed(text, {"w": rows(5, 3, seed=3)})
    model.graph.initializer.append(onnx.helper.make_tensor("words", 8, [3], [b"no", b"maybe", b"certainly"]))
    compiled = written(model=model)
    word = compiled.explain(X)["word"]
    np.save("x.npy", X[np.argsort([len(w) for w in word])])
    assert explain("--save", "a.npz").exit_code == 0
    assert list(loaded(place / "a.npz")["word"]) == sorted(word, key=len)


REFUSED = {
    "no ending": ("a", r"a: cannot be written: its name must end in \.npz, \.csv, \.json, \.parquet"),
    "another ending": ("a.ods", "must end in"),
    "no such folder": ("nowhere/a.csv", "nowhere/a.csv: cannot be written: No such file"),
    "a folder": ("folder.csv", "folder.csv: cannot be written: it is a folder"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_where_nothing_can_be_written(place: Path, name: str) -> None:
    written()
    (place / "folder.csv").mkdir()
    target, words = REFUSED[name]
    result = explain("--save", target)
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.search(words, result.stderr), result.stderr
    assert sorted(p.name for p in place.iterdir()) == ["folder.csv", "model_repository", "x.npy"]


def test_the_rows_are_not_written_over(place: Path) -> None:
    written()
    np.savez("x.npz", x=X)
    (place / "link.npz").symlink_to("x.npz")
    result = explain("--input", "x.npz", "--save", "link.npz")
    assert (result.exit_code, result.stderr) == (
        2,
        "error: link.npz: this file contains the input rows: save to another file.\n",
    )
    np.testing.assert_array_equal(loaded(place / "x.npz")["x"], X)


def test_an_ending_is_looked_at_first(place: Path) -> None:
    assert place.is_dir()
    result = CliRunner().invoke(app, ["explain", "nobody", "--input", "nothing.csv", "--save", "a.txt"])
    assert "must end in" in result.stderr


def test_features_that_a_table_cannot_hold(place: Path) -> None:
    model = parsed("g (float[N, 5] x) => (float[N, 5] y) { y = Tanh (x) }")
    names = ["row", *NAMES[1:]]
    compile_model(model, DeepShap(REFERENCES), feature_names=names).write("model_repository", "m")
    assert "the features ['row']" in explain("--save", "a.csv").stderr
    assert explain("--save", "a.npz").exit_code == 0
    text = f"g (float[N, 3, {MOST_COLUMNS}] x) => (float[N, 3] y) {{ y = ReduceMean <keepdims = 0> (x, a) }}"
    wide = parsed(text, {"a": np.array([2])})
    compile_model(wide, Gradient(), targets=[1]).write("model_repository", "m")
    np.save("x.npy", rows(2, 3, MOST_COLUMNS))
    assert "49152 features, too many" in explain("--save", "b.csv").stderr
    assert not (place / "b.csv").exists()
    assert explain("--save", "b.npz").exit_code == 0


def test_a_row_that_the_model_cannot_take_leaves_nothing(place: Path) -> None:
    text = (
        "g (int64[N, 3] ids) => (float[N, 2] y) { e = Gather (t, ids)  y = ReduceSum <keepdims = 0> (e, a) }"
    )
    model = parsed(text, {"t": rows(9, 2), "a": np.array([1])})
    compile_model(model, DeepShap(np.zeros((2, 3), int))).write("model_repository", "m")
    ids = np.ones((N, 3), int)
    ids[130, 1] = 99
    np.save("x.npy", ids)
    result = explain("--save", "a.csv")
    assert result.exit_code == 2
    assert (
        "error: rows 128 to 149: the model cannot take one of them (an id outside of its table?)"
        in result.stderr
    )
    assert sorted(p.name for p in place.iterdir()) == ["model_repository", "x.npy"]


def test_a_file_that_was_there_stays_until_the_new_one_is_whole(place: Path) -> None:
    (place / "a.csv").write_text("old")
    compiled = written()

    def broken() -> Iterator[Explanation]:
        yield compiled.explain(X)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_explanations(Path("a.csv"), broken())
    assert (place / "a.csv").read_text() == "old"
    assert explain("--save", "a.csv").exit_code == 0
    assert (place / "a.csv").read_text().startswith("row,target,")
    assert [p.name for p in place.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize("kind", ["npz", *TABLES])
def test_memory_does_not_grow_with_the_rows(place: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(files, "ROW_GROUP", 900)  # two batches
    answer = written().explain(X)

    def peak(batches: int) -> int:
        tracemalloc.start()
        write_explanations(place / f"a.{kind}", (answer for _ in range(batches)))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1)  # what is imported and cached the first time
    assert peak(14) < peak(6) + 50_000  # 8 batches more hold 96 kB


def test_a_lack_of_memory_is_one_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written()

    def full(*_: object) -> None:
        raise MemoryError("8 GB")

    monkeypatch.setattr(Compiled, "run", full)
    result = explain("--save", "a.csv")
    assert (result.exit_code, result.stderr) == (
        2,
        "error: out of memory (8 GB): give fewer rows at a time.\n",
    )
    assert not (place / "a.csv").exists()


# -- told ----------------------------------------------------------------------------------------------


def test_a_few_rows_are_told(place: Path) -> None:
    assert place.is_dir()
    written([1])
    lines = explain().stdout.splitlines()
    heads = [line.split(",")[0] for line in lines if line.startswith("Row")]
    assert heads == [f"Row {i}" for i in range(1, 11)]
    assert lines[-1] == "140 more rows: see --rows and --save"
    assert explain("--rows", "2", "--save", "a.csv").stdout.splitlines()[-1] == "148 more rows in a.csv"
    every = explain("--rows", "all").stdout
    assert every.count("Row ") == N
    assert "more rows" not in every
    assert explain("--rows", "200").stdout == every
    assert explain("--rows", "0").stdout == "150 more rows: see --rows and --save\n"


@pytest.mark.parametrize("value", ["-1", "some", "1.5", ""])
def test_how_many_is_a_number_or_all(place: Path, value: str) -> None:
    assert place.is_dir()
    result = explain("--rows", value)
    assert result.exit_code == 2
    assert f"--rows {value!r}: give a whole number, or all" in result.stderr


def test_the_largest_of_many_targets(place: Path) -> None:
    assert place.is_dir()
    compiled = compile_model(mlp((FEATURES, 7, 40)), DeepShap(REFERENCES), targets="all")
    compiled.write("model_repository", "m")
    result = explain("--rows", "2", "--top", "1").stdout.splitlines()
    best = np.argsort(-compiled.explain(X)["y"][0], kind="stable")[:TARGETS]
    assert [line.split(":")[0] for line in result[: 2 * TARGETS : 2]] == [f"Row 1, target {t}" for t in best]
    assert result[2 * TARGETS] == "Row 1: 30 more targets, of smaller value"


def test_only_what_is_told_is_explained(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place.is_dir()
    written()
    explained: list[int] = []
    run = Compiled.run.func  # type: ignore[attr-defined]

    def counted(compiled: Compiled) -> Any:
        def running(inputs: Any, outputs: Any = None) -> Any:
            explained.append(len(inputs["x"]))
            return run(compiled)(inputs, outputs)

        return running

    monkeypatch.setattr(Compiled, "run", property(counted))
    assert explain("--rows", "7").exit_code == 0
    assert explained == [7]
    assert explain("--rows", "7", "--save", "a.csv").exit_code == 0
    assert explained == [7, 64, 64, 22]


@pytest.mark.parametrize(
    ("batches", "due"),
    [
        ([["own", "a long word"], ["x"]], "<U11"),  # in whichever batch the longest is
        ([["x"], ["own", "a long word"]], "<U11"),
        ([np.array(["a long word"], object), np.array(["x"], object)], "<U11"),
        ([np.float32([1.5]), np.float64([0.1])], "<f8"),
        ([np.float64([0.1]), np.float32([1.5])], "<f8"),
        ([np.int64([2**40]), np.int32([1])], "<i8"),
    ],
)
def test_no_batch_cuts_what_another_holds(batches: list[Any], due: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.npz"
    arrays = [np.asarray(batch) for batch in batches]
    assert write_npz(file, [{"a": array} for array in arrays]) == f"a [{sum(map(len, arrays))}]"
    found = np.load(file)["a"]
    assert found.dtype == due
    assert found.tolist() == [one for array in arrays for one in array.tolist()]


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_frames_hold_what_files_do(place: Path, library: str) -> None:
    answer = written([2, 0]).explain(X)
    explain("--save", "a.parquet")
    expected = parquet.read_table(place / "a.parquet")
    frame = answer.to_frame(library)
    assert type(frame).__module__.partition(".")[0] == library
    assert list(getattr(frame, "column_names", None) or frame.columns) == expected.column_names
    for name in expected.column_names:
        np.testing.assert_array_equal(np.asarray(frame[name]), expected[name].to_numpy())


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("library", ["numpy", "modin", "", "pandas "])
def test_other_frames_are_refused(library: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"pip install modin|to_frame\('"):
        written().explain(X).to_frame(library)
