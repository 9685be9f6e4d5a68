"""A system in a process of its own that does nothing else: what memory an explanation takes.

    python -m benchmarks.one_system SYSTEM FOLDER THREADS

FOLDER is made by `written`. Prints the most bytes that three runs hold, above what the process did after its
imports.
"""

import contextlib
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rationale.bench.cases import CAPTUM, OURS, SHAP

if TYPE_CHECKING:
    from rationale.artifact.compiled import Compiled
    from rationale.bench.subjects import Subject

ROWS, REFERENCES, MODEL, NETWORK = "rows.npy", "references.npy", "model.onnx", "network.pt"
RUNS = 3  # what a system keeps from one run for the next is held then
LIBRARIES = {SHAP: "shap", CAPTUM: "captum.attr"}
Run = Callable[[], object]


@contextlib.contextmanager
def written(subject: "Subject", compiled: "Compiled") -> Iterator[Path]:
    """A folder with what every system loads."""
    import torch

    from rationale.graph.runtime.session import as_ir, save

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / ROWS, subject.rows.numpy())
        np.save(folder / REFERENCES, subject.references.numpy())
        save(as_ir(compiled.model), folder / MODEL)  # as an entry is
        torch.save(subject.network, folder / NETWORK)
        yield folder


def peak_bytes(name: str, folder: Path, threads: int) -> int:
    """Start a system, and ask it a few times. Raises CalledProcessError: it ended without an answer."""
    command = [sys.executable, "-m", "benchmarks.one_system", name, str(folder), str(threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 (ours)
    return int(done.stdout.splitlines()[-1])


# -- in that process -----------------------------------------------------------------------------------


def ours(folder: Path, threads: int) -> Callable[[], Run]:
    """Import what it takes; return what makes it ready."""
    from rationale.bench.device import session_of

    def load() -> Run:
        runner = session_of(str(folder / MODEL), threads)
        return lambda: runner.run(None, {"x": np.load(folder / ROWS)})

    return load


def peer(name: str, folder: Path, threads: int) -> Callable[[], Run]:
    """The same of a peer."""
    import torch

    from rationale.bench.device import on_device
    from rationale.bench.networks import import_torchvision
    from rationale.bench.peers import EXPLAINERS, quietly

    import_torchvision()
    with quietly():
        import_module(LIBRARIES[name])

    def load() -> Run:
        torch.set_num_threads(threads)
        network = torch.load(folder / NETWORK, weights_only=False)
        rows, references = (on_device(torch.from_numpy(np.load(folder / n))) for n in (ROWS, REFERENCES))
        return partial(EXPLAINERS[name](network, references), rows)

    return load


def held() -> int:
    """The most bytes this process has held so far; Linux's getrusage would count those of its parent."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    (line,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    name, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    load = ours(folder, threads) if name == OURS else peer(name, folder, threads)
    before = held()
    run = load()
    for _ in range(RUNS):
        run()
    print(held() - before)


if __name__ == "__main__":
    main()
