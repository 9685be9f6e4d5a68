"""`rationale bench` as a command: its files, its errors, and what it does not import."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rationale.bench import cases
from rationale.bench.cases import PEERS, Case, choose_cases, parse_references
from rationale.errors import InvalidOptionError
from rationale_service.cli.main import app

TINY = ("credit", "--references", "5", "--rows", "3", "--repeats", "2", "--threads", "1")


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


@pytest.mark.full
def test_files(tmp_path: Path) -> None:
    """Every ratio from every time, with what it was measured on; all systems agree on this network."""
    out = tmp_path / "new" / "folder"
    peers = ["ort-forward", "shap", "captum"]
    result = call(*TINY, "--peers", ",".join(reversed(peers)), "--out", str(out))
    assert result.exit_code == 0, result.output
    assert sorted(p.name for p in out.iterdir()) == ["bench.json", "bench.png"]
    assert (out / "bench.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((out / "bench.json").read_text())
    assert set(written) == {"version", "machine", "versions", "settings", "cases"}
    assert written["settings"] == {
        "repeats": 2,
        "threads": 1,
        "peers": peers,
        "as_installed": False,
    }
    assert {"onnxruntime", "torch", "shap", "captum"} <= set(written["versions"])
    (case,) = written["cases"]
    assert (case["model"], case["references"], case["rows"], case["shape"]) == ("credit", 5, 3, [24])
    assert list(case["systems"]) == ["ours", *peers]
    assert list(case["ratios"]) == peers
    for name, system in case["systems"].items():
        assert len(system["times_s"]) == 2
        assert all(t > 0 for turn in system["times_s"] for t in turn)
        if name != "ort-forward":
            assert 0 < system["error"] < 1e-5
            assert 0 < system["gap"] < 1e-5
        low, median, high = system["quartiles_s"]
        assert 0 < low <= median <= high
        assert system["rows_per_s"] == pytest.approx(3 / system["median_s"])
        assert system["notes"] == []
    for found in case["ratios"].values():
        assert 0 < found["low"] <= found["median"] <= found["high"]
    assert case["left_out"] == {}


def test_table() -> None:
    result = call(*TINY, "--peers", "ort-forward")
    assert result.exit_code == 0, result.output
    (row,) = (line for line in result.stdout.splitlines() if line.startswith("credit 24-256-256-2, K=5, N=3"))
    assert row.count("–") == 4  # two between quartiles, two peers that did not run


REFUSED = {
    "an unknown model": (("alexnet",), r"no model 'alexnet': choose from vgg19, resnet50"),
    "an unknown peer": (("credit", "--peers", "shap,lime"), r"no peer 'lime': choose from ort-forward"),
    "no references": (("credit", "--references", "0"), r"--references"),
    "no rounds": (("credit", "--repeats", "0"), r"--repeats"),
    "a file for a folder": (("credit", "--out", __file__), "is not a folder"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    arguments, message = REFUSED[name]
    result = call(*arguments)
    assert result.exit_code == 2
    assert message.replace("\\", "") in result.output.replace("\n", " ")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "find_spec", lambda name: None if name in ("shap", "torchvision") else name)
    result = call("credit")
    assert result.exit_code == 2
    assert "needs torchvision, shap: pip install " in result.output


def test_help_imports_no_peer() -> None:
    code = "import sys, rationale_service.cli.main; print([m for m in ('torch', 'shap') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_cases_are_those_of_the_table() -> None:
    labels = [case.label for case in choose_cases([], (), None)]
    assert labels == [
        "vgg19 112², K=10",
        "resnet50 224², K=10",
        "densenet201 128², K=10",
        "efficientnetb0 128², K=10",
        "transformer 16 tokens, K=10",
        "credit 24-256-256-2, K=100",
        "credit 24-256-256-2, K=1000",
        "credit 24-256-256-2, K=100, N=64",
        "credit-softmax 24-256-256-2, K=100",
        "credit-softmax 24-256-256-2, K=1000",
    ]
    assert len(choose_cases(["credit"], (50,), None)) == 2
    assert [case.references for case in choose_cases(["vgg19"], (7, 9), None)] == [7, 9]
    assert choose_cases(["credit"], (), 2) == [Case("credit", (24,), k, 2) for k in (100, 1000)]
    assert "shap" in PEERS


@pytest.mark.parametrize("text", ["0", "3,x", "", "1,,2", "-1"])
def test_references_are_numbers(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="--references takes whole numbers"):
        parse_references(text)


def test_references_come_in_order() -> None:
    assert parse_references("30, 1,10,1") == (1, 10, 30)
    assert parse_references(None) == ()
