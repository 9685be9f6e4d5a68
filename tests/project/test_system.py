"""What the system lacks is installed or named in a line. Tests skip without it, and the summary says why."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import system
from scripts.system import NEEDS, TARGETS, Tool
from tests import needs
from tests.needs import GERMAN, need, need_data

ROOT = Path(__file__).parents[2]
TOOL = Tool("Tool", ("tool", "other-tool"), ("tool-package", "tool-data"), "the tests of tools")
UNKNOWN = Tool("Rarity", ("rarity",), ("rarity-package",), "the tests of rarities")
# It installs by a file on the PATH, and knows no rarity.
APT_GET = """#!/bin/sh
echo "$*" >> {folder}/calls
case "$*" in *rarity*) exit 100;; *install*tool-package*) cp /bin/true {folder}/tool;; esac
"""
ADVICE = "tests that need them will skip (as root: apt-get install"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only one on the PATH, with an apt-get; we are root, and nothing is there that is needed."""
    (tmp_path / "apt-get").write_text(APT_GET.format(folder=tmp_path))
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.delenv("SYSTEM", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(system, "NEEDS", (TOOL,))
    monkeypatch.setattr(system, "LOG", tmp_path / ".cache" / "system.log")
    return tmp_path


def calls(folder: Path) -> list[str]:
    """What apt-get was asked for."""
    if not (folder / "calls").exists():
        return []
    lines = (folder / "calls").read_text().splitlines()
    return [line.partition("Timeout=300 ")[2] for line in lines]


def test_what_is_missing_is_installed_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert system.main(["test"]) == 0
    assert calls(folder) == ["update", "install tool-data tool-package"]
    message = capsys.readouterr().out.splitlines()
    assert "installing" in message[0]
    assert message[0].endswith("tool-data tool-package")
    assert len(message) == 2
    assert system.main(["test"]) == 0
    assert capsys.readouterr().out == ""
    assert len(calls(folder)) == 2


def test_a_package_that_cannot_be_installed_stops_no_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(system, "NEEDS", (UNKNOWN, TOOL))
    assert system.main(["test"]) == 0
    assert TOOL.find() == str(folder / "tool")
    message = capsys.readouterr().out
    assert "install rarity-package" in message
    assert message.endswith(f"missing: Rarity; {ADVICE} rarity-package)\n")


@pytest.mark.parametrize("why", ["SYSTEM=0", "not root", "no apt-get"])
def test_the_system_is_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], why: str
) -> None:
    monkeypatch.setattr(system, "NEEDS", (TOOL, UNKNOWN))
    if why == "SYSTEM=0":
        monkeypatch.setenv("SYSTEM", "0")
    elif why == "not root":
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    else:
        monkeypatch.setenv("PATH", str(folder / "nothing"))
    assert system.main(["test"]) == 0
    expected = f"[system] missing: Tool, Rarity; {ADVICE} tool-package tool-data rarity-package)\n"
    assert capsys.readouterr().out == expected
    assert calls(folder) == []


def test_an_old_python_is_left_to_env(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    assert system.main(["test"]) == 0
    assert calls(folder) == []


@pytest.mark.parametrize("arguments", [[], ["tests"], ["test", "docker"]])
def test_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert system.main(arguments) == 2
    assert capsys.readouterr().err == "usage: system.py test|docker\n"


@pytest.mark.parametrize(
    ("found_as", "there"),
    [
        ("sh", True),
        ("no-such-program", False),
        ("libc.so.6", True),
        ("libnone.so.6", False),
        ("/etc/*sswd", True),
        ("/etc/*/none", False),
        ("import json", True),
        ("import nothing", False),
    ],
)
def test_how_a_need_is_found(found_as: str, there: bool) -> None:
    assert (Tool("x", (found_as,), (), "").find() is not None) == there
    assert Tool("x", ("no-such-program", found_as), (), "").find() == Tool("x", (found_as,), (), "").find()


def test_each_need_is_declared_once_and_in_the_docs() -> None:
    assert len({need.name for need in NEEDS}) == len(NEEDS)
    assert {target for need in NEEDS for target in need.targets} == set(TARGETS)
    page = (ROOT / "docs" / "testing.md").read_text().replace("pythonX.Y", f"python{system.VERSION}")
    for each in NEEDS:
        packages = ", ".join(f"`{package}`" for package in each.packages)
        assert f"| {each.name} | {packages} | {each.purpose} |" in page


def test_a_test_skips_with_the_same_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(needs, "_BY_NAME", {"Rarity": UNKNOWN, "shell": Tool("shell", ("sh",), (), "")})
    assert need("shell").endswith("/sh")
    with pytest.raises(pytest.skip.Exception, match=r"Rarity .*apt-get install rarity-package"):
        need("Rarity")
    (tmp_path / GERMAN.name).touch()
    assert need_data(tmp_path / GERMAN.name).is_file()
    with pytest.raises(pytest.skip.Exception, match="RATIONALE_TEST_DATA"):
        need_data(tmp_path / "none")


TESTS = """
import pytest

@pytest.fixture
def browser():
    pytest.skip("Chromium is missing")

@pytest.mark.parametrize("view", range(3))
def test_view(browser, view): ...

@pytest.mark.skipif(True, reason="no data")
def test_data(): ...

@pytest.mark.full
def test_more(): ...

@pytest.mark.full
@pytest.mark.slow
def test_most(): ...
"""


def summary(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Run these tests under our conftest.py; return the exit status and the lines of what was left out."""
    (folder / "test_these.py").write_text(TESTS)
    options = ("-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", str(folder), "-c", os.devnull)
    left_out = ("-m", "not full and not slow")
    command = [sys.executable, "-m", "pytest", *options, *left_out, *arguments, str(folder)]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # other plugins take seconds to load
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=alone)
    return process.returncode, [line for line in process.stdout.splitlines() if "left out" in line]


def test_the_summary_counts_what_was_left_out_by_reason(tmp_path: Path) -> None:
    skipped = ["3 tests were left out: Chromium is missing", "1 test was left out: no data"]
    marked = [f"1 test was left out: make test-{name} ARGS=… runs those" for name in ("full", "slow")]
    assert summary(tmp_path) == (0, skipped + marked)
    assert summary(tmp_path, "-k", "more") == (pytest.ExitCode.NO_TESTS_COLLECTED, marked[:1])
    assert summary(tmp_path, "-p", "xdist", "-n", "1", "-k", "view") == (0, skipped[:1])
