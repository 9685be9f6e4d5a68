"""Preparation of a workload's folder, with the same weights, rows and references for every system.

FOLDER/network.pt, references.npy              files for the baselines
FOLDER/repository/             files for `rationale serve`
FOLDER/expected.npz            rows; outputs and attributions in float64, rounded last
FOLDER/expected-SYSTEM.npz     the same for a baseline whose method computes something else
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.exact import exact
from benchmarks.peers import LIBRARIES, misses
from benchmarks.subjects import BenchmarkNetwork, compile_ours, make_subject
from loadtests.load.expected import (
    ATTRIBUTIONS,
    EXPECTED,
    MODEL,
    NETWORK,
    OUTPUT,
    REFERENCES,
    REPOSITORY,
    write_expected,
)
from loadtests.load.workloads import ALL_SYSTEMS, Workload

SEED = 24
TOLERANCE = 1e-3  # float32 against float64, through the fifty layers of the deepest network here


def prepare(workload: Workload, folder: Path, systems: Sequence[str] = ALL_SYSTEMS) -> None:
    """Write the folder for these systems; a baseline's expected answers take as long as its explanations."""
    subject = make_subject(workload.case, SEED)
    torch.save(subject.network, folder / NETWORK)
    np.save(folder / REFERENCES, subject.references.numpy())
    compile_ours(subject, torch.get_num_threads()).write(folder / REPOSITORY, MODEL)
    predictions = _predictions(subject)
    attributions = exact(subject.network, subject.rows, subject.references)
    _save(folder / EXPECTED, subject, predictions, attributions)
    if misses(subject.network):
        for name in (name for name in LIBRARIES if name in systems):
            attributions = LIBRARIES[name](subject.network, subject.references)(subject.rows)
            _save(folder / f"expected-{name}.npz", subject, predictions, attributions)


def _predictions(subject: BenchmarkNetwork) -> np.ndarray:
    with torch.inference_mode():
        y: torch.Tensor = subject.network.double()(subject.rows.double())
        subject.network.float()
    return y.numpy()


def _save(path: Path, subject: BenchmarkNetwork, predictions: np.ndarray, attributions: np.ndarray) -> None:
    """Save expected answers; `attributions` [N, …] are those of the largest output, one target: [N, 1, …]."""
    outputs = {OUTPUT: predictions.astype(np.float32), ATTRIBUTIONS: attributions[:, None].astype(np.float32)}
    write_expected(path, subject.rows.numpy(), outputs, TOLERANCE)
