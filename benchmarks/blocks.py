"""What it gives that each core goes on with what it has computed: ONNX Runtime's own blocks, and large ones.

    python -m benchmarks.blocks efficientnetb0 [--rounds 40] [--threads 2]

Explains a network of `rationale bench` and runs its forward pass over N·(1 + K) rows, each in two sessions
that differ in `session.dynamic_block_base` alone, in turn. Where a host moves its guest's cores, or the
system its threads, between core complexes, the upper quartile tells what the way between them costs.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from benchmarks.arguments import case_of, parser_of, positive
from compiler.bench.device import session_of
from compiler.bench.subjects import compile_ours, make_subject
from compiler.bench.timing import System, alternate, quartiles
from compiler.machine import LARGE_BLOCKS

DEFAULT = (LARGE_BLOCKS[0], "0")


def show(label: str, times: dict[str, list[list[float]]]) -> None:
    """Prints quartiles over the rounds, in milliseconds."""
    print(f"{label}\n{'':28}{'fastest':>10}{'quarter':>10}{'median':>10}{'3/4':>10}{'slowest':>10}  ms")
    for name, rounds in times.items():
        each = [1e3 * median(calls) for calls in rounds]
        figures = (min(each), *quartiles(each), max(each))
        print(f"{name:28}" + "".join(f"{f:10.4g}" for f in figures))


def main(given: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=positive, default=40)
    arguments = parser.parse_args(given)
    case = case_of(arguments)
    subject = make_subject(case, 0)
    rows, references = subject.rows.numpy(), subject.references.numpy()
    graphs = {
        "explanation": (compile_ours(subject, arguments.threads).model, rows),
        "forward pass": (subject.model, np.concatenate([rows, references])),
    }

    def runs(model: Any, x: np.ndarray, blocks: tuple[str, str]) -> Callable[[], Any]:
        session = session_of(model.SerializeToString(), arguments.threads, blocks)
        return lambda: session.run(None, {session.get_inputs()[0].name: x})

    systems = [
        System(f"{name}, {how}", runs(model, x, blocks))
        for name, (model, x) in graphs.items()
        for how, blocks in {"equal blocks": DEFAULT, "large blocks": LARGE_BLOCKS}.items()
    ]
    show(case.label, alternate(systems, arguments.rounds))


if __name__ == "__main__":
    main()
