"""`python -m benchmarks.gpu` on the CPU provider: its table, its file, and the reasons in its cells."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import gpu
from rationale import DeepShap, compile_model
from rationale.bench.cases import CAPTUM, FORWARD, OURS, SHAP, Case
from rationale.bench.peers import EXPLAINERS
from rationale.bench.process import ProcessDiedError
from rationale.bench.subjects import make_subject
from rationale_service.engine.backends.devices import CPU

CREDIT = Case("credit", (24,), 3)


def test_the_table_and_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gpu.json"
    gpu.main(["credit", "--references", "3", "--seconds", "1", "--threads", "1", "--json", str(path)])
    *_, heads, row = capsys.readouterr().out.splitlines()
    assert "probe rows" in heads
    assert len(row) == len(heads)
    assert row.startswith("credit 24-256-256-2, K=3")
    written = json.loads(path.read_text())
    assert written["machine"]["provider"] == CPU
    (line,) = written["lines"]
    assert line["probe_difference"] == 0
    assert list(line["ratios"]) == [FORWARD, gpu.WALK, CAPTUM, SHAP]
    assert all(value > 0 for value in line["ratios"].values())
    assert all(off < gpu.AGREEMENT for off in line["differences"].values())


def test_peers_that_cannot_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each says why in its cell, and the others are measured."""

    def missing(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'captum'", name="captum")

    def failing(*_: object) -> None:
        raise RuntimeError("CUDA out of memory\nwith a stack")

    monkeypatch.setitem(EXPLAINERS, CAPTUM, missing)
    monkeypatch.setitem(EXPLAINERS, SHAP, failing)
    line = gpu.measure(CREDIT, CPU, 1, 0)
    assert list(line.times_s) == [OURS, FORWARD, gpu.WALK]
    assert gpu.row_of(line).split()[-3:] == ["missing", "failed", "1"]
    assert gpu.reasons(line) == [
        f"{line.label}: captum missing: pip install captum",
        f"{line.label}: shap failed: RuntimeError: CUDA out of memory",
    ]


def test_values_that_differ_have_a_star() -> None:
    times = {name: [[1.0], [3.0]] for name in (OURS, FORWARD, gpu.WALK, CAPTUM, SHAP)}
    line = gpu.Line(CREDIT, 0.0, times, differences={gpu.WALK: 1e-6, CAPTUM: 0.25}, notes=("loses a share",))
    assert gpu.row_of(line).split()[-4:] == ["1.00", "1.00*", "1.00", "2"]
    (reason,) = gpu.reasons(line)
    assert reason.endswith("captum differs from ours by 0.25 times the largest attribution; it loses a share")


def test_cases_that_find_no_time_or_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    (late,) = gpu.measured([CREDIT], CPU, 1, 0)
    assert gpu.row_of(late).endswith("left out")
    assert gpu.reasons(late) == [f"{late.label}: ours left out: the 0 s of --seconds were up"]

    def dies(*_: object) -> None:
        raise ProcessDiedError("its process was ended")

    monkeypatch.setattr(gpu, "in_a_process", dies)
    (failed,) = gpu.measured([CREDIT], CPU, 1, 60)
    assert gpu.row_of(failed).endswith("failed")
    assert gpu.reasons(failed) == [f"{failed.label}: ours failed: its process was ended"]


def test_probe_rows_find_another_answer(tmp_path: Path) -> None:
    subject = make_subject(CREDIT, 0)
    entry = compile_model(subject.model, DeepShap(subject.references.numpy())).write(tmp_path, "credit")
    session = gpu.open_session(entry, CPU, 1)

    class Rounding:
        """A device that loses a hundredth."""

        get_outputs = staticmethod(session.get_outputs)

        @staticmethod
        def run(names: list[str], inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [np.float32(0.99) * np.asarray(answer) for answer in session.run(names, inputs)]

    assert gpu.probe_difference(entry, session) < 1e-6
    assert gpu.probe_difference(entry, Rounding()) > 1e-3
