"""A system in a process of its own that does nothing else: how soon it answers, and what memory that takes.

    python -m benchmarks.one_system SYSTEM FOLDER THREADS BEGAN_S [MOST_BYTES]

FOLDER is made by `written`; BEGAN_S is `time.time()` right before the process started. Prints `Alone`.
"""

import contextlib
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.bench.cases import CAPTUM, OURS, SHAP, TORCH
from compiler.bench.process import run_module

if TYPE_CHECKING:
    from compiler.artefact.compiled import Compiled
    from compiler.bench.subjects import Subject

ROWS, REFERENCES, MODEL, NETWORK = "rows.npy", "references.npy", "model.onnx", "network.pt"
AGAIN = 2  # runs after the first: what a system keeps from one run for the next is held then
Run = Callable[[], object]


@dataclass(frozen=True)
class Alone:
    """One start.

    Attributes:
        imported_s, ready_s, first_s: since the process started, until libraries are imported, the model and
            what explains it are made, and the first explanation is there.
        peak_bytes: the most it held, above what it did after its imports.
    """

    imported_s: float
    ready_s: float
    first_s: float
    peak_bytes: int


@contextlib.contextmanager
def written(subject: "Subject", compiled: "Compiled | None") -> Iterator[Path]:
    """A folder with what every system loads; peers need nothing compiled."""
    import torch

    from compiler.runtime.session import as_ir, save

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / ROWS, subject.rows.numpy())
        np.save(folder / REFERENCES, subject.references.numpy())
        if compiled is not None:
            save(as_ir(compiled.model), folder / MODEL)  # as an entry is
        torch.save(subject.network, folder / NETWORK)
        yield folder


def start(name: str, folder: Path, threads: int, most_bytes: int | None = None) -> Alone:
    """Starts a system, and asks it a few times.

    Args:
        most_bytes: it fails when it asks for more, instead of driving others out of memory.

    Raises:
        ProcessDiedError: it ended without an answer.
    """
    limit = [] if most_bytes is None else [str(most_bytes)]
    began_s = repr(time.time())
    told = run_module("benchmarks.one_system", name, str(folder), str(threads), began_s, *limit)
    return Alone(**json.loads(told.splitlines()[-1]))


# -- in that process -----------------------------------------------------------------------------------


def _import_ours() -> None:
    import onnxruntime  # noqa: F401 (its start is timed)


def _ours(folder: Path, threads: int) -> Run:
    from compiler.bench.device import session_of

    runner = session_of(str(folder / MODEL), threads)
    return lambda: runner.run(None, {"x": np.load(folder / ROWS)})


def _import_torch() -> None:
    from compiler.bench.networks import import_torchvision

    import_torchvision()


def _import_shap() -> None:
    from compiler.bench.peers import quietly

    _import_torch()
    with quietly():
        import shap  # noqa: F401 (its start is timed)


def _import_captum() -> None:
    _import_torch()
    import captum.attr  # noqa: F401 (its start is timed)


def _peer(name: str) -> Callable[[Path, int], Run]:
    def load(folder: Path, threads: int) -> Run:
        from compiler.bench.peers import EXPLAINERS

        network, rows, references = _in_torch(folder, threads)
        return partial(EXPLAINERS[name](network, references), rows)

    return load


def _torch(folder: Path, threads: int) -> Run:
    import torch

    from benchmarks.torch.baseline import baseline

    network, rows, references = _in_torch(folder, threads)
    walk = baseline(network, rows, references)
    return torch.inference_mode()(lambda: walk(rows))


def _in_torch(folder: Path, threads: int) -> tuple[Any, Any, Any]:
    """Network, rows and references."""
    import torch

    from compiler.bench.device import on_device

    torch.set_num_threads(threads)
    network = on_device(torch.load(folder / NETWORK, weights_only=False))
    return network, *(on_device(torch.from_numpy(np.load(folder / name))) for name in (ROWS, REFERENCES))


KINDS: dict[str, tuple[Callable[[], None], Callable[[Path, int], Run]]] = {
    OURS: (_import_ours, _ours),
    TORCH: (_import_torch, _torch),
    SHAP: (_import_shap, _peer(SHAP)),
    CAPTUM: (_import_captum, _peer(CAPTUM)),
}


def _most() -> int:
    """The most bytes this process has held so far; Linux's getrusage would count those of its parent."""
    try:
        return _status("VmHWM")
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(name: str) -> int:
    """Bytes, by Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def _limit(most_bytes: int) -> None:
    """No more than that beside what this process has already asked for, where the system can tell."""
    with contextlib.suppress(OSError, ValueError):
        limit = _status("VmData") + most_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def main() -> None:
    """Imports, loads, explains, and prints what that took."""
    name, folder, threads, began_s, *most_bytes = sys.argv[1:]
    imports, load = KINDS[name]
    imports()
    imported_s, before = time.time() - float(began_s), _most()
    if most_bytes:
        _limit(int(most_bytes[0]))
    run = load(Path(folder), int(threads))
    ready_s = time.time() - float(began_s)
    run()
    first_s = time.time() - float(began_s)
    for _ in range(AGAIN):
        run()
    print(json.dumps(asdict(Alone(imported_s, ready_s, first_s, _most() - before))))


if __name__ == "__main__":
    main()
