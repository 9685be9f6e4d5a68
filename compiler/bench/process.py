"""Work in a process of its own, whose memory goes with it."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Any

Tell = Callable[[str, int, int], None]


class ProcessDiedError(Exception):
    """It ended without an answer, for want of memory as a rule; `str` is how."""


def run_module(name: str, *arguments: str) -> str:
    """What `python -m name` prints.

    Raises:
        ProcessDiedError: it failed; `str` is what it said of that.
    """
    command = [sys.executable, "-m", name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (ours)
    if done.returncode:
        raise ProcessDiedError(done.stderr.strip() or f"its process ended with exit code {done.returncode}")
    return done.stdout


_TUNABLES, _HUGE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"


def huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by which glibc (2.35 and later) asks Linux for pages of 2 MB where memory is large.

    Activations of tens of megabytes then cost fewer faults and fewer misses of the page tables. Others
    ignore it, and what the environment says of it stays.
    """
    given = environment.get(_TUNABLES, "")
    if _HUGE in given:
        return {}
    return {_TUNABLES: ":".join(filter(None, [given, f"{_HUGE}=1"]))}


def in_a_process(
    function: Callable[..., Any],
    *arguments: Any,
    tell: Tell,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """`function(*arguments, tell)`, elsewhere; all must be picklable, and `tell` is called here.

    Args:
        variables: that its environment has beside those of this process.

    Raises:
        ProcessDiedError: no answer came.
    """
    context = multiprocessing.get_context("spawn")  # threads of this process would not survive a fork
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(there, function, arguments), daemon=True)
    with _environment(variables):
        process.start()
    there.close()
    try:
        while True:
            kind, content = here.recv()
            if kind == "answer":
                return content
            tell(*content)
    except EOFError:
        process.join()
        raise ProcessDiedError(f"its process ended with exit code {process.exitcode}") from None
    finally:
        process.terminate()
        process.join()
        here.close()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _serve(there: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """An exception ends the process with its traceback on stderr, as in any program."""
    answer = function(*arguments, lambda *stage: there.send(("stage", stage)))
    there.send(("answer", answer))
