"""A real Triton Inference Server in a folder, fetched without Docker.

    python3 scripts/triton/fetch.py [--into .triton]

The wheel `nvidia-pytriton` carries the `tritonserver` binary and its Python backend; this script gives
it an environment of its own and builds the backend folder beside it. Afterwards the folder holds

    venv/                 Python, the server, ONNX Runtime, numpy 1.26
    backends/python/      Triton's Python backend and the stub of this Python
    backends/onnxruntime/ our `onnxruntime` backend (onnxruntime_backend/model.py)
    lib/                  libpython of the Python the stub runs, if the system does not offer it
    stamp.json            written last: the inputs it was made from, and the paths of the parts

A second run compares the stamp and returns at once. Only the standard library is used.
"""

from __future__ import annotations  # an old Python must get as far as the error message

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DEFAULT_FOLDER = ROOT / ".triton"
BACKEND = HERE / "onnxruntime_backend" / "model.py"

PYTHONS = ("3.11", "3.12")  # the server ships a stub for these, and numpy 1.26 a wheel
# Installed without dependencies: only the binaries inside are used (tritonclient brings perf_analyzer).
WHEELS = ("nvidia-pytriton==0.7.0", "tritonclient==2.51.0")
# numpy must stay below 2: under numpy 2 the stub answers the right shapes, zero bytes of data, and no error.
LIBRARIES = ("numpy==1.26.4", "onnxruntime>=1.20,!=1.26.0,<2")
LEAST_GLIBC = (2, 35)
LAYOUT = 1  # raise it when this script makes something else from the same inputs
PARTS = ("stamp.json", "venv", "backends", "lib")
SERVER = "pytriton/tritonserver"
PROBE = "import json, sys, sysconfig as s; print(json.dumps([s.get_config_var(x) for x in sys.argv[1:]]))"


class FetchError(Exception):
    """An error with advice for a server that cannot be fetched."""


def say(text: str) -> None:
    print(f"triton: {text}", flush=True)


def run(command: Sequence[str | Path], problem: str, environment: dict[str, str] | None = None) -> str:
    """Return the command's output. Raise FetchError with `problem` and the end of the output."""
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if process.returncode == 0:
        return process.stdout
    lines = (process.stderr + process.stdout).strip().splitlines()
    lines = [line for line in lines if line.startswith("ERROR")] or lines  # pip's warnings would bury it
    raise FetchError("\n".join([problem, *(f"    {line}" for line in lines[-8:])]))


# --- what this machine offers -------------------------------------------------------------------------


def check_platform() -> None:
    """Raise FetchError if the server's binary cannot run."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise FetchError(
            f"the server's binary is for Linux on x86-64, and this is {sys.platform} on {platform.machine()}."
            "\nUse the official container instead: `rationale triton start`, or `docker compose up`."
        )
    name, version = platform.libc_ver()
    version_numbers = tuple(int(number) for number in version.split(".")[:2]) if name == "glibc" else (0, 0)
    if version_numbers < LEAST_GLIBC:
        raise FetchError(
            f"the server's binary needs glibc 2.35 or newer, and this is {name or 'another libc'} {version}."
            "\nUse the official container (`rationale triton start`), or a newer system:"
            " Debian 12, Ubuntu 22.04 …"
        )


def describe(python: str) -> tuple[str, str] | None:
    """Return the path and version of the interpreter behind `python` (a shim, a virtual environment …).

    Return None if it fails.
    """
    code = "import platform, sys; print(sys._base_executable); print(platform.python_version())"
    try:
        process = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return None
    if process.returncode != 0:
        return None
    path, version = process.stdout.splitlines()
    return os.path.realpath(path), version


def find_python() -> tuple[str, str]:
    """Return the interpreter to build on and its version: this one, else one on PATH."""
    for name in (sys.executable, *(f"python{version}" for version in PYTHONS)):
        interpreter = describe(name)
        if interpreter and interpreter[1].rpartition(".")[0] in PYTHONS:
            return interpreter
    raise FetchError(
        f"Python {' or '.join(PYTHONS)} is needed, and this is {platform.python_version()}."
        "\nInstall one, so that `python3.11` is on PATH"
        " (Debian 12: apt-get install python3.11-venv libpython3.11)."
    )


# --- the parts ----------------------------------------------------------------------------------------


def inputs() -> dict[str, str]:
    """Return digests of the inputs of the environment and of the backend folder, without the Python."""
    environment = f"{LAYOUT} {platform.machine()} {WHEELS} {LIBRARIES}"
    return {
        "environment": hashlib.sha256(environment.encode()).hexdigest(),
        "backend": hashlib.sha256(BACKEND.read_bytes()).hexdigest(),
    }


def read_stamp(folder: Path) -> dict[str, str]:
    """Return the stamp, empty if there is none or it is damaged."""
    try:
        stamp = json.loads((folder / "stamp.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def is_whole(folder: Path, stamp: dict[str, str]) -> bool:
    """Tell whether the stamped server is there and the Python that it was built on still runs."""
    interpreter = describe(str(folder / "venv/bin/python"))
    return (
        interpreter is not None
        and interpreter[1] == stamp.get("python")
        and (folder / stamp.get("server", "venv") / "bin/tritonserver").exists()
    )


def write_stamp(folder: Path, stamp: dict[str, str]) -> None:
    partial = folder / "stamp.json.partial"
    partial.write_text(json.dumps(stamp, indent=2) + "\n")
    partial.replace(folder / "stamp.json")


def make_environment(folder: Path, python: str) -> None:
    say(f"1/3 an environment of its own, {python}")
    run(
        [python, "-m", "venv", folder / "venv"],
        f"{python} cannot make a virtual environment.\n"
        "Debian and Ubuntu ship that apart: apt-get install python3-venv (or python3.11-venv).",
    )
    say("2/3 the server and ONNX Runtime (about 100 MB the first time)")
    pip = (folder / "venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    for packages in (("--no-deps", *WHEELS), LIBRARIES):
        run(
            [*pip, "--no-input", "--only-binary", ":all:", *packages],
            "pip could not install the server. Is a package index within reach (pip config, proxy, network)?",
        )


def link_libpython(folder: Path, python: str) -> None:
    """Link the shared libpython of `python`, so that the stub runs that Python."""
    (folder / "lib").mkdir()
    code = run([python, "-c", PROBE, "LIBDIR", "INSTSONAME"], f"{python} does not start.")
    libdir, name = json.loads(code)
    library = Path(libdir or "/", name or "")
    if ".so" in library.name and library.exists():
        (folder / "lib" / library.name).symlink_to(library)


def make_backends(folder: Path, version: str) -> None:
    say("3/3 the backend folder")
    backends, server = folder / "backends", next(folder.glob(f"venv/lib/python*/site-packages/{SERVER}"))
    shutil.rmtree(backends, ignore_errors=True)
    shutil.copytree(
        server / "backends/python", backends / "python", ignore=shutil.ignore_patterns("__pycache__")
    )
    stub = server / "python_backend_stubs" / version.rpartition(".")[0] / "triton_python_backend_stub"
    (backends / "python" / stub.name).symlink_to(os.path.relpath(stub, backends / "python"))
    (backends / "onnxruntime").mkdir()
    shutil.copy(BACKEND, backends / "onnxruntime" / "model.py")


def check_libraries(folder: Path) -> None:
    """Raise FetchError if the loader misses a library that the server or its stub needs."""
    server = next(folder.glob(f"venv/lib/python*/site-packages/{SERVER}"))
    stub = folder / "backends/python/triton_python_backend_stub"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder / "lib")}
    listing = run(
        ["ldd", server / "bin/tritonserver", stub.resolve()], "ldd cannot read the server.", environment
    )
    missing = sorted({line.split()[0] for line in listing.splitlines() if "not found" in line})
    if missing:
        raise FetchError(
            f"the system lacks {', '.join(missing)}, which the server needs."
            "\nDebian and Ubuntu: apt-get install libpython3.11 libexpat1 zlib1g libstdc++6."
        )


# --- the story ----------------------------------------------------------------------------------------


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one fetch at a time into a folder; refuse a folder that is not ours.

    Raises:
        FetchError: if the folder holds something else, or cannot be written.
    """
    lock = folder / "lock"
    if folder.exists() and not lock.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FetchError(f"{folder} was not made by this script; name an empty or a new folder with --into.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = lock.open("w")
    except OSError as error:
        raise FetchError(f"{folder} cannot be written: {error.strerror}") from error
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def remove(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def fetch(folder: Path = DEFAULT_FOLDER) -> bool:
    """Make the folder, or only its backend if the rest is up to date.

    One server is enough for every Python that calls this: it keeps the Python that it was built on.
    Return True if something was made. Raise FetchError; an unfinished folder is never stamped.
    """
    check_platform()
    expected = inputs()
    with locked(folder):
        stamp = read_stamp(folder)
        whole = is_whole(folder, stamp)
        if whole and all(stamp.get(key) == value for key, value in expected.items()):
            return False
        if whole and stamp.get("environment") == expected["environment"]:
            version = stamp["python"]
            remove(folder, ("stamp.json",))
        else:
            remove(folder, PARTS)
            python, version = find_python()
            make_environment(folder, python)
            link_libpython(folder, python)
        make_backends(folder, version)
        check_libraries(folder)
        server = next(folder.glob(f"venv/lib/python*/site-packages/{SERVER}"))
        write_stamp(folder, {**expected, "python": version, "server": str(server.relative_to(folder))})
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch a real Triton Inference Server, without Docker.")
    parser.add_argument("--into", type=Path, default=DEFAULT_FOLDER, help="the folder (default: .triton)")
    folder = parser.parse_args().into.resolve()
    try:
        is_new = fetch(folder)
    except (FetchError, OSError) as error:  # OSError: a full disk, a folder without rights
        print(f"triton: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("triton: interrupted; the next run begins again", file=sys.stderr)
        return 130
    say(f"{'ready' if is_new else 'already there'}: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
