"""Work in a process of its own, whose memory goes with it."""

from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

from rationale.errors import RationaleError

T = TypeVar("T")
_TUNABLES = "GLIBC_TUNABLES"
_KEPT = {
    "glibc.malloc.mmap_max": 0,
    "glibc.malloc.trim_threshold": 2**31 - 1,
    "glibc.malloc.hugetlb": 1,
}


class ProcessDiedError(RationaleError):
    """It ended without an answer, for want of memory as a rule; `str` is how."""


def memory_kept(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which glibc keeps what a process frees, in pages of 2 MB (since 2.35).

    PyTorch takes every tensor from malloc, and glibc gives large ones back to the system at once: each
    operator then pays for fresh pages, six times its own time in the largest MLP. ONNX Runtime has an arena
    of its own. Whoever serves PyTorch on CPU replaces malloc or does this. Other systems ignore it, and what
    the environment says of it stays.
    """
    given = environment.get(_TUNABLES, "")
    wanted = [f"{name}={value}" for name, value in _KEPT.items() if name not in given]
    return {_TUNABLES: ":".join(filter(None, [given, *wanted]))}


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
