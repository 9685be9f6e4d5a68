"""Servers under load, as child processes, and the operating system's figures for them."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Server:
    """A child that listens. Addresses are host:port."""

    pid: int
    http: str
    grpc: str | None = None

    def cpu_s(self) -> float:
        """Return CPU seconds of its threads and its workers', to the nanosecond: ticks are too coarse."""
        used_ns = 0
        for process in (self.pid, *(child.pid for child in psutil.Process(self.pid).children())):
            for thread in Path(f"/proc/{process}/task").iterdir():
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    used_ns += int((thread / "schedstat").read_text().split()[0])
        return used_ns / 1e9


def restrict(cores: int) -> None:
    """Restrict this process and its children to some cores. Raises SystemExit if there are too few."""
    mine = sorted(os.sched_getaffinity(0))
    if not 1 <= cores <= len(mine):
        raise SystemExit(f"--cores {cores}: this machine lends 1 to {len(mine)}")
    os.sched_setaffinity(0, mine[:cores])


@contextlib.contextmanager
def gateway(repository: Path, *arguments: str, **environment: str) -> Iterator[Server]:
    """Yield a ready `rationale serve` on free ports."""
    command = f"{sys.executable} -m rationale_service.cli serve --port 0 --repository".split()
    with started([*command, str(repository), *arguments], environment) as server:
        yield server


@contextlib.contextmanager
def started(command: list[str], environment: dict[str, str]) -> Iterator[Server]:
    """Yield a child once it prints `ready on http://HOST:PORT`; before, it may print `gRPC on HOST:PORT`."""
    child = subprocess.Popen(  # noqa: S603 (a command of ours)
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    try:
        yield announced(child)
    finally:
        child.terminate()
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()


def announced(child: subprocess.Popen[str]) -> Server:
    grpc = None
    for line in child.stdout or ():
        if line.startswith("gRPC on "):
            grpc = line.removeprefix("gRPC on ").strip()
        match = re.match(r"ready on http://(\S+)", line)
        if match:
            return Server(child.pid, match[1], grpc)
    raise RuntimeError(f"the server ended with status {child.wait()} before it was ready")
