"""Peak memory of our graph and of SHAP, each in a process of its own that does nothing else.

    python -m compiler.bench.memory SYSTEM FOLDER THREADS

prints the peak in bytes above what the process held after its imports.
"""

import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from compiler.bench.cases import OURS, SHAP, Settings

if TYPE_CHECKING:
    from compiler.bench.subjects import Subject
    from compiler.compiled import Compiled

ROWS, REFERENCES, MODEL, NETWORK = "rows.npy", "references.npy", "model.onnx", "network.pt"


@dataclass(frozen=True)
class Peak:
    """Bytes above the imports."""

    bytes: int


def peaks(subject: "Subject", compiled: "Compiled", settings: Settings) -> dict[str, Peak]:
    """Peaks of our graph, and of SHAP where it is among the peers."""
    import onnx
    import torch

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        np.save(place / ROWS, subject.rows.numpy())
        np.save(place / REFERENCES, subject.references.numpy())
        onnx.save(compiled.model, place / MODEL)
        torch.save(subject.network, place / NETWORK)
        names = [OURS, *([SHAP] if SHAP in settings.peers else [])]
        return {name: _in_a_process(name, place, settings.threads) for name in names}


def _in_a_process(name: str, folder: Path, threads: int) -> Peak:
    command = [sys.executable, "-m", "compiler.bench.memory", name, str(folder), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 (a command of ours)
    return Peak(int(json.loads(done.stdout.splitlines()[-1])))


def _most() -> int:
    """The most bytes this process has held so far; Linux's getrusage would count those of its parent."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _ours(folder: Path, threads: int) -> int:
    import onnxruntime as ort

    before = _most()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    given = [str(folder / MODEL), options]
    ort.InferenceSession(*given, providers=["CPUExecutionProvider"]).run(None, {"x": np.load(folder / ROWS)})
    return _most() - before


def _shap(folder: Path, threads: int) -> int:
    import torch

    from compiler.bench.networks import import_torchvision
    from compiler.bench.peers import quietly, shap_explainer

    torch.set_num_threads(threads)
    import_torchvision()
    with quietly():
        import shap  # noqa: F401  # imported before the count starts
    before = _most()
    network = torch.load(folder / NETWORK, weights_only=False)
    rows, references = (torch.from_numpy(np.load(folder / name)) for name in (ROWS, REFERENCES))
    shap_explainer(network, rows, references)()
    return _most() - before


if __name__ == "__main__":
    system, place, count = sys.argv[1:]
    print({OURS: _ours, SHAP: _shap}[system](Path(place), int(count)))
