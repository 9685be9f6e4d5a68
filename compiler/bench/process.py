"""Work in a process of its own, whose memory goes with it."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

from compiler.errors import RationaleError

T = TypeVar("T")
_TUNABLES, _HUGE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"


class ProcessDiedError(RationaleError):
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


def huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by which glibc (2.35 and later) asks Linux for pages of 2 MB where memory is large.

    Activations of tens of megabytes then cost fewer faults and fewer misses of the page tables. Others
    ignore it, and what the environment says of it stays.
    """
    given = environment.get(_TUNABLES, "")
    if _HUGE in given:
        return {}
    return {_TUNABLES: ":".join(filter(None, [given, f"{_HUGE}=1"]))}


def in_a_process(function: Callable[..., T], *arguments: object) -> T:
    """`function(*arguments)`, elsewhere, with the environment of this process; all must be picklable.

    Raises:
        ProcessDiedError: no answer came.
    """
    context = get_context("spawn")  # threads of this process would not survive a fork
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise ProcessDiedError("its process was ended") from None
        except Exception as error:
            raise ProcessDiedError(f"{type(error).__name__}: {error}") from error
