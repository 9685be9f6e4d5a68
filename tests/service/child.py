"""`rationale serve` as users run it: a child process."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator

Child = subprocess.Popen[str]


@contextlib.contextmanager
def serve(*arguments: str) -> Iterator[Child]:
    child = subprocess.Popen(
        [sys.executable, "-m", "service.cli", "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
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
        found = re.fullmatch(r"ready on (http://127\.0\.0\.1:\d+)\n", line)
        if found:
            return found[1], lines
        lines.append(line.rstrip())
    raise AssertionError(f"never ready: {lines} {child.stderr.read()}")


def grpc_address(lines: list[str]) -> str:
    """`host:port`, from the lines before the last."""
    (found,) = (line.removeprefix("gRPC on ") for line in lines if line.startswith("gRPC on "))
    return found


@contextlib.contextmanager
def both_ends(*arguments: str) -> Iterator[dict[str, str]]:
    """Addresses `host:port` of a gateway that is ready: {"http": …, "grpc": …}."""
    with serve("--port", "0", *arguments) as child:
        url, lines = ready_line(child)
        yield {"http": url.removeprefix("http://"), "grpc": grpc_address(lines)}
