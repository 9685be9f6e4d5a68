"""`rationale serve` as users run it: a child process."""

import contextlib
import os
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

Child = subprocess.Popen[str]
SECONDS = 60
# How long a gateway that tests share works on a request. A first batch that takes a second on a busy machine
# is what it expects of the next ones: of many callers at once it would refuse the last with less.
PATIENCE_S = 600


@contextlib.contextmanager
def serve(
    *arguments: str,
    by: Sequence[str] = ("rationale_service.cli",),
    python: str = sys.executable,
    command: str = "serve",
    **settings: str,
) -> Iterator[Child]:
    """
    Args:
        by: the module that is the command line, and what it takes before `serve`.
        python: the interpreter, of another environment for one.
        settings: by their names in the environment.
    """
    child = subprocess.Popen(
        [python, "-m", *by, command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **settings},
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def ready_line(child: Child) -> tuple[str, list[str]]:
    """The HTTP address, and the lines before."""
    lines: list[str] = []
    for line in child.stdout:
        match = re.fullmatch(r"ready on (https?://(?:127\.0\.0\.1|0\.0\.0\.0):\d+)\n", line)
        if match:
            return match[1], lines
        lines.append(line.rstrip())
    raise AssertionError(f"never ready: {lines} {child.stderr.read()}")


def grpc_address(lines: list[str]) -> str:
    """`host:port`, from the lines before the last."""
    return _address_after(lines, "gRPC on ")


def admin_address(lines: list[str]) -> str:
    return _address_after(lines, "admin API on ")


def _address_after(lines: list[str], start: str) -> str:
    (actual,) = (line.removeprefix(start) for line in lines if line.startswith(start))
    return actual


def until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def spare_ports(count: int) -> list[int]:
    """Free ports below those that the system hands out: nobody gets them without asking for them."""
    handed_out = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    collected: list[int] = []
    for port in random.sample(range(handed_out // 2, handed_out), 100 * count):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            collected.append(port)
        if len(collected) == count:
            return collected
    raise AssertionError(f"no ports are free from {handed_out // 2} to {handed_out}")


@contextlib.contextmanager
def both_ends(*arguments: str, **settings: str) -> Iterator[dict[str, str]]:
    """Addresses `host:port` of a gateway that is ready: {"http": …, "grpc": …}."""
    settings = {"RATIONALE_REQUEST_TIMEOUT_S": str(PATIENCE_S), **settings}
    with serve("--port", "0", *arguments, **settings) as child:
        url, lines = ready_line(child)
        yield {"http": url.removeprefix("http://"), "grpc": grpc_address(lines)}
