"""References as inputs of the graph: their names, and rows in the graph's form.

Each row to explain brings references of its own, [N, K, …]: so requests with different references share a
batch, as rows of any other input do, and no answer depends on its neighbours. The service reads this module.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from rationale.schema.manifest import OpenReferenceInputs, TensorSpec

WEIGHTS = "reference_weights"


def references_name(name: str) -> str:
    """Return the name of the graph's input for the references of an explained input."""
    return f"{name}_references"


def names_of_inputs(tensors: Iterable[str]) -> set[str]:
    """Return every input that the graph needs for itself."""
    return {WEIGHTS, *map(references_name, tensors)}


def describe_open(inputs: Mapping[str, TensorSpec], tensors: Iterable[str]) -> OpenReferenceInputs:
    """Return the manifest's description of open references.

    Args:
        inputs: every input of the graph, by name.
        tensors: the explained inputs.
    """
    weights = inputs[WEIGHTS]
    named = {name: inputs[references_name(name)] for name in tensors}
    return OpenReferenceInputs(count=weights.shape[0], inputs=named, weights=weights)


def repeat_references(
    references_spec: OpenReferenceInputs,
    references: Mapping[str, np.ndarray],
    weights: np.ndarray | None,
    rows: int,
) -> dict[str, np.ndarray]:
    """Return one reference set for `rows` rows, as the graph takes it.

    Args:
        references: k ≤ K rows [k, …] by the name of the explained input, of its dtype and finite.
        weights: [k], not negative and not all 0; None if they are equal.

    Returns:
        [rows, K, …] by the graph's own names, filled up with copies of the last row at weight 0.
    """
    count = len(next(iter(references.values())))
    missing = references_spec.count - count
    assert 0 < count <= references_spec.count
    shares = np.ones(count) if weights is None else np.asarray(weights, np.float64)
    fed = {references_spec.weights.name: np.pad(shares / shares.sum(), (0, missing))}
    for name, spec in references_spec.inputs.items():
        fed[spec.name] = np.concatenate([references[name], *[references[name][-1:]] * missing])
    dtypes = {
        spec.name: np.dtype(_DTYPES[spec.datatype])
        for spec in (references_spec.weights, *references_spec.inputs.values())
    }
    return {
        name: np.broadcast_to(array.astype(dtypes[name], copy=False), (rows, *array.shape))
        for name, array in fed.items()
    }


_DTYPES = {"FP32": np.float32, "FP64": np.float64}  # narrower models are explained in float32
