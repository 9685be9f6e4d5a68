"""The project around the code: Makefile, environments, pins, and what no tracked file may hold."""

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

from scripts import words
from tests.needs import need

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
PINNED = {"torch", "torchvision"}  # torchvision is built for one torch, and torch's numbers are compared
UNBOUNDED = {
    "pyarrow",
    "types-protobuf",
    "grimp",
}  # versioned by date or every quarter, and used at their edge

# Dataclasses that change: they collect, count or wait for an answer. Every other one is frozen.
MUTABLE = {
    "rationale.artifact.finishing.fused._Chain",
    "rationale.conversion.boosters.trees.Nodes",
    "rationale.methods.trees.provenance._OriginTracker",
    "rationale.tables.written._Tensor",
    "rationale.portfolios.report._Sections",
    "rationale.graph.tensor.Chunks",
    "rationale.graph.variants.VariantChoices",
    "rationale.lowering.control_flow.branches._Inliner",
    "rationale.graph.memory.budget.Region",
    "rationale.graph.memory.scan._ScanBody",
    "rationale_service.engine.model_cache._Resident",
    "rationale_service.protocols.gateway.Gateway",
    "rationale_service.protocols.interceptor.RequestInterceptor",
    "rationale_service.observability.context.RequestContext",
    "rationale_service.engine.scheduling.batch.Batch",
    "rationale_service.engine.scheduling.batch.PendingRequest",
    "rationale_service.engine.scheduling.cpu_slots._Turn",
}

# Words that would tie the project to one machine or one package index, taken apart so that this file passes.
FOREIGN = re.compile(
    "|".join(
        [
            r"(?<![\w./~-])/(?:work|root|home/\w+|Users/\w+)/[\w.]",
            r"(?<![\w./~-])/tmp/\w+/",  # a fixed place; tests have tmp_path
            r"/opt/(?:wheels|pypi)",
            r"pypi\." + r"org|pythonhosted\." + r"org|download\.py" + r"torch",
        ]
    )
)

# The index has another project of the name `rationale`.
STRANGER = re.compile(
    r"pip3? install\b[^\n`\"&|;)]*?['\"\s]rationale(?![\w/-])|dependencies = \[[^\n]*\"rationale(?![\w/-])"
)

# In the checkout these folders are empty namespace packages, so such an import fails late, or not at all.
FOLDER_IMPORT = re.compile(r"^[\s\"]*(?:import|from) (?:compiler|service)\b[\w.]*(?:\s*$|,| import | as )")


@pytest.fixture(scope="module")
def env() -> ModuleType:
    spec = importlib.util.spec_from_file_location("env", ROOT / "scripts" / "env.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make(*arguments: str) -> str:
    # under `make test` a make within make would say which folder it enters
    plain = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    process = subprocess.run(
        ["make", *arguments], cwd=ROOT, capture_output=True, text=True, check=False, env=plain
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def targets() -> list[str]:
    """The targets that a user types: those of .PHONY but the environments' own."""
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split()
    return [name for name in phony if not name.startswith("env-")]


def tracked_files() -> list[Path]:
    command = [need("git"), "ls-files", "-z"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if process.returncode:
        pytest.skip("not a git checkout: no list of tracked files")
    return [path for name in process.stdout.split("\0") if name and (path := ROOT / name).is_file()]


# --- the Makefile and the README ---


def test_help_is_the_default_and_names_every_target():
    text = make()
    assert text == make("help")
    assert [re.match(r"  (\S+) +\S", line)[1] for line in text.splitlines()[4:]] == sorted_as(targets(), text)
    assert max(map(len, text.splitlines())) <= 110


def sorted_as(names: list[str], text: str) -> list[str]:
    """The names in the order in which `text` has them at the start of a line; missing ones first."""
    return sorted(names, key=lambda name: text.find(f"\n  {name} "))


def test_every_target_can_be_planned():
    for name in targets():
        assert make("--dry-run", name).strip(), name


def readme_commands(tool: str) -> set[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return set(re.findall(rf"^\$? *(?:\S*/)?{tool} ([a-z][\w-]*)", "".join(blocks), re.MULTILINE))


def test_the_readme_names_targets_that_exist():
    assert {"demo", "test"} <= readme_commands("make") <= set(targets())


def test_the_readme_names_commands_that_exist():
    from typer.core import TyperGroup
    from typer.main import get_command

    from rationale_service.cli.main import app

    command = get_command(app)
    assert isinstance(command, TyperGroup)
    assert {"compile", "serve"} <= readme_commands("rationale") <= set(command.commands)


def test_ci_calls_what_the_readme_calls():
    text = (ROOT / ".ci" / "run").read_text()
    assert re.findall(r"^ *make ([a-z-]+)(?: \| tee .*)?$", text, re.MULTILINE) == [
        "check",
        "docs",
        "demo",
        "test-slow",
        "test-docker",
        "test",
        "test-full",
    ]
    assert "apt" not in text
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    subprocess.run(["bash", "-n", ROOT / ".ci" / "run"], check=True)


@pytest.mark.parametrize(
    ("used", "second", "runs", "reason"),
    [
        (3000, {}, True, ""),
        (4000, {}, False, "40.. s are used"),
        (4000, {"CI_SECOND": "1"}, True, ""),
        (0, {"CI_SECOND": "0"}, False, "CI_SECOND is 0"),
    ],
    ids=["in time", "too late", "demanded", "refused"],
)
def test_ci_tests_on_a_second_python_or_says_why_not(tmp_path, used, second, runs, reason):
    for name, text in {"make": 'echo "make $*"; echo "7 passed in 1 s"', "python3.13": "exit 0"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    place = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYENV_ROOT": "/nowhere", "PYTHON": "/usr/bin/false"}
    command = [ROOT / ".ci" / "run"]
    done = subprocess.run(
        command, env={**place, **second, "SECONDS": str(used)}, capture_output=True, text=True, check=True
    )
    assert ("make test PYTHON=python3.13" in done.stdout.splitlines()) is runs
    left_out = re.search(rf"== left out: make test on a second Python .*: {reason}", done.stdout)
    assert (left_out is None) is runs
    assert done.stdout.splitlines()[-1] == "7 passed in 1 s"


# --- what no file may hold ---


@pytest.mark.parametrize(
    "pattern",
    [FOREIGN, STRANGER, FOLDER_IMPORT],
    ids=["a machine or an index", "another project", "a folder"],
)
def test_no_file_names(pattern):
    collected = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        lines = enumerate(text.splitlines(), start=1)
        collected += [
            f"{path.relative_to(ROOT)}:{n}: {line.strip()}" for n, line in lines if pattern.search(line)
        ]
    assert [line for line in collected if not line.startswith("tests/project/test_project.py")] == []


# --- dependencies ---


def requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    return [Requirement(text) for group in (PROJECT["dependencies"], *extras) for text in group]


def test_pins_are_ranges():
    for requirement in requirements():
        operators = {specifier.operator for specifier in requirement.specifier}
        if requirement.name in PINNED:
            assert operators == {"=="}, requirement
        elif requirement.name not in UNBOUNDED | {PROJECT["name"]}:
            assert operators - {"!="} == {">=", "<"}, requirement  # a broken release may be left out


def test_the_demo_needs_no_torch(env):
    demo = [*PROJECT["dependencies"], *env.requirements(PROJECT, env.EXTRAS["demo"])]
    assert not {Requirement(text).name for text in demo} & {"torch", "shap", "scikit-learn"}


def test_torch_is_the_version_that_is_pinned():
    torch = pytest.importorskip("torch")
    assert torch.__version__.split("+")[0] == "2.13.0"


# --- the environments ---


def copy_project(folder: Path, **changes: str) -> Path:
    folder.mkdir(exist_ok=True)
    text = (ROOT / "pyproject.toml").read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_requirements_of_an_extra_are_expanded(env):
    names = {Requirement(text).name for text in env.requirements(PROJECT, "test")}
    assert {"pytest", "torch", "shap", "docker", "pyarrow"} <= names
    assert PROJECT["name"] not in names


def test_the_digest_follows_the_inputs(env, tmp_path):
    """One of an extra changes that extra's environment alone; words change none."""
    folder = copy_project(tmp_path / "a")
    before = {extra: env.inputs_digest(folder, extra) for extra in ("serve", "test")}
    copy_project(folder, **{"Why did the model": "Wherefore did the model"})
    assert {extra: env.inputs_digest(folder, extra) for extra in ("serve", "test")} == before
    copy_project(folder, **{"torch==2.13.0": "torch==2.13.1"})
    assert env.inputs_digest(folder, "serve") == before["serve"]
    assert env.inputs_digest(folder, "test") != before["test"]
    copy_project(folder, **{"fastapi>=": "fastapi>0.1,>="})
    assert env.inputs_digest(folder, "serve") != before["serve"]


def fake_build(env, monkeypatch, fails=False, takes_s=0.0):
    """Replaces the build, which takes a minute and a network; returns the list of its calls."""
    calls = []

    def build(folder, _root, name):
        calls.append(name)
        time.sleep(takes_s)
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").touch()
        if fails:
            raise env.SetUpError("no network")

    monkeypatch.setattr(env, "build", build)
    return calls


def test_an_environment_is_made_once(env, monkeypatch, tmp_path):
    folder = copy_project(tmp_path / "a")
    calls = fake_build(env, monkeypatch)
    assert env.make_environment("demo", folder) == folder / ".venv" / "demo"
    env.make_environment("demo", folder)
    assert calls == ["demo"]
    copy_project(folder, **{"fastapi>=": "fastapi>0.1,>="})
    env.make_environment("demo", folder)
    assert calls == ["demo", "demo"]
    (folder / ".venv" / "demo" / "bin" / "python").unlink()
    env.make_environment("demo", folder)
    assert calls == ["demo", "demo", "demo"]


def test_each_python_has_environments_of_its_own(env, monkeypatch, tmp_path):
    folder = copy_project(tmp_path / "a")
    fake_build(env, monkeypatch)
    for python, parent in (("python3", ".venv"), ("/usr/bin/python3.13", ".venv/python3.13")):
        commands = make("--dry-run", "check", f"PYTHON={python}")
        assert f"{python} scripts/env.py test {parent}\n" in commands
        assert f"{parent}/test/bin/ruff check ." in commands
        assert env.make_environment("test", folder, parent) == folder / parent / "test"
    assert env.is_complete(folder / ".venv/test", env.inputs_digest(folder, "test"))


def test_two_makes_at_once_build_one_environment(env, monkeypatch, tmp_path):
    folder = copy_project(tmp_path / "a")
    calls = fake_build(env, monkeypatch, takes_s=0.3)
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda name: env.make_environment(name, folder), ["demo", "demo"]))
    assert results == [folder / ".venv" / "demo"] * 2
    assert calls == ["demo"]


def test_a_half_made_environment_is_made_again(env, monkeypatch, tmp_path):
    folder = copy_project(tmp_path / "a")
    fake_build(env, monkeypatch, fails=True)
    with pytest.raises(env.SetUpError, match="no network"):
        env.make_environment("demo", folder)
    calls = fake_build(env, monkeypatch)
    env.make_environment("demo", folder)
    assert calls == ["demo"]


@pytest.mark.parametrize(
    ("log", "hint"),
    [
        ("ensurepip is not available", "apt-get install python3-venv"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        (
            "WARNING: Retrying … NewConnectionError(…)\nERROR: No matching distribution",
            "No package index answered",
        ),
        ("ERROR: No matching distribution found for torch==2.13.0", "PYTHON=python3.12"),
        ("something new", "The whole log is"),
    ],
)
def test_hints(env, tmp_path, log, hint):
    (tmp_path / "log").write_text(log)
    text = env.failure(["pip"], tmp_path / "log")
    assert f"| {log.splitlines()[-1]}" in text
    assert hint in text.splitlines()[-1]


def test_an_old_python_is_told_so(env, monkeypatch, capsys):
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    assert env.main(["demo"]) == 1
    assert "Python 3.11 or newer" in capsys.readouterr().err


def test_usage(env, capsys):
    assert env.main(["prod"]) == 2
    assert capsys.readouterr().err == "usage: env.py demo|docs|release|test [FOLDER]\n"


def test_the_command_line_starts_with_typer_alone() -> None:
    """What else a command needs it loads itself: numpy, pydantic and gRPC take longer than all the rest.

    `serve` sets what gRPC reads when it is loaded.
    """
    code = "import sys, rationale_service.cli.main; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert {"typer", "rationale_service", "rationale"} <= set(loaded.split())
    assert {
        "numpy",
        "onnx",
        "onnxruntime",
        "onnx_ir",
        "pydantic",
        "grpc",
        "fastapi",
    }.isdisjoint(loaded.split())


def test_dataclasses_are_frozen_but_for_those_named() -> None:
    actual = set()
    for package in ("compiler", "service"):
        for path in (ROOT / package).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT / package).with_suffix("").parts)
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            for node in (node for node in nodes if isinstance(node, ast.ClassDef)):
                texts = [ast.unparse(decorator) for decorator in node.decorator_list]
                if any(text.startswith("dataclass") and "frozen=True" not in text for text in texts):
                    actual.add(f"{module}.{node.name}")
    assert actual == MUTABLE


def test_riddles_in_docstrings_are_found(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        '"""Readers of tables."""\n'
        "class Spec(BaseModel):\n"
        '    """What the API says is the API\'s text."""\n'
        "def clean(rows):\n"
        '    """Return the rows without gaps.\n\n    Args:\n        rows: table [N, F].\n    """\n'
        "def riddle():\n"
        '    """Return what is odd, and may be meant."""\n'
        "def fragment(seed):\n"
        '    """Of another one.\n\n    Args:\n        seed: of what is drawn there.\n    """\n',
        encoding="utf-8",
    )
    actual = [text for _, text in words.faults(file)]
    assert actual == [
        "Return what is odd, and may be meant.",
        "Of another one.",
        "seed: of what is drawn there.",
    ]
