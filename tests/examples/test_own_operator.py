"""The example package, installed into an environment of its own: every way to an answer knows it."""

import importlib.metadata
import json
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import numpy as np
import pytest

from rationale import Manifest
from tests.service import patient
from tests.service.child import ready_line, serve

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_operator"
W = np.array([[0.4, -0.7], [1.1, 0.3], [-0.2, 0.9]])
V, ALPHA = np.array([1.5, -0.8]), 0.7


def snake_slope(x: np.ndarray) -> np.ndarray:
    """The network's gradient at rows, from its formula."""
    return ((1 + np.sin(2 * ALPHA * (x @ W))) * V) @ W.T


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example and an environment `env`, which has it beside what the tests have."""
    folder = tmp_path_factory.mktemp("own_operator")
    shutil.copytree(EXAMPLE, folder / "examples" / "own_operator")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "env"], cwd=folder, check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "env")}))
    (site / "beside.pth").write_text(
        f"{ROOT / 'compiler'}\n{ROOT / 'service'}\n{ROOT}\n{sysconfig.get_path('purelib')}\n"
    )
    install = ["pip", "--python", str(folder / "env"), "install", "--no-deps", "--no-build-isolation"]
    result = subprocess.run(
        [sys.executable, "-m", *install, "--no-index", "--quiet", "./examples/own_operator"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert not (ROOT / "examples" / "own_operator" / "build").exists()
    run(folder, "examples/own_operator/make_model.py")
    return folder


def run(folder: Path, *arguments: str) -> str:
    """What a Python of the environment prints."""
    result = subprocess.run(
        [folder / "env" / "bin" / "python", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def compiled(place: Path) -> Path:
    """The place, with the entries that the README's commands make."""
    example = "examples/own_operator"
    command = ["compile", f"{example}/snake.onnx", "--name", "snake"]
    run(place, "-m", "rationale", *command, "--references", f"{example}/references.npy")
    return place


def rows(place: Path) -> np.ndarray:
    return np.load(place / "examples/own_operator/rows.npy")


@pytest.mark.full
def test_the_table_of_operators_lists_it(place: Path) -> None:
    lines = run(place, "-m", "rationale", "operators").splitlines()
    (line,) = [line for line in lines if line.startswith("own.Snake")]
    assert line.endswith("own-operator 0.1.0")


@pytest.mark.full
def test_its_own_test_passes(place: Path) -> None:
    run(place, "-m", "pytest", "-q", *("-p", "no:cacheprovider", "-p", "no:asyncio"), "examples/own_operator")


@pytest.mark.full
def test_the_command_line_explains_it(compiled: Path) -> None:
    manifest = Manifest.read(compiled / "model_repository" / "snake_explain" / "explanation.json")
    assert {(e.package, e.version) for e in manifest.extensions} == {("own-operator", "0.1.0")}
    assert (manifest.measured.completeness_gap or 0) < 1e-5
    run(
        compiled,
        *("-m", "rationale", "explain", "snake", "--input", "examples/own_operator/rows.npy"),
        *("--save", "explained.json"),
    )
    assert len(json.loads((compiled / "explained.json").read_text())) > 0
    run(compiled, "-m", "rationale", "check", "snake")


def test_python_explains_it(place: Path) -> None:
    code = (
        "import numpy as np; from rationale import Gradient, compile_model\n"
        "compiled = compile_model('examples/own_operator/snake.onnx', Gradient())\n"
        "np.save('slopes.npy', compiled.explain(np.load('examples/own_operator/rows.npy'))['x_attributions'])"
    )
    run(place, "-c", code)
    np.testing.assert_allclose(
        np.load(place / "slopes.npy")[:, 0], snake_slope(rows(place)), rtol=1e-5, atol=1e-6
    )


@pytest.mark.full
def test_its_lrp_rule_is_exported(place: Path) -> None:
    """By the class alone, and under the entry point."""
    code = (
        "import numpy as np; from rationale import Lrp, compile_model\n"
        "from own_operator.relevance import Absolute\n"
        "compiled = compile_model('examples/own_operator/snake.onnx', Lrp(rules=[('MatMul', Absolute())]))\n"
        "answer = compiled.explain(np.load('examples/own_operator/rows.npy'))\n"
        "np.savez('relevance.npz', r=answer['x_attributions'], y=answer['explained_value'])"
    )
    run(place, "-c", code)
    relevance = np.load(place / "relevance.npz")
    np.testing.assert_allclose(relevance["r"].sum(-1), relevance["y"], rtol=1e-4)
    x, weights = rows(place), W
    hidden = x @ weights
    h = hidden + np.sin(ALPHA * hidden) ** 2 / ALPHA
    top = np.abs(h * V) / np.abs(h * V).sum(-1, keepdims=True) * relevance["y"]
    shares = np.abs(x[:, :, None] * weights) / np.abs(x[:, :, None] * weights).sum(1, keepdims=True)
    np.testing.assert_allclose(relevance["r"][:, 0], (shares * top[:, None]).sum(-1), rtol=1e-3, atol=1e-5)
    declared = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    assert declared["rationale.lrp_rules"] == {"absolute": "own_operator.relevance:Absolute"}


@pytest.mark.full
def test_the_gateway_explains_it_and_its_worker_compiles_it(compiled: Path) -> None:
    x = rows(compiled)
    repository = str(compiled / "model_repository")
    python = str(compiled / "env" / "bin" / "python")
    with serve("--port", "0", "--grpc-port", "off", "--repository", repository, python=python) as child:
        url, _ = ready_line(child)
        snake = f"{url}/v2/models/snake"
        slopes = f"{snake}/explainers/slope"
        assert patient.put(slopes, json={"method": "gradient"}).status_code in (200, 202)
        status = patient.settled(slopes)
        assert status["state"] == "ready", status
        result = patient.explain(snake, x, explainer="slope")
        baked = patient.explain(snake, x)
    np.testing.assert_allclose(result["x_attributions"][:, 0], snake_slope(x), rtol=1e-5, atol=1e-6)
    risen = baked["explained_value"] - baked["base_value"]
    np.testing.assert_allclose(baked["x_attributions"].sum(-1), risen, atol=1e-5)


@pytest.mark.full
def test_the_tests_own_environment_has_it_not() -> None:
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("own-operator")
