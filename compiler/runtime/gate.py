"""A one-shot entry's own tensors: the gate that is fed, and what it answers.

`explain` BOOL [N, 1] says which rows to explain. `explained` BOOL [N, 1] says which rows are: the
explanation of the others is zeros.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx

from compiler.manifest import EXPLAIN

Arrays = Mapping[str, np.ndarray]
Run = Callable[..., dict[str, np.ndarray]]


def asking(inputs: Arrays, answer: bool | np.ndarray = True) -> dict[str, np.ndarray]:
    """Return `inputs` with the gate beside them: `answer` for every row, or [N] answers."""
    rows = max((len(a) for a in inputs.values() if a.ndim), default=1)
    return {**inputs, EXPLAIN: np.broadcast_to(np.reshape(answer, (-1, 1)), (rows, 1)).copy()}


def explaining(run: Run, model: onnx.ModelProto) -> Run:
    """`run` of a combined model; of a one-shot one, for every row. What feeds the gate itself may do so."""
    if EXPLAIN not in {v.name for v in model.graph.input}:
        return run

    def run_explaining(inputs: Arrays, outputs: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        return run(inputs if EXPLAIN in inputs else asking(inputs), outputs)

    return run_explaining


def count_nodes(graph: onnx.GraphProto) -> int:
    """Those of subgraphs too."""
    inner = (g for node in graph.node for a in node.attribute for g in (a.g, *a.graphs))
    return len(graph.node) + sum(map(count_nodes, inner))
