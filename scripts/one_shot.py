"""What a gate costs: a one-shot graph beside the plain model and the explain graph of two entries.

    python scripts/one_shot.py MODEL.onnx --references 10

The four runs alternate in one process, one row each; what is printed are medians and the ratios of each
round's times. With one thread these are CPU times, which do not see what else the machine does. Memory is
that of a fresh process which loads the graphs and runs each once.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before ONNX Runtime is imported

import numpy as np
import onnx
import onnxruntime as ort

from compiler import DeepShap, Deployment, Gradient, compile_model

Run = Callable[[], object]
WARM, LOOP_S = 3, 0.002  # runs before any is counted; a model of microseconds runs this long per sample


def session(path: Path, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def seconds(run: Run, loop: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(loop):
        run()
    return (clock() - start) / loop


def alternate(runs: dict[str, Run], repeats: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of each run, by name: A B C D, D C B A, A B …; two in a row, of which the second counts."""
    loops = {}
    for name, run in runs.items():
        seconds(run, WARM, clock)
        loops[name] = max(1, round(LOOP_S / seconds(run, 1, clock)))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(repeats):
        for name in list(runs)[:: 1 if i % 2 else -1]:
            seconds(runs[name], loops[name], clock)
            times[name].append(seconds(runs[name], loops[name], clock))
    return times


def ratio(times: dict[str, list[float]], name: str, to: str) -> str:
    each = sorted(a / b for a, b in zip(times[name], times[to], strict=True))
    low, high = each[len(each) // 4], each[3 * len(each) // 4]
    return f"{name}: {statistics.median(each):.3f} of {to} (quartiles {low:.3f} to {high:.3f})"


def resident(*paths: Path) -> int:
    """MB of a process that holds the graphs, beyond one that holds none."""
    return _resident(paths) - _resident(())


def _resident(paths: tuple[Path, ...]) -> int:
    command = [sys.executable, __file__, "--hold", *map(str, paths)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def hold(paths: list[str]) -> None:
    held = [session(Path(path), 2) for path in paths]
    for s in held:
        s.run(None, feeds(s, True))
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    print(pages * os.sysconf("SC_PAGE_SIZE") >> 20)


def feeds(s: ort.InferenceSession, explain: bool) -> dict[str, np.ndarray]:
    random, fed = np.random.default_rng(1), {}
    for v in s.get_inputs():
        shape = (1, *v.shape[1:])
        fed[v.name] = np.full(shape, explain) if v.type == "tensor(bool)" else random.standard_normal(shape)
        if v.type == "tensor(float)":
            fed[v.name] = fed[v.name].astype(np.float32)
    return fed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path, nargs="*")
    parser.add_argument("--references", type=int, default=10, help="of DeepSHAP; 0 for the gradient")
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--hold", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.hold:
        hold(given.model)
        return
    for path in given.model:
        measure(path, given)


def measure(path: Path, given: argparse.Namespace) -> None:
    model = onnx.load(path)
    row = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim[1:]]
    rows = np.random.default_rng(0).standard_normal((given.references, *row)).astype(np.float32)
    method = DeepShap(rows) if given.references else Gradient()
    with tempfile.TemporaryDirectory() as folder:
        for name, one_shot in (("two", False), ("one", True)):
            deployment = Deployment(threads=given.threads, one_shot=one_shot)
            compile_model(model, method, deployment=deployment).write(folder, name)
        files = {n: Path(folder) / n / "1" / "model.onnx" for n in ("two", "two_explain", "one")}
        plain, combined, gated = (session(file, given.threads) for file in files.values())
        no, yes = feeds(gated, False), feeds(gated, True)
        answer = [v.name for v in plain.get_outputs()]
        own = feeds(plain, False)
        runs: dict[str, Run] = {
            "plain": lambda: plain.run(answer, own),
            "explain=false": lambda: gated.run(answer, no),
            "explain graph": lambda: combined.run(None, own),
            "explain=true": lambda: gated.run(None, yes),
        }
        clock = time.thread_time if given.threads == 1 else time.perf_counter
        times = alternate(runs, given.repeats, clock)
        print(f"{path.name}, {method.name}, K = {given.references}, {given.threads} thread(s)")
        for name, each in times.items():
            print(f"  {name}: median {statistics.median(each) * 1e3:.3f} ms, least {min(each) * 1e3:.3f}")
        print("  " + ratio(times, "explain=false", "plain"))
        print("  " + ratio(times, "explain=true", "explain graph"))
        sizes = {name: file.stat().st_size / 1e6 for name, file in files.items()}
        print(f"  file: {sizes['one']:.1f} MB; two: {sizes['two']:.1f} + {sizes['two_explain']:.1f}")
        both = resident(files["two"], files["two_explain"])
        print(f"  memory: {resident(files['one'])} MB; of two entries {both}")


if __name__ == "__main__":
    main()
