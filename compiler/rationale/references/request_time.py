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


def partner_name(name: str) -> str:
    """Return the name under which a request brings the only reference of each row, for an explained input."""
    return f"{name}_compare_with"


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
    return {
        name: np.broadcast_to(array, (rows, *array.shape))
        for name, array in _in_own_types(references_spec, fed).items()
    }


def pair_references(
    references_spec: OpenReferenceInputs, references: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return one reference for each row, as the graph takes it.

    Args:
        references: the row's only reference, [rows, …] by the name of the explained input; like those of
            `repeat_references`.

    Returns:
        [rows, K, …] by the graph's own names, filled up with copies at weight 0.
    """
    rows, count = len(next(iter(references.values()))), references_spec.count
    weights = np.broadcast_to(np.arange(count) == 0, (rows, count)).astype(np.float64)
    fed = {references_spec.weights.name: weights}
    for name, spec in references_spec.inputs.items():
        fed[spec.name] = np.repeat(references[name][:, None], count, axis=1)
    return _in_own_types(references_spec, fed)


def _in_own_types(
    references_spec: OpenReferenceInputs, fed: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    types = {
        spec.name: np.dtype(_DTYPES.get(spec.datatype, spec.datatype.lower()))
        for spec in (references_spec.weights, *references_spec.inputs.values())
    }
    return {name: array.astype(types[name], copy=False) for name, array in fed.items()}


_DTYPES = {"FP32": "float32", "FP64": "float64", "BYTES": "object"}  # narrower models: float32
