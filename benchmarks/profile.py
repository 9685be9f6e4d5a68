"""Where the time of an explanation goes: by operator, beside the forward pass over as many rows.

    python -m benchmarks.profile resnet50 [--references 10] [--threads 2] [--nodes 12]

takes a network of `rationale bench`, compiles it, and lets ONNX Runtime profile both graphs. A node counts
with its least time over a few runs: what it takes where nothing else wants the machine.
"""

import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from benchmarks.arguments import case_of, parser_of, positive
from rationale.bench.subjects import compile_ours, make_subject
from rationale.schema.machine import LARGE_BLOCKS

RUNS = 6


def node_times(model: onnx.ModelProto, rows: np.ndarray, threads: int) -> Mapping[tuple[str, str], float]:
    """Milliseconds of each node, by operator and name."""
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 4
        options.add_session_config_entry(*LARGE_BLOCKS)
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "profile")
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        for _ in range(RUNS):
            session.run(None, {session.get_inputs()[0].name: rows})
        events = json.loads(Path(session.end_profiling()).read_text())
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in events:
        name: str = event["name"]
        if event.get("cat") == "Node" and name.endswith("_kernel_time"):
            key = event["args"]["op_name"], name.removesuffix("_kernel_time")
            times[key].append(event["dur"] / 1e3)
    return {key: min(each) for key, each in times.items()}


def by_operator(times: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """Milliseconds of each operator, the longest first."""
    total: dict[str, float] = defaultdict(float)
    for (operator, _), milliseconds in times.items():
        total[operator] += milliseconds
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def show(model: str, forward: Mapping[Any, float], explain: Mapping[Any, float], nodes: int) -> None:
    """Prints milliseconds by operator, then the longest nodes."""
    least = sum(forward.values())
    ratio = sum(explain.values()) / least
    print(f"{model}: forward {least:.2f} ms, explanation {sum(explain.values()):.2f} ms, {ratio:.2f} of it\n")
    print(f"{'operator':22}{'forward ms':>12}{'explain ms':>12}{'of forward':>12}{'nodes':>8}")
    plain, full = by_operator(forward), by_operator(explain)
    for operator, milliseconds in full.items():
        count = sum(key[0] == operator for key in explain)
        share = milliseconds / least
        if share >= 0.002:
            print(f"{operator:22}{plain.get(operator, 0):12.2f}{milliseconds:12.2f}{share:12.3f}{count:8}")
    print("\nthe longest nodes of the explanation")
    for (operator, name), milliseconds in sorted(explain.items(), key=lambda item: -item[1])[:nodes]:
        print(f"{milliseconds:8.2f} ms  {operator:18} {name}")


def main(given: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--references", type=positive, help="K; by default as in `rationale bench`")
    parser.add_argument("--nodes", type=positive, default=12, help="how many of the longest nodes to name")
    arguments = parser.parse_args(given)
    case = case_of(arguments)
    subject = make_subject(case, 0)
    compiled = compile_ours(subject, arguments.threads)
    rows, references = subject.rows.numpy(), subject.references.numpy()
    every = np.concatenate([rows, references])
    forward = node_times(subject.model, every, arguments.threads)
    explain = node_times(compiled.model, rows, arguments.threads)
    show(case.label, forward, explain, arguments.nodes)


if __name__ == "__main__":
    main()
