"""The check of a one-shot graph: answers depend neither on the gate nor on other rows that ask."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rationale.artifact.checks.measure import ROWS_LIMIT, relative_error
from rationale.errors import CheckFailedError
from rationale.graph.runtime.session import Run, Runner, SerializedGraph, with_gate
from rationale.methods.outputs import GAP
from rationale.schema.manifest import EXPLAINED


def check_gate(
    model: SerializedGraph, probes: Mapping[str, np.ndarray], originals: Sequence[str], run: Run | None = None
) -> None:
    """Run a one-shot graph with the gate open, closed, and open for some rows.

    Args:
        probes: [rows, …] for each input but the gate, two rows or more.
        originals: the outputs of the model itself, which the gate leaves alone.
        run: the graph in another runtime than ONNX Runtime.

    Raises:
        CheckFailedError: if an answer wrongly depends on the gate, or on which other rows ask.
    """
    run = run or Runner(model)
    rows = max(len(p) for p in probes.values() if p.ndim)
    explained = run(with_gate(probes))
    for gate in (np.zeros(rows, bool), np.arange(rows) % 2 == 1):
        answer = run(with_gate(probes, gate))
        if not np.array_equal(answer.pop(EXPLAINED), gate[:, None]):
            raise _failed(EXPLAINED, "does not say which rows were explained")
        for name, array in answer.items():
            if name in originals:
                _demand_equal(name, array, explained[name], explained[name])
                continue
            if np.any(array[~gate]):
                raise _failed(name, "is not zero for rows that are not explained")
            if name != GAP:  # it is all rounding, and its terms are compared
                _demand_equal(name, array[gate], explained[name][gate], explained[name])


def _demand_equal(name: str, a: Any, b: Any, scale: Any) -> None:
    if not isinstance(b, np.ndarray):
        return
    error = relative_error(a, b, scale if scale.dtype.kind == "f" else None)
    if not error <= ROWS_LIMIT:
        raise _failed(name, f"depends on which rows are explained, by {error:.1e} of its largest value")


def _failed(name: str, fault: str) -> CheckFailedError:
    return CheckFailedError(
        f"{name!r} of the one-shot graph {fault}. Compile without --one-shot, and please report the model."
    )
