"""`rationale check --runtime openvino`: a written entry, measured where it will run."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.networks import perceptron
from benchmarks.subjects import export
from rationale import DeepShap, Deployment, Gradient, IntegratedGradients, Lrp, compile_model
from rationale.artifact.recheck import check_entry
from rationale.errors import CheckFailedError, InvalidOptionError
from rationale.methods.engine import Method
from rationale.schema.machine import Runtime
from rationale_service.cli.main import app
from tests.compiler.models import cnn, rows
from tests.tolerances import COMPLETE_32

WIDTH = 32  # of two layers in a row: a weight that is square


def written(folder: Path, method: Method, runtime: Runtime, *, one_shot: bool = False) -> Path:
    """A credit-like network with Softmax at its end."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(*perceptron([12, WIDTH, WIDTH, 2]), torch.nn.Softmax(-1)).eval()
    model = export(network, torch.zeros(2, 12))
    deployment = Deployment(runtime=runtime, one_shot=one_shot)
    compile_model(model, method, targets=[1], deployment=deployment).write(folder, "credit")
    return folder


METHODS: dict[str, Any] = {
    "deepshap": DeepShap(rows(5, 12)),
    "gradient": Gradient(),
    "integrated": IntegratedGradients(rows(1, 12)),
    "lrp": Lrp(),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("one_shot", [False, True], ids=["two entries", "one shot"])
def test_an_entry_for_openvino_is_right_there(tmp_path: Path, method: Method, one_shot: bool) -> None:
    checked = check_entry(written(tmp_path, method, "openvino", one_shot=one_shot), "credit", "openvino")
    assert checked.measured.runtime_error is not None
    assert 0 <= checked.measured.runtime_error <= COMPLETE_32
    assert checked.measured.outputs_error <= COMPLETE_32


def test_an_entry_for_onnx_runtime_is_refused_where_openvino_confuses_its_weights(tmp_path: Path) -> None:
    folder = written(tmp_path, METHODS["deepshap"], "onnxruntime")
    with pytest.raises(CheckFailedError, match=r"attributions miss|differ from ONNX Runtime's"):
        check_entry(folder, "credit", "openvino")
    assert check_entry(folder, "credit").measured.runtime_error is None


@pytest.mark.parametrize("name", METHODS)
def test_an_entry_says_by_what_its_gap_is_judged(tmp_path: Path, name: str) -> None:
    manifest = check_entry(written(tmp_path, METHODS[name], "onnxruntime"), "credit")
    assert manifest.method.gap == METHODS[name].gap
    assert (manifest.method.gap is None) == (manifest.completeness_gap is None)


def test_slopes_have_no_gap_and_are_compared_all_the_same(tmp_path: Path) -> None:
    folder = written(tmp_path, METHODS["gradient"], "onnxruntime")
    with pytest.raises(CheckFailedError, match=r"differ from ONNX Runtime's .*docs/runtimes.md"):
        check_entry(folder, "credit", "openvino")


def test_what_openvino_does_not_load(tmp_path: Path) -> None:
    compile_model(cnn(), DeepShap(rows(3, 2, 6, 8)), targets=[0]).write(tmp_path, "cnn")
    with pytest.raises(CheckFailedError, match=r"MaxUnpool.* --runtime openvino"):
        check_entry(tmp_path, "cnn", "openvino")
    answer = CliRunner().invoke(app, ["check", "cnn", "--repository", str(tmp_path), "--runtime", "openvino"])
    assert answer.exit_code == 2
    assert "MaxUnpool" in answer.stderr


def test_the_command_says_what_it_compared(tmp_path: Path) -> None:
    written(tmp_path, METHODS["deepshap"], "any")
    answer = CliRunner().invoke(
        app, ["check", "credit", "--repository", str(tmp_path), "--runtime", "openvino"]
    )
    assert answer.exit_code == 0
    assert "beside ONNX Runtime" in answer.stdout
    assert "for any" in answer.stdout


@pytest.mark.parametrize("runtime", ["tensorrt", "any", "tvm"])
def test_runtimes_that_cannot_be_asked_here(tmp_path: Path, runtime: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"--runtime .*onnxruntime.*openvino"):
        check_entry(tmp_path, "credit", runtime)


def test_without_openvino(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path, METHODS["deepshap"], "openvino")
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(InvalidOptionError, match="pip install 'openvino<"):
        check_entry(folder, "credit", "openvino")
