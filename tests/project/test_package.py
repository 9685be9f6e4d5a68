"""`import rationale`: the public names, and nothing else."""

import importlib
import os
import rlcompleter
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

import rationale
from rationale import errors
from rationale.distribution import NAME, install, version
from rationale.methods.propagation.lrp.rules import RULES
from rationale_service.cli.main import app

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_dir_and_completion_show_the_public_names_alone() -> None:
    assert dir(rationale) == sorted(rationale.__all__)
    actual = rlcompleter.Completer({"rationale": rationale}).attr_matches("rationale.")
    assert sorted(name.rstrip("()") for name in actual) == [f"rationale.{name}" for name in dir(rationale)]


def test_rules_and_errors_are_public() -> None:
    rules = {rule.__name__ for rule in RULES.values()}
    tree = {name for name in vars(errors) if name.endswith("Error")}
    assert rules | tree <= set(rationale.__all__)
    assert str(rationale.Lrp(rules=[("Conv", rationale.Gamma(0.1))]).rules[0][1]) == "gamma:0.1"


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="No rationale attribute DeepSHAP"):
        print(rationale.DeepSHAP)  # type: ignore[attr-defined]
    with pytest.raises(ImportError):
        importlib.import_module("rationale.compiler")


def test_it_is_imported_without_what_it_may_need() -> None:
    code = "import sys, rationale; print(dir(rationale)); print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert {"numpy", "onnx", "pydantic", "typer"}.isdisjoint(result.stdout.split())


HEAVY = set("fastapi grpc matplotlib onnxscript pandas pyarrow sklearn sqlalchemy sympy.core torch".split())


def test_a_compile_is_imported_without_what_it_does_not_need() -> None:
    code = "import sys; from rationale import compile_model; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert HEAVY.isdisjoint(result.stdout.split())


def test_an_entry_is_explained_without_the_compiler() -> None:
    """A command that reads an entry starts in seven eighths of the time."""
    code = "import sys, rationale.portfolios.explain, rationale.portfolios.portfolio; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    modules = ("lowering", "rules", "methods.engine", "artifact.repository.write")
    compiler = {f"rationale.{module}" for module in modules}
    assert compiler.isdisjoint(result.stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import onnx_ir; assert str(onnx_ir.SymbolicDim('N') * 2) == '2*N'",
        "import onnx_ir, sympy.core; assert sympy.core.symbol.Symbol is sympy.Symbol",
        "import onnx_ir; from sympy.core.symbol import Symbol; import sympy; assert sympy.Symbol is Symbol",
    ],
)
def test_sympy_is_itself_where_somebody_uses_it(code: str) -> None:
    subprocess.run([sys.executable, "-c", f"import rationale; {code}"], check=True)


def test_every_public_name_can_be_imported() -> None:
    result = subprocess.run(
        [sys.executable, "-c", "import rationale"], env={**os.environ, "EAGER_IMPORT": "1"}
    )
    assert result.returncode == 0


@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"]])
def test_python_m_rationale_is_the_command(arguments: list[str], tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "rationale", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Usage: python -m rationale" in result.stdout
    assert ("serve" in result.stdout) == (arguments == ["--help"])


def test_every_package_is_shipped_and_checked() -> None:
    tool = PYPROJECT["tool"]
    folders = [Path(name) for name in tool["hatch"]["build"]["targets"]["wheel"]["packages"]]
    packages = [folder.name for folder in folders]
    assert "rationale" in packages
    assert set(packages) <= set(tool["mypy"]["packages"])
    assert packages == tool["importlinter"]["root_packages"]
    assert all((ROOT / folder / "py.typed").is_file() for folder in folders)


@pytest.mark.full
def test_the_gateway_starts_without_what_only_the_compiler_needs() -> None:
    """onnx_ir brings sympy: a sixth of a start."""
    code = "import sys, rationale_service.server; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert {"onnx_ir", "onnxscript", "sympy"}.isdisjoint(result.stdout.split())


def test_the_version_is_that_of_the_package() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"rationale {version()}\n")


def test_a_message_names_the_packages_of_an_extra_as_pyproject_declares_them() -> None:
    for extra, texts in PYPROJECT["project"]["optional-dependencies"].items():
        named = [Requirement(word) for word in shlex.split(install(extra).removeprefix("pip install "))]
        declared = [Requirement(text.partition(";")[0]) for text in texts]
        assert {requirement for requirement in declared if requirement.name != NAME} <= set(named), extra


@pytest.mark.parametrize(
    "arguments",
    [
        "serve",
        "demo",
        "keys new me --scope infer",
        "audit verify",
        "replay x",
        "backup to",
        "decide c --input i --save s",
    ],
)
def test_a_command_without_the_extra_serve(arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("settings", "configuration", "security.keys"):
        monkeypatch.setitem(sys.modules, f"rationale_service.{module}", None)
    result = CliRunner().invoke(app, arguments.split())
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.endswith(
        "This command needs the extra serve: in a checkout, pip install '.[serve]'\n"
    )
