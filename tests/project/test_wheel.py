"""The wheel and the sdist: what they hold, and the first commands next to files named as our folders are."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOSTILE = "raise RuntimeError('a file of the user was imported')\n"


def build(source: Path, folder: Path, *targets: str) -> None:
    arguments = [word for target in targets for word in ("-t", target)]
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", folder, *arguments],
        cwd=source,
        check=True,
        capture_output=True,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    build(ROOT, folder, "wheel", "sdist")
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_the_wheel_holds_two_import_packages_and_one_command(wheel: Path) -> None:
    files = contents(wheel)
    (info,) = {name.split("/")[0] for name in files} - {"rationale", "rationale_service"}
    assert info.endswith(".dist-info")
    assert files[f"{info}/entry_points.txt"].decode().split("\n")[:2] == [
        "[console_scripts]",
        "rationale = rationale_service.cli.main:app",
    ]
    assert files[f"{info}/entry_points.txt"].count(b"=") == 1
    assert {"rationale/__init__.pyi", "rationale/py.typed", "rationale_service/py.typed"} <= files.keys()
    assert "rationale_service/_examples/credit/credit.onnx" in files


def test_the_sdist_builds_the_same_wheel(built: Path, wheel: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    subprocess.run(["tar", "--extract", "--file", sdist, "--directory", tmp_path], check=True)
    (source,) = tmp_path.iterdir()
    assert {"Makefile", "kernels", "requirements.lock"} <= {path.name for path in source.iterdir()}
    assert (source / "kernels/src/library.cpp").is_file()
    build(source, tmp_path / "again", "wheel")
    assert contents(tmp_path / "again" / wheel.name) == contents(wheel)


# --- installed ---


def environment(folder: Path, wheel: Path, *, beside: bool) -> Path:
    """An environment with the wheel; its dependencies are installed, or those of this environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    pip = [
        sys.executable,
        "-m",
        "pip",
        f"--python={python}",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    subprocess.run([*pip, *["--no-deps"] * beside, str(wheel)], check=True)
    if beside:
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "beside.pth").write_text("\n".join(path for path in sys.path if "site-packages" in path))
    return folder / "bin"


@pytest.mark.parametrize("beside", [True, pytest.param(False, marks=pytest.mark.full)])
def test_first_commands_next_to_files_that_are_named_as_our_folders(
    beside: bool, wheel: Path, tmp_path: Path
) -> None:
    bin_ = environment(tmp_path / "environment", wheel, beside=beside)
    here = tmp_path / "here"
    (here / "service").mkdir(parents=True)
    for name in ("compiler.py", "service/__init__.py"):
        (here / name).write_text(HOSTILE)
    shutil.copytree(ROOT / "examples" / "credit", here / "examples" / "credit")
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [bin_ / program, *arguments], cwd=here, env=plain, capture_output=True, text=True, check=False
        )

    applicants = "--input examples/credit/near_threshold.csv"
    for command in (
        "python -m rationale --help",
        "rationale compile examples/credit/credit.onnx --references examples/credit/references.csv"
        " --output default_probability --name credit --repository model_repository",
        f"rationale explain credit {applicants} --save reasons.csv --html report.html",
        "rationale check credit",
        f"rationale evaluate credit {applicants} --rows 4",
        "rationale operators",
    ):
        result = run(*command.split())
        assert result.returncode == 0, f"{command}: {result.stderr}"
        assert result.stdout
    code = "import rationale, rationale_service; print(rationale.__file__, rationale_service.__file__)"
    wheel_paths = [Path(name) for name in run("python", "-c", code).stdout.split()]
    assert all(path.is_relative_to(bin_.parent) for path in wheel_paths)
    assert len(wheel_paths) == 2
    if not beside:
        result = run("rationale", "serve")
        assert (result.returncode, result.stderr.splitlines()[1:]) == (2, [])
        assert result.stderr.endswith("pip install '.[serve]'\n")
