"""A written entry measured again, as at its compile: `rationale check`."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rationale.artifact.checks.check import demand
from rationale.artifact.checks.gate import check_gate
from rationale.artifact.checks.measure import measure, relative_error
from rationale.artifact.checks.probes import probe_rows
from rationale.artifact.checks.proof import demand_proof
from rationale.artifact.compiled import Compiled
from rationale.artifact.entry import entry_folders, open_entry
from rationale.errors import InvalidModelError, InvalidOptionError
from rationale.graph.memory.budget import rows_that_fit
from rationale.graph.runtime.openvino import OpenVinoRunner
from rationale.graph.runtime.session import kernels_of
from rationale.methods.engine import Gap
from rationale.methods.outputs import GAP, GAP_ERROR
from rationale.schema.manifest import EXPLAIN, Manifest

RUNTIMES = ("onnxruntime", "openvino")  # runtimes that can run an entry here


def check_entry(repository: Path, name: str, runtime: str = "onnxruntime") -> Manifest:
    """Measure an entry again, and return its manifest with the new measurements.

    Args:
        runtime: the runtime of the entry, onnxruntime or openvino; another one's answers are compared with
            ONNX Runtime's, and judged as at compile time.

    Raises:
        InvalidOptionError: if the runtime is unknown or not installed.
        CheckFailedError: if the runtime does not run the entry, or its answers differ.
        RepositoryError: if there is no such entry, or it cannot be read.
    """
    if runtime not in RUNTIMES:
        raise InvalidOptionError(f"--runtime {runtime!r}: choose {' or '.join(RUNTIMES)}.")
    compiled = open_entry(repository, name)
    file = entry_folders(repository, name)[1] / "1" / "model.onnx"
    with kernels_of(compiled.custom_ops):
        return _measure_again(compiled, OpenVinoRunner(file) if runtime != "onnxruntime" else None)


def _measure_again(compiled: Compiled, run: OpenVinoRunner | None) -> Manifest:
    manifest, names = compiled.manifest, [entry.attributions for entry in compiled.manifest.attributed]
    run_here = compiled.run  # it proves itself first
    most = rows_that_fit(manifest.memory)
    try:
        probes = _probes(compiled, unit=True)
        measurement = measure(compiled.source, compiled.model, names, probes, most, run or run_here)
    except InvalidModelError:  # floats that are ids of a small table, say
        probes = _probes(compiled, unit=False)
        measurement = measure(compiled.source, compiled.model, names, probes, most, run or run_here)
    if manifest.one_shot:
        check_gate(compiled.model, probes, [v.name for v in manifest.outputs], run)
    measured = measurement.measured.model_copy(update={"probe_rows": manifest.measured.probe_rows})
    if run is not None:
        error = _difference(run_here(probes), measurement.answers)
        measured = measured.model_copy(update={"runtime_error": error})
        warnings = demand(measured, _gap_of(manifest), bool(manifest.stopped))
        manifest = manifest.model_copy(update={"warnings": warnings})
    if compiled.probes is not None:
        if run is None:
            drift = compiled.probes.compare(run_here(compiled.probes.feeds))
        else:
            drift = demand_proof(compiled.probes, measurement.run, run.name)
        measured = measured.model_copy(update={"drift": drift.value})
    return manifest.model_copy(update={"measured": measured})


def _probes(compiled: Compiled, *, unit: bool) -> dict[str, np.ndarray]:
    """Return rows near the sample that the compiler left, and one a unit away from it."""
    probes = probe_rows(compiled.model, compiled.sample, unit=unit)
    probes.pop(EXPLAIN if compiled.manifest.one_shot else "", None)
    if (references := compiled.manifest.open_references) is not None:
        probes[references.weights.name] = np.abs(probes[references.weights.name])
    return probes


def _difference(expected: Mapping[str, np.ndarray], answers: Mapping[str, np.ndarray]) -> float:
    """Return the largest relative difference from ONNX Runtime's answers; that of a gap is rounding."""
    names = [name for name in expected if name not in (GAP, GAP_ERROR)]
    return max(relative_error(answers[name], expected[name]) for name in names)


def _gap_of(manifest: Manifest) -> Gap | None:
    """Return the reason why a written entry's attributions may miss the output's difference, if known."""
    return next((gap for gap in Gap if gap == manifest.method.gap), None)
