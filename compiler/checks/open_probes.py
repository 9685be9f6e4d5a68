"""Graphs that take references as inputs: what may be compiled so, and rows with which they are checked."""

from collections.abc import Mapping

import numpy as np

from compiler.checks.probes import ROWS
from compiler.deployment import Deployment
from compiler.errors import InvalidOptionError
from compiler.explain.engine import Method
from compiler.references.reference_set import ReferenceSet
from compiler.references.request_time import WEIGHTS, references_name

Arrays = Mapping[str, np.ndarray]


def check_open(method: Method, deployment: Deployment) -> None:
    """Raise InvalidOptionError for what needs to know the references when the graph is made."""
    wrong = {
        **dict.fromkeys(method.engine.open_faults(method), True),
        "--one-shot": deployment.one_shot,
        "--storage float16": deployment.storage != "float32",
    }
    for fault, found in wrong.items():
        if found:
            raise InvalidOptionError(
                f"open references do not go with: {fault}. Compile with a reference set."
            )


def with_open_probes(probes: Arrays, references: ReferenceSet | None) -> dict[str, np.ndarray]:
    """Return the probe rows, each with references and weights of its own, the last of which is 0."""
    if references is None or not references.is_open:
        return dict(probes)
    random = np.random.default_rng(0)
    weights = random.random((ROWS, references.count)) + 0.1
    weights[:, -1] *= references.count == 1
    dtype = next(iter(references.arrays.values())).dtype
    turned = {
        references_name(name): np.stack([np.roll(array, i, axis=0) for i in range(ROWS)])
        for name, array in references.arrays.items()
    }
    return {**probes, **turned, WEIGHTS: weights.astype(dtype)}


def with_open_sample(sample: Arrays, references: ReferenceSet | None) -> dict[str, np.ndarray]:
    """Return the sample row, with the mean of the examples for its references: nobody's rows."""
    if references is None or not references.is_open:
        return dict(sample)
    k = references.count
    means = {
        references_name(name): np.repeat(array.mean(axis=0, keepdims=True)[None], k, axis=1)
        for name, array in references.arrays.items()
    }
    dtype = next(iter(references.arrays.values())).dtype
    return {**sample, **means, WEIGHTS: np.full((1, k), 1 / k, dtype)}
