"""The peak memory of an explanation, and the time and memory of references in chunks.

    python -m benchmarks.memory resnet50 [--references 20] [--peers shap,captum] [--threads 2]
    python -m benchmarks.memory resnet50 --size 112 --references 10,20,40 --peers ""
    python -m benchmarks.memory resnet50 --size 112 --references 1000 --budget 2GB --peers ""

Each figure is of a process that does nothing else: the most that it holds during three runs (read every
millisecond), above its memory after its imports. A line of ours also tells how the references were walked:
all at once, or in chunks that the budget allows.
"""

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np

from benchmarks.cases import (
    MODULES,
    OURS,
    BenchmarkCase,
    choose_cases,
    names,
    numbers,
    parser_of,
    positive,
    reporting_errors,
)
from benchmarks.timing import System, alternate, in_a_process, memory_bytes, memory_watched, quietly
from rationale.schema.machine import format_bytes, parse_bytes

RUNS, ROUNDS = 3, 5  # a system may keep something from one run for the next
SAMPLE_S = 0.001
AMPLE = "1TB"
ROWS, REFERENCES, NETWORK = "rows.npy", "references.npy", "network.pt"
Run = Callable[[], object]


def prepared(case: BenchmarkCase, folder: Path, threads: int, budget: int) -> str:
    """Write the files that the systems load; return a sentence about memory, chunks and compile time."""
    import torch

    from benchmarks.subjects import compile_ours, make_subject

    subject = make_subject(case)
    began = time.perf_counter()
    compiled = compile_ours(subject, threads, budget)
    compile_s = time.perf_counter() - began
    np.save(folder / ROWS, subject.rows.numpy())
    np.save(folder / REFERENCES, subject.references.numpy())
    torch.save(subject.network, folder / NETWORK)
    compiled.write(folder, OURS)
    memory = compiled.manifest.memory
    how = f"{memory.chunks} chunks, {memory.recomputed:.0%} recomputed" if memory.chunks > 1 else "at once"
    return f"{format_bytes(memory.needed)} estimated; {how}; compiled in {compile_s:.1f} s"


def ours(folder: Path, threads: int) -> Callable[[], Run]:
    """Import the modules for ONNX Runtime; return a function that loads our graph."""
    from benchmarks.runtime import session_of

    def load() -> Run:
        session = session_of(folder / f"{OURS}_explain" / "1" / "model.onnx", threads)
        return lambda: session.run(None, {"x": np.load(folder / ROWS)})

    return load


def peer(name: str, folder: Path, threads: int) -> Callable[[], Run]:
    """Import a peer's modules; return a function that loads its explainer."""
    import torch

    from benchmarks.networks import import_torchvision
    from benchmarks.peers import EXPLAINERS

    import_torchvision()
    with quietly():
        import_module(MODULES[name])

    def load() -> Run:
        torch.set_num_threads(threads)
        network = torch.load(folder / NETWORK, weights_only=False)
        rows, references = (torch.from_numpy(np.load(folder / file)) for file in (ROWS, REFERENCES))
        return partial(EXPLAINERS[name](network, references), rows)

    return load


def weighed(name: str, folder: Path, threads: int) -> tuple[int, float]:
    """Return a system's peak in this process, and the median seconds of a run of ours."""
    load = ours(folder, threads) if name == OURS else peer(name, folder, threads)
    before = memory_bytes()
    with memory_watched(every_s=SAMPLE_S) as seen:
        run = load()
        for _ in range(RUNS):
            run()
    times = alternate([System(name, run)], ROUNDS)[name] if name == OURS else [[0.0]]
    return max(seen) - before, statistics.median(itertools.chain(*times))


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each system and number of references."""
    parser = parser_of(__doc__)
    parser.add_argument("--references", type=numbers, default=[], help="K, by commas (10, credit 100)")
    parser.add_argument("--size", type=positive, help="pixels of an image's edge")
    parser.add_argument("--budget", default=AMPLE, help=f"of memory, for the compile ({AMPLE})")
    parser.add_argument("--peers", type=names(tuple(MODULES)), default=list(MODULES), help="by commas (all)")
    options = parser.parse_args(argv)
    with reporting_errors():
        budget = parse_bytes(options.budget)
        case = choose_cases([options.model], size=options.size)[0]
        for count in options.references or [case.references]:
            (sized,) = choose_cases([options.model], [count], [1], options.size)
            print(sized.label)
            with tempfile.TemporaryDirectory() as folder:
                how = in_a_process(prepared, sized, Path(folder), options.threads, budget)
                for name in (OURS, *options.peers):
                    peak, seconds = in_a_process(weighed, name, Path(folder), options.threads)
                    ms = 1e3 * seconds
                    details = (
                        f"   {ms:.3g} ms, {ms / count:.3g} ms a reference; {how}" if name == OURS else ""
                    )
                    print(f"{name:10}{format_bytes(peak):>10}{details}", flush=True)


if __name__ == "__main__":
    main()
