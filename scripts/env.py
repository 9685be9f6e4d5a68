"""The environments of the Makefile: `.venv/demo` (to run), `.venv/docs`, `.venv/release`, `.venv/test`.

    python3 scripts/env.py demo|docs|release|test [FOLDER]

FOLDER holds them in place of `.venv`: the Makefile names one for each Python.
Needs nothing but Python's standard library. An environment is made once per digest of its inputs (the
dependency tables of pyproject.toml, the Python version, the place of the checkout), and the digest is
stamped into it last: an unfinished environment is made again. The project is installed editable, so that an
edit of its code needs no new environment.
"""

from __future__ import annotations  # an old Python must get as far as its own error message

import fcntl
import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAST_PYTHON = (3, 11)
EXTRAS = {"demo": "serve", "docs": "docs", "release": "release", "test": "test"}
ROOT = Path(__file__).resolve().parent.parent
RECIPE = 1  # raise it when this script makes an environment differently
STAMP = "rationale-inputs.sha256"
PROGRESS_S = 5.0

# Advice by text in the log; the first match wins.
HINTS = (
    (
        r"ensurepip|No module named '?venv",
        "Python's venv module is incomplete: on Debian and Ubuntu, `apt-get install python3-venv`.",
    ),
    (r"No space left", "The disk is full: free some space, and run it again."),
    (
        r"NewConnectionError|Max retries|Temporary failure|Could not fetch URL|timed out|ProxyError",
        "No package index answered: check the network, the proxy, and `pip config list`; then run it again.",
    ),
    (
        r"No matching distribution|ResolutionImpossible|requires a different Python",
        "A dependency has no version for this Python or platform: try `make PYTHON=python3.12 …`.",
    ),
    (r"Permission denied", "A file cannot be written: check who owns .venv and pip's cache."),
)


class SetUpError(Exception):
    """An error with advice for an environment that cannot be made."""


def main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2) or arguments[0] not in EXTRAS:
        print(f"usage: env.py {'|'.join(EXTRAS)} [FOLDER]", file=sys.stderr)
        return 2
    try:
        make_environment(arguments[0], ROOT, *arguments[1:])
    except SetUpError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted: the next run starts this environment afresh", file=sys.stderr)
        return 130
    return 0


def make_environment(name: str, root: Path, parent: str = ".venv") -> Path:
    """Return the environment's folder within `parent`; it is complete and fits its inputs.

    Raises:
        SetUpError: an error with the log's last lines and advice, if a command fails.
    """
    check_python()
    folder = root / parent / name
    digest = inputs_digest(root, EXTRAS[name])
    if is_complete(folder, digest):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with only_one(folder.with_suffix(".lock"), name):
        if not is_complete(folder, digest):
            build(folder, root, name)
            (folder / STAMP).write_text(digest, encoding="ascii")
    return folder


def check_python() -> None:
    if sys.version_info < LEAST_PYTHON:
        least = ".".join(str(number) for number in LEAST_PYTHON)
        raise SetUpError(
            f"Python {least} or newer is needed, and this is {platform.python_version()}: "
            f"name one with `make PYTHON=python{least} …`."
        )


def inputs_digest(root: Path, extra: str) -> str:
    """Return SHA-256 of all inputs that decide the environment's contents."""
    import tomllib

    table = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    project = table["project"]
    inputs = [
        RECIPE,
        str(root),
        [sys.version, platform.machine(), sys.base_prefix],
        [table["build-system"], table.get("tool", {}).get("hatch")],
        [project[key] for key in ("name", "version", "dependencies", "scripts")],
        requirements(project, extra),
    ]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def requirements(project: dict[str, Any], extra: str) -> list[str]:
    """Return the requirements of an extra; `NAME[bench,docker]` among them stands for these extras."""
    collected: list[str] = []
    for requirement in project["optional-dependencies"][extra]:
        nested = re.fullmatch(rf"{project['name']}\[([\w, -]+)\]", requirement)
        if nested is None:
            collected.append(requirement)
        else:
            for inner in nested.group(1).split(","):
                collected += requirements(project, inner.strip())
    return collected


def is_complete(folder: Path, digest: str) -> bool:
    """Tell whether the stamp fits and the interpreter is still there (a link into an installation)."""
    stamp = folder / STAMP
    return (folder / "bin" / "python").exists() and stamp.is_file() and stamp.read_text() == digest


@contextmanager
def only_one(lock: Path, name: str) -> Iterator[None]:
    """Let one make at a time in: a second one waits for the first, and then finds the environment made."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"[{name}] another process is making this environment: waiting", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(folder: Path, root: Path, name: str) -> None:
    """Make the environment afresh, without its stamp."""
    if sys.prefix == str(folder):
        raise SetUpError(f"{folder} cannot replace itself: run this with a Python outside .venv.")
    started = time.monotonic()
    if folder.exists():
        (folder / STAMP).unlink(missing_ok=True)
        shutil.rmtree(folder)
    log = folder.with_suffix(".log")
    log.unlink(missing_ok=True)
    target = f"{root}[{EXTRAS[name]}]"
    say(name, f"making {folder.relative_to(root)} with Python {platform.python_version()}")
    run([sys.executable, "-m", "venv", str(folder)], name, log, started)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    run([*pip, "--no-input", "--progress-bar", "off", "--editable", target], name, log, started)
    say(name, f"ready after {time.monotonic() - started:.0f} s")


def run(command: list[str], name: str, log: Path, started: float) -> None:
    """Run a command with its output in `log`, and print its progress every few seconds.

    Raises:
        SetUpError: if the command failed.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        while not finished(process):
            say(name, f"{time.monotonic() - started:4.0f} s  {doing(log)}")
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if process.returncode:
        raise SetUpError(failure(command, log))


def finished(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(timeout=PROGRESS_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def doing(log: Path) -> str:
    """Return pip's log in half a line."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    collected = [line.split()[1] for line in lines if line.startswith("Collecting ")]
    installing = [line for line in lines if line.startswith("Installing collected packages:")]
    if installing:
        return f"installing {installing[-1].count(',') + 1} packages"
    return f"collecting packages: {len(collected)}, now {collected[-1]}" if collected else "starting"


def failure(command: list[str], log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    hint = next((hint for pattern, hint in HINTS if re.search(pattern, text)), f"The whole log is {log}.")
    tail = "\n".join(f"  | {line}" for line in text.splitlines()[-15:])
    step = "python -m venv" if "venv" in command else "pip install"
    return f"{step} failed; the last lines it wrote:\n{tail}\n{hint}"


def say(name: str, text: str) -> None:
    print(f"[{name}] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
