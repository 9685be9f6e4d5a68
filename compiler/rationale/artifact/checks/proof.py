"""Proof of a written entry before it answers: it runs its probe rows, and compares."""

import os
import warnings
from pathlib import Path

import onnxruntime as ort

from rationale.errors import CheckFailedError, DriftWarning, RepositoryError
from rationale.graph.runtime.session import Run
from rationale.schema.machine import processor
from rationale.schema.probes import ALLOW, ProbeDifference, Probes


def read_proven(version: Path, *, promised: bool) -> Probes | None:
    """Return the probe rows of a version's folder, and check that its other files are the compiled ones.

    Args:
        promised: True if the manifest names probe rows.

    Raises:
        RepositoryError: if a file is missing, damaged or another one.
    """
    probes = Probes.read(version, promised=promised)
    if probes is not None:
        try:
            probes.check_files(version)
        except RepositoryError as error:
            if not _is_allowed():
                raise
            warnings.warn(str(error), DriftWarning, stacklevel=2)
    return probes


def demand_proof(probes: Probes, run: Run, runtime: str | None = None) -> ProbeDifference:
    """Run the probe rows, and return the difference of the answers from the expected ones.

    Args:
        runtime: the runtime's name; by default ONNX Runtime here.

    Raises:
        CheckFailedError: if the answers differ, and RATIONALE_ALLOW_DRIFT does not allow it.
    """
    difference = probes.compare(run(probes.feeds))
    text = difference.describe(runtime or f"ONNX Runtime {ort.__version__} on {processor()}", probes.runtime)
    if difference.is_broken and not _is_allowed():
        raise CheckFailedError(
            f"{text}. Install the version that compiled it, or compile it again here. {ALLOW}=true accepts "
            "these answers."
        )
    if difference.is_notable:
        warnings.warn(text, DriftWarning, stacklevel=2)
    return difference


def _is_allowed() -> bool:
    return os.environ.get(ALLOW, "").strip().lower() in ("1", "true", "yes", "on")
