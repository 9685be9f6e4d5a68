"""The cost of a gate: a one-shot graph beside the plain model and the explain graph of two entries.

    python -m benchmarks.one_shot MODEL.onnx [--references 10] [--threads 2] [--rounds 60]

The four runs alternate in one process, one row each; the figures are medians and the ratios of each round's
times. With one thread these are CPU times, which other work on the machine does not change. Memory is that of
a fresh process which loads the graphs and runs each once.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from benchmarks.cases import positive
from benchmarks.runtime import session_of
from benchmarks.timing import System, alternate, in_a_process, memory_bytes, ratio
from rationale import DeepShap, Deployment, Gradient, compile_model


def feeds(session: ort.InferenceSession, *, explain: bool) -> dict[str, np.ndarray]:
    """Return a row for each input, and the gate's value if the graph has a gate."""
    random, fed = np.random.default_rng(1), {}
    for graph_input in session.get_inputs():
        shape = (1, *graph_input.shape[1:])
        is_gate = graph_input.type == "tensor(bool)"
        x = np.full(shape, explain) if is_gate else random.standard_normal(shape)
        fed[graph_input.name] = x.astype(np.float32) if graph_input.type == "tensor(float)" else x
    return fed


def resident(*paths: Path) -> int:
    """Return MB of a process that holds the graphs, beyond one that holds none."""
    return (in_a_process(_hold, paths) - in_a_process(_hold, ())) >> 20


def _hold(paths: Sequence[Path]) -> int:
    held = [session_of(path, 2) for path in paths]
    for session in held:
        session.run(None, feeds(session, explain=True))
    return memory_bytes()


def measure(path: Path, *, references: int, threads: int, rounds: int) -> None:
    """Print times, sizes and memory of both forms of an explanation."""
    model = onnx.load(path)
    row = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim[1:]]
    rows = np.random.default_rng(0).standard_normal((references, *row)).astype(np.float32)
    method = DeepShap(rows) if references else Gradient()
    with tempfile.TemporaryDirectory() as folder:
        for name, one_shot in (("two", False), ("one", True)):
            deployment = Deployment(threads=threads, one_shot=one_shot)
            compile_model(model, method, deployment=deployment).write(folder, name)
        files = {name: Path(folder) / name / "1" / "model.onnx" for name in ("two", "two_explain", "one")}
        plain, combined, gated = (session_of(file, threads) for file in files.values())
        answer, inputs = [v.name for v in plain.get_outputs()], feeds(plain, explain=False)
        systems = [
            System("plain", partial(plain.run, answer, inputs)),
            System("explain=false", partial(gated.run, answer, feeds(gated, explain=False))),
            System("explain graph", partial(combined.run, None, inputs)),
            System("explain=true", partial(gated.run, None, feeds(gated, explain=True))),
        ]
        clock = time.thread_time if threads == 1 else time.perf_counter
        times = alternate(systems, rounds, clock=clock)
        print(f"{path.name}, {method.name}, K = {references}, {threads} thread(s)")
        for name, each in times.items():
            calls = [1e3 * seconds for seconds in chain(*each)]
            print(f"  {name}: median {statistics.median(calls):.3f} ms, least {min(calls):.3f}")
        for name, to in (("explain=false", "plain"), ("explain=true", "explain graph")):
            quotient = ratio(times[name], times[to])
            quartiles = f"quartiles {quotient.low:.3f} to {quotient.high:.3f}"
            print(f"  {name}: {quotient.median:.3f} of {to} ({quartiles})")
        sizes = {name: file.stat().st_size / 1e6 for name, file in files.items()}
        print(f"  file: {sizes['one']:.1f} MB; two: {sizes['two']:.1f} + {sizes['two_explain']:.1f}")
        sizes_of_two = resident(files["two"], files["two_explain"])
        print(f"  memory: {resident(files['one'])} MB; of two entries {sizes_of_two}")


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL.onnx")
    parser.add_argument("--references", type=int, default=10, help="of DeepSHAP; 0 for the gradient (10)")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--rounds", type=positive, default=60)
    options = parser.parse_args(argv)
    for path in options.models:
        measure(path, references=options.references, threads=options.threads, rounds=options.rounds)


if __name__ == "__main__":
    main()
