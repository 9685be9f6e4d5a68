"""`python -m benchmarks`: its table, its files, the reasons of empty lines; and `rationale bench`."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyperf
import pytest
from typer.testing import CliRunner

from benchmarks import __main__ as command
from benchmarks.cases import CAPTUM, CASES, FORWARD, OURS, SHAP, WALK, BenchmarkCase, choose_cases, numbers
from benchmarks.explanations import CaseResult, CaseSettings, MeasuredSystem, measure, probe_difference
from benchmarks.peers import EXPLAINERS
from benchmarks.runtime import session_of
from benchmarks.subjects import make_subject
from benchmarks.timing import ProcessDiedError
from rationale import DeepShap, compile_model
from rationale_service.cli.main import app

CREDIT = BenchmarkCase("credit", (24,), 3)
TINY = "credit --references 5 --rows 3 --repeats 2 --threads 1"


@pytest.mark.full
def test_the_table_and_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every time, with what it was measured on; all systems agree on this network."""
    out = tmp_path / "new" / "folder"
    command.main([*TINY.split(), "--out", str(out)])
    _, label, heads, *rows = capsys.readouterr().out.splitlines()
    assert label.startswith("credit 24-256-256-2, K=5, N=3: compiled in ")
    assert [row.split()[0] for row in rows] == [OURS, FORWARD, WALK, SHAP, CAPTUM]
    assert heads.split()[:2] == ["median", "ms"]
    assert sorted(p.name for p in out.iterdir()) == ["bench.json"]
    suite = pyperf.BenchmarkSuite.load(str(out / "bench.json"))
    assert {"onnxruntime", "torch", "shap", "captum", "provider", "threads"} <= set(suite.get_metadata())
    for name in (OURS, FORWARD, WALK, SHAP, CAPTUM):
        actual = suite.get_benchmark(f"credit 24-256-256-2, K=5, N=3: {name}")
        assert actual.get_nrun() == 2
        about = actual.get_metadata()
        assert (about["references"], about["rows"]) == (5, 3)
        if name != FORWARD:
            assert 0 < about["error"] < 1e-5
            assert 0 < about["gap"] < 1e-5


REFUSED = {
    "an unknown model": (["alexnet"], "choose from vgg16, vgg19"),
    "an unknown peer": (["credit", "--peers", "shap,lime"], "not 'lime'"),
    "no references": (["credit", "--references", "0"], "--references"),
    "no rounds": (["credit", "--repeats", "0"], "--repeats"),
    "a file for a folder": (["credit", "--out", __file__], "is not a folder"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, message = REFUSED[name]
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert message in capsys.readouterr().err


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "torchvision" else name)
    with pytest.raises(SystemExit):
        command.main(["credit"])
    assert "need torchvision: pip install " in capsys.readouterr().err


def test_peers_that_cannot_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each says why on its line, and the others are measured."""

    def missing(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'captum'", name="captum")

    def failing(*_: object) -> None:
        raise RuntimeError("CUDA out of memory\nwith a stack")

    monkeypatch.setitem(EXPLAINERS, CAPTUM, missing)
    monkeypatch.setitem(EXPLAINERS, SHAP, failing)
    actual = measure(CREDIT, CaseSettings(repeats=5, threads=1, seconds=0))
    assert list(actual.systems) == [OURS, FORWARD, WALK]
    assert {len(system.times_s) for system in actual.systems.values()} == {1}, "the seconds are up"
    assert actual.left_out == {
        SHAP: "failed: RuntimeError: CUDA out of memory",
        CAPTUM: "missing: pip install captum",
    }
    assert actual.probe_difference == 0


def outcome(references: int = 3, rows: int = 1) -> CaseResult:
    """SHAP takes ten times as long as ours, and its values are others; the third round is slow."""
    times = [[0.001 * references, 0.001 * references], [0.0012 * references], [0.005 * references]]
    systems = {
        OURS: MeasuredSystem(times, 0.1, 1e-7, 2e-7),
        SHAP: MeasuredSystem([[10 * t for t in turn] for turn in times], 0.1, 0.25, 0.2),
    }
    return CaseResult(
        BenchmarkCase("credit", (24,), references, rows), 0.5, 10, 5, 0, systems, {}, ["loses a share"]
    )


def test_the_spread_stands_beside_the_median() -> None:
    _, _, ours, shap, note = command.lines(outcome(10, rows=4))
    assert ours.split()[1:4] == ["12", "(11–31)", "10"]
    assert ours.split()[4] == "333.3", "rows/s by the median over rounds"
    assert "10 (10–10)" in shap
    assert note == "shap: its values are off by 0.25 times the largest attribution (loses a share)"


def test_a_case_that_dies_or_finds_no_time_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def process(_measure: object, case: Any, _settings: object) -> CaseResult:
        if case.model == "resnet50":
            raise ProcessDiedError("its process was ended")
        return outcome()

    monkeypatch.setattr(command, "in_a_process", process)
    first, died = command.measured([CREDIT, *choose_cases(["resnet50"])], CaseSettings())
    assert first.systems
    assert died.left_out == {OURS: "failed: its process was ended"}
    (late,) = command.measured([CREDIT], CaseSettings(), 0)
    assert late.left_out == {OURS: "left out: the 0 s of --seconds were up"}
    assert list(command.lines(late)) == [
        f"\n{CREDIT.label}: nothing measured",
        f"{OURS:14}left out: the 0 s of --seconds were up",
    ]


def test_nothing_measured_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "measured", lambda *_: [CaseResult(CREDIT, left_out={OURS: "failed"})])
    with pytest.raises(SystemExit):
        command.main(["credit"])
    assert "nothing" in capsys.readouterr().err


def test_probe_rows_find_another_answer(tmp_path: Path) -> None:
    subject = make_subject(CREDIT)
    entry = compile_model(subject.model, DeepShap(subject.references.numpy())).write(tmp_path, "credit")
    session = session_of(entry / "1/model.onnx", 1)

    class Rounding:
        """A device that loses a hundredth."""

        get_outputs = staticmethod(session.get_outputs)

        @staticmethod
        def run(names: list[str], inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [np.float32(0.99) * np.asarray(answer) for answer in session.run(names, inputs)]

    assert probe_difference(entry, session) < 1e-6
    assert probe_difference(entry, Rounding()) > 1e-3


# -- cases ---------------------------------------------------------------------------------------------


def test_cases_are_those_of_the_docs() -> None:
    labels = {case.label for case in choose_cases()}
    assert len(labels) == len(CASES)
    assert {
        "vgg19 112², K=10",
        "transformer 16 tokens, K=10",
        "credit 24-256-256-2, K=100, N=64",
        "xgboost, K=1000, N=64",
    } <= labels
    assert len(choose_cases(["credit"], [50])) == 2
    assert [case.references for case in choose_cases(["vgg19"], [7, 9])] == [7, 9]
    assert choose_cases(["credit"], (), [2]) == [BenchmarkCase("credit", (24,), k, 2) for k in (100, 1000)]
    assert [case.shape for case in choose_cases(["resnet50", "credit-softmax"], [1], size=64)] == [
        (3, 64, 64),
        (24,),
    ]


def test_references_come_in_order() -> None:
    assert numbers("30, 1,10,1") == [1, 10, 30]


# -- the command of the wheel --------------------------------------------------------------------------


def test_the_wheel_says_how_to_run_them() -> None:
    arguments = ["credit", "--references", "1,10", "--peers", "ort-forward, shap"]
    output = CliRunner().invoke(app, ["bench", *arguments])
    assert output.exit_code == 0
    assert "pip install -e '.[bench]'" in output.stdout
    (line,) = (line for line in output.stdout.splitlines() if line.strip().startswith("python -m benchmarks"))
    assert shlex.split(line)[3:] == arguments


def test_the_command_imports_no_peer() -> None:
    code = "import sys, rationale_service.cli.main; print([m for m in ('torch', 'shap') if m in sys.modules])"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"
