"""fetch.py: quick when there is nothing to do, clear when something is missing, never half done."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.triton import fetch as script
from scripts.triton.fetch import DEFAULT_FOLDER, FetchError, fetch
from tests.triton.conftest import StartTriton

ROOT = Path(__file__).resolve().parents[2]


def run_script(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "scripts/triton/fetch.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", **environment},
    )


def test_a_second_run_has_nothing_to_do(start_triton: StartTriton) -> None:
    assert start_triton
    stamp = (DEFAULT_FOLDER / "stamp.json").stat()
    done = run_script()
    assert (DEFAULT_FOLDER / "stamp.json").stat().st_mtime_ns == stamp.st_mtime_ns
    assert (done.returncode, done.stdout) == (0, f"triton: already there: {DEFAULT_FOLDER}\n")


def test_numpy_of_the_server_is_below_two(start_triton: StartTriton) -> None:
    """Under numpy 2 the server answers zeros, without an error."""
    assert start_triton
    python = DEFAULT_FOLDER / "venv/bin/python"
    done = subprocess.run(
        [python, "-c", "import numpy; print(numpy.__version__)"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "1.26.4\n"


@pytest.mark.full
@pytest.mark.usefixtures("start_triton")  # else this machine is refused first
def test_without_an_index_nothing_is_stamped(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    for _ in range(2):  # the second run finds the half-made folder and begins again
        done = run_script("--into", str(folder), PIP_CONFIG_FILE="/dev/null", PIP_NO_INDEX="1")
        assert done.returncode == 1
        assert "Is a package index within reach" in done.stderr
        assert "No matching distribution" in done.stderr
        assert "Traceback" not in done.stderr
        assert not (folder / "stamp.json").exists()
    assert done.stdout.startswith("triton: 1/3")


@pytest.mark.usefixtures("start_triton")  # else this machine is refused first
def test_a_folder_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(FetchError, match="was not made by this script"):
        fetch(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thesis.txt", "venv"]


@pytest.mark.parametrize(("machine", "text"), [("aarch64", "for Linux on x86-64"), ("arm64", "container")])
def test_another_processor_is_told_about_the_container(
    monkeypatch: pytest.MonkeyPatch, machine: str, text: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    with pytest.raises(FetchError, match=text):
        script.check_platform()


@pytest.mark.parametrize("libc", [("", ""), ("glibc", "2.31")])
def test_an_old_libc_is_refused(monkeypatch: pytest.MonkeyPatch, libc: tuple[str, str]) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: libc)
    with pytest.raises(FetchError, match=r"glibc 2\.35 or newer"):
        script.check_platform()


def test_a_python_without_a_stub_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "PYTHONS", ("3.7",))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(FetchError, match=r"Python 3\.7 is needed"):
        script.find_python()


@pytest.mark.parametrize("stamp", ["", "[1]", '{"environment": "old", "backend": "old"}'])
def test_a_damaged_or_old_stamp_is_not_taken_as_done(
    start_triton: StartTriton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stamp: str
) -> None:
    assert start_triton

    def stop_here(*_: object) -> None:
        raise FetchError("would begin again")

    monkeypatch.setattr(script, "make_environment", stop_here)
    (tmp_path / "lock").touch()
    (tmp_path / "stamp.json").write_text(stamp)
    with pytest.raises(FetchError, match="would begin again"):
        fetch(tmp_path)
    assert not (tmp_path / "stamp.json").exists()


def test_a_changed_backend_keeps_the_environment(
    start_triton: StartTriton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start_triton
    for name in ("venv", "lib"):
        (tmp_path / name).symlink_to(DEFAULT_FOLDER / name)
    shutil.copy(DEFAULT_FOLDER / "stamp.json", tmp_path)
    (tmp_path / "lock").touch()
    changed = tmp_path / "changed.py"
    changed.write_text("# another backend\n")
    monkeypatch.setattr(script, "BACKEND", changed)
    assert fetch(tmp_path)
    assert (tmp_path / "backends/onnxruntime/model.py").read_text() == "# another backend\n"
    assert (tmp_path / "venv").is_symlink()
    stamp = json.loads((tmp_path / "stamp.json").read_text())
    assert stamp["python"] == script.describe(str(DEFAULT_FOLDER / "venv/bin/python"))[1]
    assert not fetch(tmp_path)


def test_one_server_does_for_every_python(start_triton: StartTriton, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite of another Python once built it anew, while this one's used it."""
    assert start_triton
    monkeypatch.setattr(script, "PYTHONS", ("3.7",))
    monkeypatch.setenv("PATH", "/nowhere")
    assert not fetch()


def test_a_server_whose_python_is_gone_is_built_anew(
    start_triton: StartTriton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start_triton
    shutil.copy(DEFAULT_FOLDER / "stamp.json", tmp_path)
    (tmp_path / "lock").touch()
    shutil.copytree(DEFAULT_FOLDER / "venv/bin", tmp_path / "venv/bin", symlinks=True)
    server = Path(json.loads((tmp_path / "stamp.json").read_text())["server"])
    (tmp_path / server).parent.mkdir(parents=True)
    (tmp_path / server).symlink_to(DEFAULT_FOLDER / server)
    shutil.copy(DEFAULT_FOLDER / "venv/pyvenv.cfg", tmp_path / "venv")
    assert script.is_whole(tmp_path, script.read_stamp(tmp_path))
    (tmp_path / "venv/bin/python").unlink()
    (tmp_path / "venv/bin/python").symlink_to("/nowhere/python3.11")
    monkeypatch.setattr(script, "PYTHONS", ("3.7",))
    with pytest.raises(FetchError, match=r"Python 3\.7 is needed"):
        fetch(tmp_path)
