"""The benchmark: every case, every system, in turn."""

import gc
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rationale.artifact.compiled import Compiled
from rationale.bench.cases import CAPTUM, OURS, SHAP, Case, Settings
from rationale.bench.device import gpu_name, provider
from rationale.bench.exact import exact
from rationale.bench.peers import misses
from rationale.bench.process import ProcessDiedError, in_a_process, memory_kept
from rationale.bench.subjects import Subject, compile_ours, due, make_subject, ready
from rationale.bench.timing import System, alternate
from rationale.distribution import NAME
from rationale.errors import RationaleError
from rationale.terminal import progress_bar

PACKAGES = (NAME, "onnxruntime", "onnx", "numpy", "torch", "torchvision", "shap", "captum")
Machine = dict[str, str | int | float | None]
_REASON = 100  # characters of why a system is left out


@dataclass(frozen=True)
class Measured:
    """One system on one case.

    Attributes:
        times_s: of each call, by rounds; setup_s: its preparation.
        error: the largest difference of its attributions from float64's, over the largest of these; None
            where that is not known.
        gap: how far its attributions are from adding up to what they explain, over the largest of that.
        notes: what it computes otherwise.
    """

    times_s: list[list[float]]
    setup_s: float
    error: float | None
    gap: float | None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """One case.

    Attributes:
        compile_s, model_bytes, plain_bytes: of our graph and of the plain model.
        systems: what was measured; left_out: why a system is not among them.
    """

    case: Case
    compile_s: float
    model_bytes: int
    plain_bytes: int
    systems: dict[str, Measured]
    left_out: dict[str, str]


def bench(
    cases: Sequence[Case],
    settings: Settings,
    keep: Callable[[Sequence[Outcome]], object] = lambda _: None,
) -> tuple[list[Outcome], list[str]]:
    """Measures every case, each in a process of its own; returns them, and which ones failed.

    Args:
        keep: called after each case with all that was measured so far.

    Raises:
        RationaleError: all of them did.
    """
    if not settings.as_installed:
        os.environ.update(memory_kept(os.environ))  # for the processes; this one has its memory already
    outcomes: list[Outcome] = []
    failed = []
    for case in cases:
        try:
            outcomes.append(in_a_process(measure, case, settings))
            keep(outcomes)
        except ProcessDiedError as error:
            failed.append(f"{case.label}: nothing measured: {error} (it may need more memory)")
    if not outcomes:
        raise RationaleError("; ".join(failed))
    return outcomes, failed


def measure(case: Case, settings: Settings) -> Outcome:
    """Measures one case."""
    with progress_bar() as tell:
        tell(f"{case.label}: network", 0, 1)
        subject = make_subject(case, 0)
        started = time.perf_counter()
        compiled = compile_ours(subject, settings.threads)
        compile_s = time.perf_counter() - started
        tell(f"{case.label}: float64", 0, 1)
        truth, sums = _truth(subject), due(subject)
        gc.collect()  # torch.fx's graphs know their modules, which know their graphs
        found, left_out = _ready(
            subject, compiled, settings, lambda name: tell(f"{case.label}: {name}", 0, 1)
        )
        errors = {name: _errors(one, truth, sums) for name, one in found.items()}
        times = alternate(
            list(found.values()),
            settings.repeats,
            lambda done, total: tell(case.label, done, total),
        )
    known = misses(subject.network)
    systems = {
        name: Measured(times[name], one.setup_s, *errors[name], known if name in (SHAP, CAPTUM) else [])
        for name, one in found.items()
    }
    sizes = (compiled.model.ByteSize(), compiled.source.ByteSize())
    return Outcome(case, compile_s, *sizes, systems, left_out)


def _ready(
    subject: Subject, compiled: Compiled, settings: Settings, tell: Callable[[str], None]
) -> tuple[dict[str, System], dict[str, str]]:
    """Systems by name, and why others are left out."""
    found, left_out = {}, {}
    for name in (OURS, *settings.peers):
        tell(name)
        try:
            found[name] = ready(name, subject, compiled, settings.threads)
        except (RuntimeError, NotImplementedError) as error:
            left_out[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:_REASON]}"
    return found, left_out


def _truth(subject: Subject) -> np.ndarray | None:
    """Return the attributions in float64; None where there is no rule for a layer."""
    try:
        return exact(subject.network, subject.rows, subject.references)
    except NotImplementedError:
        return None


def _errors(one: System, truth: np.ndarray | None, sums: np.ndarray) -> tuple[float | None, float | None]:
    """Its error and its gap."""
    if one.explain is None:
        return None, None
    attributions = one.explain()
    missing = attributions.reshape(len(sums), -1).sum(1, dtype=np.float64) - sums
    gap = float(np.abs(missing).max() / np.abs(sums).max())
    return (None if truth is None else float(np.abs(attributions - truth).max() / np.abs(truth).max())), gap


def machine() -> Machine:
    """Return what it is measured on; nothing that names the machine. `load` is of now: ask first."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "provider": provider(),
        "gpu": gpu_name(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Of those that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
