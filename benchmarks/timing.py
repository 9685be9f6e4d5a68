"""Times and memory of systems that take turns, and of the machine: `loadtests` measures with it too."""

import importlib.metadata
import io
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, TypeVar

import numpy as np
import psutil
import pyperf

from rationale.distribution import NAME
from rationale.errors import RationaleError

T = TypeVar("T")
BLOCK_S = 0.03  # a system that needs less time is called several times in its turn, after an untimed call
MOST_CALLS = 50
REST_S = 0.06  # between turns: threads of ONNX Runtime spin for 40 ms after a run
PACKAGES = (NAME, "onnxruntime", "onnx", "numpy", "torch", "torchvision", "shap", "captum")
Times = list[list[float]]  # seconds of each call, by rounds


# -- turns ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class System:
    """A system under measurement.

    Attributes:
        prepare: a call before each of its turns, outside the time.
        explain: a call that returns its attributions [N, …]; None if it explains nothing.
        setup_s: seconds until it could answer.
    """

    name: str
    run: Callable[[], Any]
    prepare: Callable[[], Any] = lambda: None
    explain: Callable[[], np.ndarray] | None = None
    setup_s: float = 0.0


@dataclass(frozen=True)
class Ratio:
    """Ratio of two systems' times, each round's turns side by side.

    Attributes:
        median, low, high: over the rounds (low and high: the quartiles); least: of the fastest calls.
    """

    median: float
    low: float
    high: float
    least: float


def alternate(
    systems: Sequence[System],
    rounds: int,
    tell: Callable[[int, int], None] = lambda *_: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Times]:
    """Return the seconds of each call by system and round; the order turns: A B C, B C A, C A B."""
    times: dict[str, Times] = {system.name: [] for system in systems}
    calls = {system.name: _calls(system, clock) for system in systems}
    for round_number in range(rounds):
        for i in range(len(systems)):
            system = systems[(i + round_number) % len(systems)]
            tell(round_number * len(systems) + i, rounds * len(systems))
            times[system.name].append(_turn(system, calls[system.name], clock))
    return times


def _calls(system: System, clock: Callable[[], float]) -> int:
    """Return the calls of one turn, from the time of the first call, or of later ones if that was short."""
    seconds = _turn(system, 1, clock)[0]
    if seconds < BLOCK_S:
        seconds = min(_turn(system, 2, clock))
    return max(1, min(MOST_CALLS, round(BLOCK_S / max(seconds, 1e-9))))


def _turn(system: System, calls: int, clock: Callable[[], float]) -> list[float]:
    system.prepare()
    time.sleep(REST_S)
    if calls > 1:
        system.run()
    times = []
    for _ in range(calls):
        started = clock()
        system.run()
        times.append(clock() - started)
    return times


def ratio(above: Times, below: Times) -> Ratio:
    """Return how many times longer the calls of `above` take; both are of one `alternate`."""
    rounds = [statistics.median(a) / statistics.median(b) for a, b in zip(above, below, strict=True)]
    low, median, high = quartiles(rounds)
    return Ratio(median, low, high, min(map(min, above)) / min(map(min, below)))


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the quarter, the median, and three quarters."""
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return low, median, high


def round_quartiles(times: Times) -> tuple[float, float, float]:
    """Return the quartiles of the rounds' medians."""
    return quartiles([statistics.median(turn) for turn in times])


@contextmanager
def quietly() -> Iterator[None]:
    """Discard the output and warnings of peers; the benchmark compares their answers instead."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


# -- memory --------------------------------------------------------------------------------------------


def memory_bytes(pid: int | None = None) -> int:
    """Return the resident set of a process, of this one by default."""
    return int(psutil.Process(pid).memory_info().rss)


def memory_with_children(pid: int) -> int:
    """Return the proportional set of a process and its children: it counts shared pages once."""
    process, total = psutil.Process(pid), 0
    for each in (process, *process.children(recursive=True)):
        try:
            total += each.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


@contextmanager
def memory_watched(pid: int | None = None, every_s: float = 0.05) -> Iterator[list[int]]:
    """Fill the list with a process's resident bytes while the block runs."""
    seen, is_over = [memory_bytes(pid)], threading.Event()

    def watch() -> None:
        while not is_over.wait(every_s):
            seen.append(memory_bytes(pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()
        seen.append(memory_bytes(pid))


# -- processes -----------------------------------------------------------------------------------------

_TUNABLES = "GLIBC_TUNABLES"
_MALLOC_TUNABLES = {
    "glibc.malloc.mmap_max": 0,
    "glibc.malloc.trim_threshold": 2**31 - 1,
    "glibc.malloc.hugetlb": 1,
}


class ProcessDiedError(RationaleError):
    """A process ended without an answer, usually out of memory; `str` says how."""


def memory_kept(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that make glibc keep the memory a process frees, in pages of 2 MB (since 2.35).

    PyTorch takes every tensor from malloc, and glibc gives large ones back to the system at once: each
    operator then pays for fresh pages, six times its own time in the largest MLP. ONNX Runtime has an arena
    of its own. Servers of PyTorch on CPU replace malloc or set these. Other systems ignore them, and
    settings that the environment already has stay.
    """
    present = environment.get(_TUNABLES, "")
    missing = [f"{name}={value}" for name, value in _MALLOC_TUNABLES.items() if name not in present]
    return {_TUNABLES: ":".join(filter(None, [present, *missing]))}


def in_a_process(function: Callable[..., T], *arguments: object) -> T:
    """Return `function(*arguments)` from a process of its own, whose memory goes with it.

    It has the environment of this process. All values must be picklable.

    Raises:
        ProcessDiedError: if no answer came.
    """
    context = get_context("spawn")  # threads of this process would not survive a fork
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise ProcessDiedError("its process was ended (it may need more memory)") from None
        except Exception as error:
            raise ProcessDiedError(f"{type(error).__name__}: {error}") from error


# -- the machine, and files ----------------------------------------------------------------------------

MACHINE = "cpu_model_name cpu_count cpu_freq cpu_affinity platform python_version load_avg_1min".split()


def machine() -> dict[str, Any]:
    """Return pyperf's description of the machine, without its name; the load is that of now: ask first."""
    metadata = pyperf.Run([1.0]).get_metadata()
    return {name: metadata[name] for name in MACHINE if name in metadata}


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of the packages that are installed."""
    installed = {}
    for name in packages:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def as_benchmark(name: str, times: Times, about: Mapping[str, Any]) -> pyperf.Benchmark:
    """Return times as pyperf keeps them: `python -m pyperf stats|hist|compare_to` reads its files.

    Args:
        about: further metadata of the times; pyperf keeps numbers and texts.
    """
    metadata = {"name": name, **{key: value for key, value in about.items() if value is not None}}
    return pyperf.Benchmark([pyperf.Run(turn, metadata=metadata, collect_metadata=False) for turn in times])
