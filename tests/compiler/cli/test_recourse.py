"""`rationale recourse`: what it prints, what it writes, and what it refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rationale import TreeShap, compile_model
from rationale.cli.compile import app
from tests.compiler.recourse.test_recourse import EVERY, NAMES, REFERENCES, declined, forest


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    profile = {"output": "y", "threshold": 0.0, "adverse": "above", "actionable": EVERY}
    model = forest()
    profile["output"] = model.graph.output[0].name
    decides = compile_model(model, TreeShap(REFERENCES), decision=profile, feature_names=NAMES)
    decides.write(folder, "forest")
    compile_model(model, TreeShap(REFERENCES), feature_names=NAMES).write(folder, "plain")
    rows = declined(decides, 5).tolist()
    lines = [",".join(NAMES), *(",".join(map(repr, row)) for row in rows)]
    (folder / "rows.csv").write_text("\n".join(lines))
    return folder


def run(repository: Path, name: str, *options: str) -> Result:
    given = ["recourse", name, "--input", str(repository / "rows.csv"), "--repository", str(repository)]
    return CliRunner().invoke(app, [*given, *options])


def test_it_prints_plans_and_flip_points_and_writes_every_row(repository: Path, tmp_path: Path) -> None:
    done = run(repository, "forest", "--rows", "2", "--save", str(tmp_path / "all.jsonl"))
    assert done.exit_code == 0, done.output
    assert "row 1: decline" in done.output
    assert "row 3" not in done.output
    assert "plan 1 (cost" in done.output
    saved = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [answer["row"] for answer in saved] == [0, 1, 2, 3, 4]
    assert all({"flip_points", "plans", "search", "note", "decision"} <= answer.keys() for answer in saved)


@pytest.mark.parametrize(("printed", "left"), [(0, 5), (3, 2), (5, 0), (6, 0)])
def test_it_tells_how_many_rows_it_does_not_print(repository: Path, printed: int, left: int) -> None:
    lines = run(repository, "forest", "--rows", str(printed)).output.splitlines()
    told = [line for line in lines if " more row" in line]
    assert told == [f"… and {left} more row{'s' * (left > 1)} (--rows, --save)"] * (left > 0)


@pytest.mark.parametrize(
    ("name", "options", "word"),
    [("plain", (), "--decision"), ("forest", ("--save", "x.csv"), ".jsonl"), ("absent", (), "absent")],
)
def test_what_it_refuses(repository: Path, name: str, options: tuple[str, ...], word: str) -> None:
    done = run(repository, name, *options)
    assert (done.exit_code, word in done.output) == (2, True)
