"""`rationale evaluate` as a command: bad input, the files it writes, seeds; once in a process of its own."""

import csv
import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from rationale import DeepShap, Gradient, compile_model
from rationale.artifact.repository.folder import write
from rationale.errors import InvalidOptionError, RepositoryError
from rationale.evaluate.evaluate import EvaluationSettings, evaluate
from rationale.evaluate.report import write_report
from rationale_service.cli.main import app
from tests.compiler.models import FEATURES, NAMES, contents, mlp, parsed, rows
from tests.compiler.pictures.pages import Page

RATIONALE = Path(sys.executable).with_name("rationale")

# -- seeds ---------------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    repository = tmp_path / "repo"
    compile_model(mlp(), DeepShap(rows(4, FEATURES))).write(repository, "m")
    compile_model(mlp(), Gradient()).write(repository, "g")
    np.save(tmp_path / "x.npy", rows(30, FEATURES, seed=9))
    for out, seed in (("one", 3), ("two", 3), ("three", 4)):
        settings = EvaluationSettings(rows=10, seed=seed, orders=3)
        evaluations = evaluate(repository, ["m", "g"], tmp_path / "x.npy", settings=settings)
        write_report(evaluations, settings, tmp_path / "x.npy", tmp_path / out)
    first, two, three = (contents(tmp_path / out) for out in ("one", "two", "three"))
    assert first == two
    assert first["evaluation.csv"] != three["evaluation.csv"]


# -- bad input -----------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with entry m, and files of rows that fit and do not."""
    monkeypatch.chdir(tmp_path)
    np.save("r.npy", rows(4, FEATURES))
    compiled = compile_model(mlp(), DeepShap(rows(4, FEATURES)), feature_names=NAMES)
    compiled.write("model_repository", "m")
    np.savetxt("x.csv", rows(6, FEATURES, seed=9), delimiter=",", header=",".join(NAMES), comments="")
    np.save("equal.npy", np.ones((4, FEATURES)))
    np.save("narrow.npy", rows(4, 3))
    Path("empty.csv").write_text("")
    Path("headers.csv").write_text(",".join(NAMES) + "\n")
    Path("other.csv").write_text("a,b,c,d,e\n1,2,3,4,5\n6,7,8,9,10\n")
    Path("hole.csv").write_text(",".join(NAMES) + "\n1,2,3,4,nan\n6,7,8,9,10\n")
    return tmp_path


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["evaluate", *arguments])


BASE = ("m", "--input", "x.csv")
REFUSED = {
    "no rows": (("m", "--input", "headers.csv"), r"headers\.csv: a header and no rows"),
    "an empty file": (("m", "--input", "empty.csv"), r"empty\.csv: empty: at least one row"),
    "other columns": (("m", "--input", "other.csv"), r"other\.csv: no column 'age'"),
    "few columns": (("m", "--input", "narrow.npy"), r"shape \[4, 3\]; the model takes \[N, 5\]"),
    "NaN": (("m", "--input", "hole.csv"), r"'x' holds nan at \[0, 4\]"),
    "no file": (("m", "--input", "no.csv"), r"no\.csv: cannot be read"),
    "an unknown entry": (("n", "--input", "x.csv"), r"n_explain: there is no such entry; .* has \['m'\]"),
    "one of two unknown": (("m", "n", "--input", "x.csv"), "n_explain: there is no such entry"),
    "a name twice": (("m", "m", "--input", "x.csv"), r"\['m', 'm'\]: give one name or several different"),
    "an entry by its second name": (("m_explain", "--input", "x.csv"), "is not a model name"),
    "no rows asked for": ((*BASE, "--rows", "0"), "--rows"),
    "a negative seed": ((*BASE, "--seed", "-1"), "--seed"),
    "other references": ((*BASE, "--references", "equal.npy"), r"equal\.npy: .*not the references that 'm'"),
    "references that do not fit": ((*BASE, "--references", "narrow.npy"), r"the model needs \[K, 5\]"),
    "a file for a folder": ((*BASE, "--out", "x.csv"), r"--out x\.csv: .*x\.csv is not a folder"),
    "a folder in a file": ((*BASE, "--out", "x.csv/out"), r"x\.csv is not a folder"),
    "no input": (("m",), "Missing option '--input'"),
    "no names": (("--input", "x.csv"), "Missing argument"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_user_error(place: Path, name: str) -> None:
    before = contents(place)
    arguments, words = REFUSED[name]
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert re.search(words, " ".join(result.stderr.split())), result.stderr
    assert result.stdout == ""
    assert contents(place) == before


def test_bad_arguments_from_python(place: Path) -> None:
    for change in ({"rows": 0}, {"seed": -1}, {"orders": 0}):
        with pytest.raises(InvalidOptionError):
            EvaluationSettings(**change)
    with pytest.raises(InvalidOptionError, match=r"entries \[\]"):
        evaluate(place / "model_repository", [], place / "x.csv")


def test_rows_on_which_the_model_overflows(tmp_path: Path) -> None:
    model = parsed("g (float[N, 2] x) => (float[N, 2] y) { y = Exp (x) }")
    compile_model(model, Gradient()).write(tmp_path, "m")
    np.save(tmp_path / "x.npy", rows(3, 2) + 100)
    with pytest.raises(InvalidOptionError, match="NaN"):
        evaluate(tmp_path, ["m"], tmp_path / "x.npy")


def test_an_entry_without_its_warmup_row(place: Path) -> None:
    (place / "model_repository" / "m_explain" / "warmup" / "input_0").unlink()
    with pytest.raises(RepositoryError, match=r"warmup.*\['x'\]"):
        evaluate(place / "model_repository", ["m"], place / "x.csv")


# -- files ---------------------------------------------------------------------------------------------


def test_the_page_shows_curves_and_rows(place: Path) -> None:
    """One figure for each curve, one for the redrawn weights, and one for each of the first three rows."""
    compile_model(mlp(), Gradient()).write("model_repository", "g")
    result = call("m", "g", "--input", "x.csv", "--references", "r.npy", "--out", "out")
    assert result.exit_code == 0, result.output
    page = Page((place / "out" / "evaluation.html").read_text("utf-8"))
    titles = [seen.text for seen in page.of("figcaption")]
    assert [title.split(" ")[0] for title in titles] == [
        *("Deletion", "Insertion", "Weights"),
        *["m", "g"] * 3,
    ]
    labels = dict(page.rows()[:3])
    held = json.loads((place / "out" / "evaluation.json").read_text())["entries"]
    assert labels["m (deepshap)"] == f"area {held[0]['deletion_area']:.4g}"
    assert labels["g (gradient)"] == f"area {held[1]['deletion_area']:.4g}"
    drawn = [seen.attributes["points"].split() for seen in page.of("polyline") if "div" in seen.inside]
    assert [len(points) for points in drawn[:3]] == [FEATURES + 1] * 3, "random orders, and both entries"
    assert not page.of("script")


def test_files_are_written_whole_or_not_at_all(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(place / "out", {"a": b"old", "b": b"old"})
    real = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.name == "b":
            real(path, content[:1])
            raise OSError(28, "No space left on device")
        return real(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InvalidOptionError, match=f"--out .*out: .*{os.strerror(errno.ENOSPC)}"):
        write(place / "out", {"a": b"new", "b": b"new"})
    assert contents(place / "out") == {"a": b"old", "b": b"old"}


@pytest.mark.full
def test_the_command_in_a_process(place: Path) -> None:
    arguments = [*BASE, "--references", "r.npy", "--out", "out", "--rows", "5", "--seed", "1"]
    result = subprocess.run(
        [RATIONALE, "evaluate", *arguments], capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 0, result.stderr
    lines = ["m: 5 rows, 1 target(s) of y a row, 5 features replaced by: reference mean"]
    assert result.stderr.splitlines() == lines
    assert sorted(contents(place / "out")) == ["evaluation.csv", "evaluation.html", "evaluation.json"]
    (row,) = csv.DictReader((place / "out" / "evaluation.csv").read_text().splitlines())
    whole = json.loads((place / "out" / "evaluation.json").read_text())
    (held,) = whole["entries"]
    assert (whole["input"], whole["settings"]["seed"], whole["settings"]["rows"]) == ("x.csv", 1, 5)
    assert (row["entry"], row["method"], row["rows"]) == ("m", "deepshap", "5")
    assert float(row["deletion_area"]) == held["deletion_area"]
    assert len(held["deletion"]["values"]) == len(held["insertion"]["fractions"]) == FEATURES + 1
    assert [stage["layers"] for stage in held["randomised"]] == [1, 2]
    assert float(row["randomised_correlation"]) == held["randomised"][-1]["correlation"]
    manifest = json.loads((place / "model_repository/m_explain/explanation.json").read_text())
    assert row["explanation_digest"] == held["digests"]["explanation"] == manifest["digests"]["explanation"]
    assert f"{held['deletion_area']:.4g}" in result.stdout
