"""System packages that the tests need beyond Python packages: installed, or named if they are missing.

    python3 -m scripts.system test|docker

As root on a Debian, it installs missing packages; `SYSTEM=0` leaves the system alone. Otherwise one line says
what is missing and how to get it. It never fails: tests without their packages skip and name them
(`tests.needs`). Needs nothing but Python's standard library.
"""

from __future__ import annotations  # an old Python must get as far as env.py's error message

import glob
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from scripts.env import LEAST_PYTHON
from scripts.triton.fetch import PYTHONS

TARGETS = ("test", "docker")
LOG = Path(__file__).resolve().parent.parent / ".cache" / "system.log"
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


@dataclass(frozen=True)
class Tool:
    """A requirement of tests.

    Attributes:
        name: the name in the messages of skipped tests.
        found_as: places, one of which is enough: a program, a shared library, a pattern of paths, or a module
            of this Python ("import …").
        packages: Debian's packages that bring it.
        purpose: the tests' use of it.
        targets: those of TARGETS that need it.
    """

    name: str
    found_as: tuple[str, ...]
    packages: tuple[str, ...]
    purpose: str
    targets: tuple[str, ...] = ("test",)

    def find(self) -> str | None:
        """Return its place, or None if it is missing."""
        return next(filter(None, map(_place, self.found_as)), None)

    @property
    def command(self) -> str:
        return f"apt-get install {' '.join(self.packages)}"

    @property
    def missing(self) -> str:
        """Return the reason of tests that skip."""
        return f"{self.name} is missing ({self.command})"


NEEDS = (
    Tool("venv", ("import ensurepip",), (f"python{VERSION}-venv",), "the environment of the tests", TARGETS),
    Tool("git", ("git",), ("git",), "the list of the project's files"),
    Tool("curl", ("curl",), ("curl",), "the requests of the pages"),
    Tool("OpenSSL", ("openssl",), ("openssl",), "keys that sign heads of the audit trail"),
    Tool("Node.js", ("node",), ("nodejs",), "the pages' pure functions, the decisions of exported pages"),
    Tool("npm", ("npm",), ("npm",), "ONNX Runtime for browsers, gRPC's client for JavaScript"),
    Tool("Chromium", ("chromium", "google-chrome"), ("chromium",), "the console, reports and exported pages"),
    Tool("Java", ("java",), ("default-jre-headless",), "Spark"),
    Tool("PostgreSQL", ("/usr/lib/postgresql/*/bin/postgres",), ("postgresql",), "the audit trail, replicas"),
    Tool("Redis", ("redis-server",), ("redis-server",), "rate limits that workers share"),
    Tool("haproxy", ("haproxy",), ("haproxy",), "replicas behind a proxy"),
    Tool("Prometheus", ("promtool",), ("prometheus",), "the alerts and the dashboard"),
    Tool("C++", ("c++",), ("g++",), "the library of kernels"),
    Tool("CMake", ("cmake",), ("cmake",), "the library of kernels"),
    Tool("Make", ("make",), ("make",), "the library of kernels"),
    Tool("OpenGL", ("libGL.so.1",), ("libgl1",), "Quantus"),
    Tool("GLib", ("libgthread-2.0.so.0",), ("libglib2.0-0",), "Quantus"),
    Tool("expat", ("libexpat.so.1",), ("libexpat1",), "Triton"),
    Tool("zlib", ("libz.so.1",), ("zlib1g",), "Triton"),
    Tool("libstdc++", ("libstdc++.so.6",), ("libstdc++6",), "Triton"),
    *(
        # Triton comes for these Pythons alone.
        Tool("libpython", (f"libpython{version}.so.1.0",), (f"libpython{version}",), "Triton")
        for version in PYTHONS
        if version == VERSION
    ),
    Tool("Docker", ("dockerd",), ("docker.io", "iptables"), "`rationale triton`, the images", TARGETS),
    Tool("busybox", ("busybox",), ("busybox-static",), "an image that stands for Triton's", TARGETS),
    Tool("docker-compose", ("docker-compose",), ("docker-compose",), "the compose file", ("docker",)),
    Tool("mmdebstrap", ("mmdebstrap",), ("mmdebstrap",), "images where no registry is in reach", ("docker",)),
)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in TARGETS:
        print(f"usage: system.py {'|'.join(TARGETS)}", file=sys.stderr)
        return 2
    if sys.version_info < LEAST_PYTHON:
        return 0  # env.py comes next, and says so
    missing = missing_needs(arguments[0])
    may_install = os.environ.get("SYSTEM", "1") != "0" and os.geteuid() == 0 and shutil.which("apt-get")
    if missing and may_install:
        install(sorted({package for need in missing for package in need.packages}))
        missing = missing_needs(arguments[0])
    if missing:
        names = ", ".join(need.name for need in missing)
        packages = " ".join(package for need in missing for package in need.packages)
        say(f"missing: {names}; tests that need them will skip (as root: apt-get install {packages})")
    return 0


def missing_needs(target: str) -> list[Tool]:
    return [need for need in NEEDS if target in need.targets and need.find() is None]


def install(packages: list[str]) -> None:
    """Install Debian packages: all at once, or one by one if that fails, as one may be unknown here."""
    started = time.monotonic()
    say(f"installing Debian packages (SYSTEM=0 leaves the system alone): {' '.join(packages)}")
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("wb") as log:
        if not _apt_get(log, "update") or not _apt_get(log, "install", *packages):
            failed = [package for package in packages if not _apt_get(log, "install", package)]
            if failed:
                say(f"apt-get could not install {', '.join(failed)}: see {LOG}")
    say(f"done after {time.monotonic() - started:.0f} s")


def _apt_get(log: IO[bytes], *arguments: str) -> bool:
    options = ("--yes", "--no-install-recommends", "--option=DPkg::Lock::Timeout=300")
    command = ["apt-get", *options, *arguments]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    process = subprocess.run(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
    return process.returncode == 0


def _place(found_as: str) -> str | None:
    if found_as.startswith("import "):
        spec = importlib.util.find_spec(found_as[len("import ") :])
        return spec.origin if spec else None
    if found_as.startswith("/"):
        return max(glob.glob(found_as), default=None)
    if ".so." in found_as:
        beside = Path(sysconfig.get_config_var("LIBDIR") or "/", found_as)
        return str(beside) if beside.exists() else _libraries().get(found_as)
    # Debian keeps servers outside a user's PATH.
    return shutil.which(found_as, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def _libraries() -> dict[str, str]:
    """Return the libraries that the loader knows, with their paths."""
    try:
        process = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return {}
    entries = [line.split(" => ") for line in process.stdout.splitlines() if " => " in line]
    return {name.split()[0]: path for name, path in entries}


def say(text: str) -> None:
    print(f"[system] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
