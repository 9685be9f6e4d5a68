"""The command line: the main paths in processes of their own, every user error in one line with status 2."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner, Result

from rationale import DeepShap, Manifest, compile_model
from rationale.schema.methods import METHODS
from rationale.tables.files import read_rows
from rationale.terminal import _format_number
from rationale_service.cli.main import app
from tests.compiler.models import FEATURES, NAMES, mlp, parsed, rows, two_inputs

RATIONALE = Path(sys.executable).with_name("rationale")
ROWS = rows(3, FEATURES, seed=9)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a model and its references in every form."""
    monkeypatch.chdir(tmp_path)
    references = rows(4, FEATURES)
    onnx.save(mlp(), "m.onnx")
    onnx.save(two_inputs(), "two.onnx")
    np.save("r.npy", references)
    np.savez("r.npz", x=references)
    np.savez("two.npz", a=rows(4, 3), b=rows(4, 4))
    np.savetxt("r.csv", references, delimiter=",", header=",".join(NAMES), comments="")
    parquet.write_table(pa.table(dict(zip(NAMES, references.T, strict=True))), "r.parquet")
    Path("wide.csv").write_text(
        "id,cards,years,debt,income,age\n"
        + "".join(
            f"r{i}," + ",".join(repr(float(v)) for v in row[::-1]) + "\n" for i, row in enumerate(references)
        )
    )
    return tmp_path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([RATIONALE, *arguments], capture_output=True, text=True, timeout=600, check=False)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def assert_refused(result: Result, words: str) -> None:
    """Exit status 2, one plain message on stderr, no traceback, nothing on stdout."""
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert re.search(words, result.stderr), result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


# -- processes -----------------------------------------------------------------------------------------


def test_compile_explain_check(place: Path) -> None:
    result = run("compile", "m.onnx", "--references", "r.csv", "--name", "credit")
    assert (result.returncode, result.stderr) == (0, "")
    assert "wrote model_repository/credit and model_repository/credit_explain" in result.stdout
    assert re.search(r"^explains +y \(targets: predicted\) by x, deepshap *$", result.stdout, re.MULTILINE)
    assert re.search(
        r"^completeness gap +\d\.\de[+-]\d\d of the largest difference", result.stdout, re.MULTILINE
    )

    result = run("explain", "credit", "--input", "wide.csv", "--save", "answer.npz", "--top", "2")
    assert (result.returncode, result.stderr) == (0, "")
    expected = compile_model(mlp(), DeepShap(np.load("r.npy"))).explain(np.load("r.npy"))
    answer = np.load("answer.npz", allow_pickle=False)
    assert sorted(answer.files) == sorted(expected)
    for name in answer.files:
        np.testing.assert_allclose(answer[name], expected[name], rtol=1e-5, atol=1e-6)
    lines = result.stdout.splitlines()
    assert lines[0].startswith("wrote answer.npz: y [4, 3], x_attributions [4, 1, 5]")
    assert len(lines) == 1 + 4 * 3
    best = int(np.abs(expected["x_attributions"][0, 0]).argmax())
    assert lines[2].split() == [f"{expected['x_attributions'][0, 0, best]:+.6g}", NAMES[best]]
    assert sorted(p.name for p in place.iterdir() if p.name.startswith(".")) == []

    result = run("check", "credit")
    assert (result.returncode, result.stderr) == (0, "")
    assert re.search(r"^original outputs +unchanged to \d\.\de[+-]\d\d", result.stdout, re.MULTILINE)


def test_operators() -> None:
    result = run("operators")
    assert (result.returncode, result.stderr) == (0, "")
    table = {line.split()[0]: line.split()[1:3] for line in result.stdout.splitlines()[1:]}
    assert table["Conv"] == ["7+", "bilinear"]
    assert table["Relu"] == ["7+", "pointwise"]
    assert table["MaxPool"] == ["7+", "selection"]


def test_errors_of_a_process_are_one_line(place: Path) -> None:
    (place / "bad.onnx").write_text("no model")
    result = run("compile", "bad.onnx", "--references", "r.npy", "--name", "m")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: bad.onnx: not an ONNX model")
    assert len(result.stderr.splitlines()) == 1
    assert not Path("model_repository").exists()


def on_a_terminal(*arguments: str) -> str:
    """What a command writes to a terminal at its stderr."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [RATIONALE, *arguments], stderr=theirs, stdout=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm"}
    )
    os.close(theirs)
    seen = b""
    while chunk := _read(ours):
        seen += chunk
    os.close(ours)
    assert process.wait(30) == 0
    return seen.decode(errors="replace")


def _read(handle: int) -> bytes:
    try:
        return os.read(handle, 4096)
    except OSError:  # Linux's way of saying that the other end is closed
        return b""


@pytest.mark.full
def test_the_progress_bar_is_for_terminals(place: Path) -> None:
    assert place.is_dir()
    seen = on_a_terminal("compile", "m.onnx", "--references", "r.npy", "--name", "m")
    assert "checking against the original" in seen, "the last stage"
    assert "━" in seen
    assert "explaining" in on_a_terminal("explain", "m", "--input", "r.npy")


# -- compile -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["r.npy", "r.npz", "r.csv", "r.parquet"])
def test_references_of_every_kind_compile_to_the_same_answer(place: Path, file: str) -> None:
    assert call("compile", "m.onnx", "--references", file, "--name", "m").exit_code == 0
    manifest = Manifest.read(place / "model_repository" / "m_explain" / "explanation.json")
    expected = compile_model("m.onnx", DeepShap(np.load("r.npy"))).manifest.digests
    assert manifest.digests == expected
    named = tuple(NAMES) if file in ("r.csv", "r.parquet") else tuple(f"x[{i}]" for i in range(FEATURES))
    assert manifest.explained[0].feature_names == named


def test_features_choose_columns_by_name(place: Path) -> None:
    base = ("compile", "m.onnx", "--references", "wide.csv", "--name", "m")
    assert_refused(call(*base), r"column 'id': 'r0' is not a number.*--features")
    assert_refused(call(*base, "--features", "age,wealth"), r"no column 'wealth'; it has 'id', 'cards'")
    assert_refused(call(*base, "--features", "age,income"), r"shape \[4, 2\]; the model needs \[K, 5\]")
    assert not Path("model_repository").exists()
    result = call(*base, "--features", " age, income,debt,years,cards ")
    assert result.exit_code == 0, result.output
    manifest = Manifest.read(place / "model_repository" / "m_explain" / "explanation.json")
    assert manifest.explained[0].feature_names == tuple(NAMES)
    assert manifest.digests == compile_model("m.onnx", DeepShap(np.load("r.npy"))).manifest.digests


def test_groups(place: Path) -> None:
    groups = ("--group", "money=debt, income", "--group", "rest=y*")
    result = call("compile", "m.onnx", "--references", "r.csv", "--name", "m", *groups)
    assert result.exit_code == 0, result.output
    line = r"^players +money \(2\), rest \(1\) and 2 features; each the sum of its features"
    assert re.search(line, result.stdout, re.MULTILINE)
    manifest = Manifest.read(place / "model_repository" / "m_explain" / "explanation.json")
    assert [(p.name, p.features) for p in manifest.players] == [
        ("money", ("debt", "income")),
        ("rest", ("years",)),
        ("age", ("age",)),
        ("cards", ("cards",)),
    ]
    result = call("explain", "m", "--input", "wide.csv", "--top", "4")
    assert result.exit_code == 0, result.output
    assert {line.split()[-1] for line in result.stdout.splitlines()[1:5]} == {"money", "rest", "age", "cards"}
    assert call("check", "m").exit_code == 0


@pytest.mark.parametrize(
    ("value", "expected"), [("0,2", (0, 2)), ("all", (0, 1, 2)), ("predicted", "predicted"), ("1", (1,))]
)
def test_targets(place: Path, value: str, expected: object) -> None:
    assert (
        call("compile", "m.onnx", "--references", "r.npy", "--name", "m", "--targets", value).exit_code == 0
    )
    assert Manifest.read(place / "model_repository/m_explain/explanation.json").targets == expected


def test_methods_without_references(place: Path) -> None:
    for method, times in (("gradient", False), ("input-x-gradient", True)):
        result = call("compile", "m.onnx", "--name", method, "--method", method, "--repository", "other")
        assert result.exit_code == 0, result.output
        manifest = Manifest.read(place / "other" / f"{method}_explain" / "explanation.json")
        assert manifest.method.options == {"times_input": times}


def test_several_inputs(place: Path) -> None:
    assert place.is_dir()
    base = ("compile", "two.onnx", "--name", "two")
    assert call(*base, "--references", "two.npz").exit_code == 0
    assert_refused(call(*base, "--references", "r.npy"), r"2 inputs are explained \(a, b\): .* \.npz file")
    assert_refused(call("explain", "two", "--input", "r.npy"), r"inputs \['a', 'b'\]\. .* \.npz file")
    assert call("explain", "two", "--input", "two.npz").stdout.count("Row ") == 4
    only_a = call(*base, "--references", "two.npz", "--input", "a")
    assert_refused(only_a, r"given for \['a', 'b'\], but the explained inputs are \['a'\]")


TWO = ["--features", "a=a1,a2,a3", "--features", "b= b1, b2,b3,b4"]


@pytest.fixture
def two(place: Path) -> Path:
    """Columns of two inputs in one table, in another order and with others between them."""
    with np.load("two.npz") as file:
        a, b = file["a"], file["b"]
    columns = {"b4": b[:, 3], "id": np.arange(4), **{f"a{i}": a[:, i - 1] for i in (3, 1, 2)}}
    columns |= {f"b{i}": b[:, i - 1] for i in (1, 2, 3)}
    table = np.column_stack(list(columns.values()))
    np.savetxt("two.csv", table, delimiter=",", header=",".join(columns), comments="", fmt="%.9g")
    np.savetxt("bare.csv", table, delimiter=",")
    parquet.write_table(pa.table(columns), "two.parquet")
    return place


@pytest.mark.parametrize("file", ["two.csv", "two.parquet"])
def test_a_table_of_several_inputs(two: Path, file: str) -> None:
    result = call("compile", "two.onnx", "--name", "two", "--references", file, *TWO)
    assert result.exit_code == 0, result.output
    manifest = Manifest.read(two / "model_repository/two_explain/explanation.json")
    assert [e.feature_names for e in manifest.explained] == [("a1", "a2", "a3"), ("b1", "b2", "b3", "b4")]
    with np.load("two.npz") as archive:
        arrays = dict(archive)
    same = compile_model("two.onnx", DeepShap(arrays))
    assert manifest.digests == same.manifest.digests
    assert call("explain", "two", "--input", file, "--save", "answer.npz").exit_code == 0
    with np.load("answer.npz") as answer:
        for name, want in same.explain(arrays).items():
            np.testing.assert_allclose(answer[name], want, atol=1e-6)
    result = call("evaluate", "two", "--input", file, "--references", file)
    assert result.exit_code == 0, result.output
    result = call("references", file, *TWO, "--centroids", "2", "--least", "2", "-o", "c.npz")
    assert result.exit_code == 0, result.output
    table = read_rows(Path("c.npz")).arrays
    assert {name: a.shape[1:] for name, a in table.items()} == {"a": (3,), "b": (4,)}


def test_features_of_one_input_by_its_name(place: Path) -> None:
    """So that a name may hold the sign that divides; an array has no columns to choose."""
    names = "x=sex=male,income,debt,years,cards"
    result = call("compile", "m.onnx", "--name", "m", "--references", "r.npy", "--features", names)
    assert result.exit_code == 0, result.output
    (explained,) = Manifest.read(place / "model_repository/m_explain/explanation.json").explained
    assert explained.feature_names == ("sex=male", "income", "debt", "years", "cards")


TWO_REFUSED = {
    "one unnamed": (("two.csv", *TWO[:2]), r"given for \['a'\], but the explained inputs are \['a', 'b'\]"),
    "none named": (("two.csv",), "2 inputs are explained .* --features INPUT=A,B,C"),
    "names without input": (
        ("two.csv", "--features", "a1,b1"),
        "2 inputs are explained .* --features INPUT=",
    ),
    "the same input twice": (("two.csv", *TWO, *TWO[:2]), "INPUT=A,B,C for each of several inputs"),
    "lists twice": (
        ("two.csv", *TWO[:2], "--features", "b1,b2"),
        "--features 'b1,b2': give names by commas once",
    ),
    "no such column": (("two.csv", *TWO[:2], "--features", "b=b1,b9"), r"no column 'b9'; it has 'b4',"),
    "no such input": (("two.npz", *TWO[:2], "--features", "c=b1,b2"), r"feature names for \['c'\]"),
    "columns without names": (("bare.csv", *TWO), r"no names, so .* inputs 'a', 'b'"),
}


@pytest.mark.parametrize("name", TWO_REFUSED)
def test_features_that_do_not_divide_a_table(two: Path, name: str) -> None:
    assert two.is_dir()
    arguments, words = TWO_REFUSED[name]
    assert_refused(call("compile", "two.onnx", "--name", "two", "--references", *arguments), words)


def test_rows_of_several_inputs_without_names(two: Path) -> None:
    assert two.is_dir()
    assert call("compile", "two.onnx", "--name", "two", "--references", "two.npz").exit_code == 0
    assert_refused(call("explain", "two", "--input", "two.csv"), "with --features INPUT=A,B,C for each")


BASE = ("compile", "m.onnx", "--references", "r.npy", "--name", "m")
REFUSED = {
    "no references": (("compile", "m.onnx", "--name", "m"), "deepshap needs --references FILE"),
    "needless references": (
        (*BASE, "--method", "gradient"),
        "--method gradient takes no --references: that is for deepshap, integ",
    ),
    "an unknown method": ((*BASE, "--method", "magic"), "choose deepshap, gradient, input-x-gradient, "),
    "a bad name": ((*BASE[:-1], "a/b"), "'a/b' is not a model name"),
    "no model": (("compile", "no.onnx", *BASE[2:]), r"no\.onnx: cannot be read: No such file"),
    "references that are not there": ((*BASE[:3], "no.npy", *BASE[4:]), r"no\.npy: cannot be read"),
    "references of a strange kind": ((*BASE[:3], "r.ods", *BASE[4:]), r"use \.npz, \.npy, \.csv, \.parquet"),
    "targets in words": (
        (*BASE, "--targets", "0,one"),
        "--targets '0,one': give indices and contrasts such as 1-0 by commas",
    ),
    "targets without end": ((*BASE, "--targets", "0,"), "give indices and contrasts such as 1-0 by commas"),
    "targets outside": ((*BASE, "--targets", "3"), "indices 0 to 2"),
    "an unknown output": ((*BASE, "--output", "nil"), "no tensor 'nil'"),
    "an unknown input": ((*BASE, "--input", "nil"), r"no input \['nil'\]"),
    "few features": ((*BASE, "--features", "a,b"), "2 feature names for 'x', which has 5"),
    "a group without features": (
        (*BASE, "--group", "a="),
        "--group 'a=': give a name and features by commas",
    ),
    "a group twice": ((*BASE, "--group", "a=x[0]", "--group", "a=x[1]"), "'a' is given twice: name it once"),
    "a group of unknown features": ((*BASE, "--group", "a=x[9]"), r"no explained feature .* 'x\[9\]'"),
    "empty features": ((*BASE, "--features", "a,,b,c,d"), "must be a list of words"),
    "a repository that is a file": (
        (*BASE, "--repository", "r.npy"),
        "r.npy: cannot be written: File exists",
    ),
    "no arguments": (("compile",), "Missing argument"),
    "an unknown flag": ((*BASE, "--speed", "9"), "No such option: --speed"),
    "no such entry": (("explain", "m", "--input", "r.npy"), "no such entry; model_repository has none"),
    "no entry to check": (("check", "m"), "no such entry"),
    "entries in a file": (
        ("explain", "m", "--input", "r.npy", "--repository", "r.npy"),
        "r.npy is a file: give the folder that `rationale compile` wrote to",
    ),
    "an entry to check in a file": (
        ("check", "m", "--repository", "r.npy"),
        "r.npy is a file: give the folder",
    ),
    "an entry by its second name": (("check", "m_explain"), "is not a model name"),
    "no features to show": (("explain", "m", "--input", "r.npy", "--top", "0"), "--top"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_user_error(place: Path, name: str) -> None:
    before = sorted(p.name for p in place.rglob("*"))
    arguments, words = REFUSED[name]
    assert_refused(call(*arguments), words)
    assert sorted(p.name for p in place.rglob("*")) == before


def test_names_that_look_like_markup_are_printed_as_they_are(place: Path) -> None:
    model = parsed("g (float[N, 5] x) => (float[N, 5] y) { y = Tanh (x) }")
    for value in (model.graph.input[0], model.graph.output[0]):
        value.name = f"[/bold] :smile: {value.name}"
    model.graph.node[0].input[0], model.graph.node[0].output[0] = "[/bold] :smile: x", "[/bold] :smile: y"
    onnx.save(model, place / "odd.onnx")
    result = call("compile", "odd.onnx", "--references", "r.npy", "--name", "odd")
    assert result.exit_code == 0, result.output
    assert "[/bold] :smile: y (targets: predicted) by [/bold] :smile: x" in result.stdout


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "compile",
            [
                "[OPTIONS]",
                "--allow-pickle",
                "--references",
                "--features",
                "50 to 200 typical rows",
                "Example: rationale compile",
            ],
        ),
        ("compile", ["Options of some methods", "The machine that serves it", "--logits"]),
        (
            "explain",
            ["--input", "--save", "--top", "--rows", "without a server", "Example: rationale explain"],
        ),
        ("check", ["--repository", "Measure a written entry again", "Examples: rationale check"]),
        ("operators", ["List the operators that can be explained"]),
    ],
)
def test_help_is_worth_reading(command: str, words: list[str]) -> None:
    result = CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"}).invoke(app, [command, "--help"])
    text = " ".join(result.stdout.replace("│", " ").split())
    assert result.exit_code == 0
    for word in words:
        assert word in text


# -- explain -------------------------------------------------------------------------------------------


@pytest.fixture
def entry(place: Path) -> Path:
    compile_model(mlp(), DeepShap(np.load("r.npy")), feature_names=NAMES).write("model_repository", "m")
    return place


@pytest.mark.parametrize("file", ["r.npy", "r.npz", "r.csv", "r.parquet", "wide.csv"])
def test_rows_of_every_kind_explain_to_the_same_answer(entry: Path, file: str) -> None:
    result = call("explain", "m", "--input", file, "--save", "out.npz")
    assert result.exit_code == 0, result.output
    expected = compile_model(mlp(), DeepShap(np.load("r.npy"))).explain(np.load("r.npy"))["x_attributions"]
    np.testing.assert_allclose(np.load(entry / "out.npz")["x_attributions"], expected, rtol=1e-5, atol=1e-6)


ROWS_REFUSED = {
    "other columns": ("a,b,c,d,e\n1,2,3,4,5\n", r"no column 'age', 'income', 'debt', 'years', 'cards'"),
    "a word": (
        "age,income,debt,years,cards\n1,2,3,4,five\n",
        "line 2, column 'cards': 'five' is not a number",
    ),
    "NaN": ("1,2,3,4,nan\n", r"'x' holds nan at \[0, 4\], a missing value.* Impute or drop"),
    "too large a number": ("1,2,3,4,1e300\n", r"'x' holds 1e\+300 at \[0, 4\]"),
    "too few cells": ("1,2,3,4\n", r"'x' has shape \[1, 4\]; the model takes \[N, 5\], N ≥ 1"),
    "no rows": ("age,income,debt,years,cards\n", "rows.csv: a header and no rows: at least one is needed"),
}


@pytest.mark.parametrize("name", ROWS_REFUSED)
def test_rows_that_cannot_be_explained(entry: Path, name: str) -> None:
    content, words = ROWS_REFUSED[name]
    (entry / "rows.csv").write_text(content)
    assert_refused(call("explain", "m", "--input", "rows.csv", "--save", "out.npz"), words)
    assert not Path("out.npz").exists()


def test_more_columns_than_features(place: Path) -> None:
    compile_model(mlp(), DeepShap(np.load("r.npy"))).write("model_repository", "m")
    (place / "rows.csv").write_text("a,b,c,d,e,f\n1,2,3,4,5,6\n")
    assert_refused(call("explain", "m", "--input", "rows.csv"), "6 columns.* 5 features.* --features")


def test_an_answer_that_cannot_be_saved(entry: Path) -> None:
    for target in ("nowhere/out.npz", "m.onnx/out.npz", "model_repository"):
        result = call("explain", "m", "--input", "r.npy", "--save", target)
        assert_refused(result, f"{target}: cannot be written: ")
    assert [p.name for p in entry.iterdir() if p.name.startswith(".")] == []


def test_a_damaged_entry(entry: Path) -> None:
    manifest = entry / "model_repository" / "m_explain" / "explanation.json"
    content = manifest.read_text()
    manifest.write_text(json.dumps(json.loads(content) | {"version": 9}))
    assert_refused(call("check", "m"), "not a manifest .*Compile the entry again")
    manifest.write_text(content)
    (entry / "model_repository" / "m" / "1" / "model.onnx").write_bytes(b"damaged")
    assert_refused(call("check", "m"), "Compile it again")


def test_the_help_names_every_method() -> None:
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["compile", "--help"])
    assert [name for name in METHODS if name not in result.stdout] == []


# -- decision profiles ---------------------------------------------------------------------------------


def test_a_decision_profile_is_told_and_its_faults_are_one_line(place: Path) -> None:
    profile = "output: y[1]\nthreshold: 0.5\nadverse: above\nrefer: [0.4, 0.6]\n"
    Path("decision.yaml").write_text(
        f"{profile}knock_outs: [{{feature: land, equals: NO, reason: R1}}]\nreasons: {{R1: a}}\n"
    )
    arguments = [
        "compile",
        "m.onnx",
        "--references",
        "r.csv",
        "--name",
        "credit",
        "--decision",
        "decision.yaml",
    ]
    result = call(*arguments)
    assert (result.exit_code, result.stderr.count("warning: decision: the references are 'custom'")) == (
        0,
        1,
    ), result.stderr
    assert re.search(
        r"^decision +declines y\[1\] above 0.5, a person from 0.4 to 0.6; it is 0 to 1 *$",
        result.stdout,
        re.M,
    )
    assert re.search(
        r"^reasons +4 at most, 1 texts, .* instances need land too *$", result.stdout, re.MULTILINE
    )
    before = (place / "model_repository/credit_explain/explanation.json").read_text()
    Path("decision.yaml").write_text(f"{profile}never_disclose: [incom]\nprotected: [age]\n")
    assert_refused(
        call(*arguments, "--targets", "0"),
        r"^error: decision.yaml: 3 problems: \(1\) .*--targets .*'income'.*'age'",
    )
    assert (place / "model_repository/credit_explain/explanation.json").read_text() == before


@pytest.mark.parametrize(
    ("value", "due"),
    [(2488872.0, "2,488,872"), (999_999.7, "1,000,000"), (-999_999.4, "-999,999"), (0.5, "0.5")],
)
def test_a_base_value_of_about_a_million_has_no_exponent(value: float, due: str) -> None:
    assert _format_number(value) == due
