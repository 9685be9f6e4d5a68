"""The time of an explanation by operator, beside the forward pass over as many rows.

    python -m benchmarks.profile resnet50 [--references 10] [--threads 2] [--nodes 12]

It compiles a network of `python -m benchmarks` and lets ONNX Runtime profile both graphs. A node counts with
its least time over a few runs: other work on the machine then changes little. On a GPU, a node's time is that
of its launch; the table then also marks the operators that the CPU runs.
"""

import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from benchmarks.cases import choose_cases, parser_of, positive
from benchmarks.runtime import CPU, provider, session_of
from benchmarks.subjects import compile_ours, make_subject

RUNS = 6
Nodes = Mapping[tuple[str, str], float]  # milliseconds by operator and name


def node_times(model: onnx.ModelProto, rows: np.ndarray, threads: int) -> Nodes:
    """Return the least milliseconds of each node."""
    with tempfile.TemporaryDirectory() as folder:
        session = session_of(model.SerializeToString(), threads, profile=Path(folder) / "profile")
        for _ in range(RUNS):
            session.run(None, {session.get_inputs()[0].name: rows})
        events = json.loads(Path(session.end_profiling()).read_text())
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in events:
        name: str = event["name"]
        if event.get("cat") == "Node" and name.endswith("_kernel_time"):
            operator: str = event["args"]["op_name"]
            if provider() != "cpu" and event["args"]["provider"] == CPU:
                operator += " (CPU)"
            key = operator, name.removesuffix("_kernel_time")
            times[key].append(event["dur"] / 1e3)
    return {key: min(each) for key, each in times.items()}


def by_operator(times: Nodes) -> dict[str, float]:
    """Return the milliseconds of each operator, the longest first."""
    total: dict[str, float] = defaultdict(float)
    for (operator, _), milliseconds in times.items():
        total[operator] += milliseconds
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def show(model: str, forward: Nodes, explain: Nodes, nodes: int) -> None:
    """Print milliseconds by operator, then the longest nodes."""
    least, whole = sum(forward.values()), sum(explain.values())
    print(f"{model}: forward {least:.2f} ms, explanation {whole:.2f} ms, {whole / least:.2f} of it\n")
    print(f"{'operator':26}{'forward ms':>12}{'explain ms':>12}{'of forward':>12}{'nodes':>8}")
    plain, counts = by_operator(forward), Counter(operator for operator, _ in explain)
    for operator, milliseconds in by_operator(explain).items():
        share = milliseconds / least
        if share >= 0.002:
            times = f"{plain.get(operator, 0):12.2f}{milliseconds:12.2f}{share:12.3f}"
            print(f"{operator:26}{times}{counts[operator]:8}")
    print("\nthe longest nodes of the explanation")
    for (operator, name), milliseconds in sorted(explain.items(), key=lambda item: -item[1])[:nodes]:
        print(f"{milliseconds:8.2f} ms  {operator:18} {name}")


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table of a network."""
    parser = parser_of(__doc__)
    parser.add_argument("--references", type=positive, help="K (10, credit 100)")
    parser.add_argument("--nodes", type=positive, default=12, help="how many of the longest nodes to name")
    options = parser.parse_args(argv)
    case = choose_cases([options.model], [options.references] if options.references else [])[0]
    subject = make_subject(case)
    compiled = compile_ours(subject, options.threads)
    rows, references = subject.rows.numpy(), subject.references.numpy()
    forward = node_times(subject.model, np.concatenate([rows, references]), options.threads)
    show(case.label, forward, node_times(compiled.model, rows, options.threads), options.nodes)


if __name__ == "__main__":
    main()
