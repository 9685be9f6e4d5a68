"""The entry that the project keeps in model_repository/ is what its documented command makes today."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from rationale.artifact.entry import open_entry
from rationale.artifact.recheck import check_entry
from rationale.cli.compile import app
from rationale.tables.files import read_rows

ROOT = Path(__file__).parents[4]
REPOSITORY = ROOT / "model_repository"
STALE = "model_repository/ is stale: run the command of model_repository/README.md, and commit what it writes"
OF_THE_MACHINE = {
    "tools",
    "measured",
    "graphs",
}  # versions, timings, and digests of files with versions in them


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    block = re.search(r"```sh\nrationale (.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    assert block is not None
    folder = tmp_path_factory.mktemp("fresh")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        command = shlex.split(block[1].replace("\\\n", " "))
        result = CliRunner().invoke(app, [*command, "--repository", str(folder)])
    assert result.exit_code == 0, result.output
    return folder


def files(repository: Path) -> dict[str, Path]:
    entries = (path for name in ("credit", "credit_explain") for path in (repository / name).rglob("*"))
    return {str(path.relative_to(repository)): path for path in entries if path.is_file()}


def manifest(repository: Path) -> dict[str, Any]:
    """The manifest without what differs from machine to machine; numbers to five digits."""
    text = (repository / "credit_explain" / "explanation.json").read_text()
    content = json.loads(text, parse_float=lambda digits: float(f"{float(digits):.5g}"))
    content["digests"] = {name: content["digests"][name] for name in ("model", "references")}
    del content["variants"]["threads"]
    return {name: value for name, value in content.items() if name not in OF_THE_MACHINE}


def test_a_new_compile_writes_the_same_manifest_and_files(fresh: Path) -> None:
    assert manifest(REPOSITORY) == manifest(fresh), STALE
    assert files(REPOSITORY).keys() == files(fresh).keys(), STALE
    for name, path in files(fresh).items():
        if path.suffix not in (".json", ".onnx"):
            assert (REPOSITORY / name).read_bytes() == path.read_bytes(), f"{name}: {STALE}"


def operators(repository: Path) -> list[str]:
    """Return the operators and functions of the combined graph: its weights differ in the last bits."""
    model = onnx.load(repository / "credit_explain" / "1" / "model.onnx")
    functions = [f"{function.name}:{function.overload}" for function in model.functions]
    return [*functions, *(node.op_type for node in model.graph.node)]


def test_a_new_compile_writes_the_same_operators(fresh: Path) -> None:
    assert operators(REPOSITORY) == operators(fresh), STALE


def test_a_new_compile_answers_the_same(fresh: Path) -> None:
    references = read_rows(ROOT / "examples/credit/references.csv").arrays[None]
    x = references[:7] * np.linspace(0.5, 1.5, 7)[:, None]
    stored = open_entry(REPOSITORY, "credit").explain(x)
    for name, value in open_entry(fresh, "credit").explain(x).items():
        np.testing.assert_allclose(stored[name], value, atol=1e-6 * np.abs(value).max(), rtol=0)


def test_it_passes_its_check() -> None:
    measured = check_entry(REPOSITORY, "credit").measured
    assert measured.outputs_error <= 1e-6
    assert measured.completeness_gap is not None
    assert measured.completeness_gap <= 1e-4
