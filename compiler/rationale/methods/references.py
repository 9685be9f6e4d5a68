"""References of inner tensors and token ids, which the model computes from rows of its inputs."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from rationale.errors import InvalidModelError, InvalidReferencesError
from rationale.graph.nodes import extract, nodes_behind
from rationale.graph.runtime.session import Runner
from rationale.lowering import Lowered
from rationale.methods.engine import References, Selection
from rationale.methods.leaves import Leaf
from rationale.methods.target import Target, reach_backward
from rationale.references.reference_set import (
    Baseline,
    OpenReferences,
    ReferenceSet,
    as_array,
    as_column,
    check_count,
    check_rows,
    prepare,
    unnamed_error,
    whole_number_error,
)
from rationale.schema.manifest import is_float


@dataclass(frozen=True)
class PreparedReferences:
    """The references of a walk.

    Attributes:
        set: references of the tensors at which the walk ends; None for a method without references.
        input_rows: the given rows of model inputs, by name.
    """

    set: ReferenceSet | None = None
    input_rows: Mapping[str, np.ndarray] = field(default_factory=dict)


def shapes_of(references: References | None) -> dict[str | None, tuple[int, ...]]:
    """Return the references' shapes by input; under None if there is only one input.

    References without a shape are left out; they cause an error later.
    """
    if isinstance(references, OpenReferences):
        references = references.examples
    if references is None or isinstance(references, Baseline):
        return {}
    arrays = references if isinstance(references, Mapping) else {None: references}
    shapes: dict[str | None, tuple[int, ...]] = {}
    for name, array in arrays.items():
        with suppress(ValueError):
            shapes[name] = np.shape(array)
    return shapes


def prepare_references(selection: Selection[Any, Any]) -> PreparedReferences:
    """Prepare references for each tensor at which the walk ends: the third stage of a compile.

    Raises:
        InvalidReferencesError: if names, shapes or ids do not fit the model.
    """
    lowered, target, method = selection.lowered, selection.target, selection.method
    if method.reference_set is None:
        return PreparedReferences()
    leaf_references, input_rows = references_of_leaves(lowered, target, method.reference_set)
    _demand_read(lowered, target, leaf_references)
    dtypes = {name: lowered.narrow.edges.get(name, lowered.specs[name][1]) for name in target.tensors}
    rows = {name: (lowered.specs[name][0], dtype.numpy()) for name, dtype in dtypes.items()}
    missing = method.engine.takes_missing
    is_drawn = isinstance(leaf_references, OpenReferences) and leaf_references.examples is None
    splits = selection.choice.splits(lowered, target) if is_drawn else {}
    weights = method.reference_weights
    return PreparedReferences(
        prepare(leaf_references, weights, rows, missing=missing, splits=splits), input_rows
    )


def _demand_read(lowered: Lowered, target: Target, references: References) -> None:
    """Raise InvalidReferencesError if the output does not depend on an input with references."""
    if not isinstance(references, Mapping):
        return
    read = reach_backward(lowered.model.graph, target.output, ())
    input_names = [str(v.name) for v in lowered.model.graph.inputs]
    unread = [
        name for name in input_names if name in references and name not in read and name not in target.tensors
    ]
    if unread:
        raise InvalidReferencesError(
            f"the explained output {target.output!r} does not depend on {unread}: leave their references "
            "out, or explain an output that depends on them (--output)."
        )


def references_of_leaves(
    lowered: Lowered, target: Target, references: References
) -> tuple[References, dict[str, np.ndarray]]:
    """Return references for each tensor at which the walk ends, and the given rows of model inputs.

    Args:
        references: for an inner tensor its own rows, or rows of the inputs from which it is computed; for
            token ids a sequence [K, *shape of the input] or an embedding.

    Raises:
        InvalidReferencesError: if names, shapes or ids do not fit the model.
    """
    input_names = {str(v.name) for v in lowered.model.graph.inputs}
    if isinstance(references, Baseline) or input_names.issuperset(target.tensors):
        return references, {}
    if isinstance(references, OpenReferences):
        inner = sorted(set(target.tensors) - input_names)
        raise InvalidReferencesError(
            f"references can be an input of the graph only if the model's own float inputs are explained, "
            f"not {inner}: compile with a reference set."
        )
    arrays = _arrays_by_name(lowered, target, references)
    rows_of_tensor: dict[str, np.ndarray] = {}
    pending: list[Leaf] = []
    for leaf in target.leaves:
        if leaf.name in arrays and _fits(lowered, leaf, arrays):
            rows_of_tensor[leaf.tensor] = arrays[leaf.name]
        else:
            pending.append(leaf)
    direct = {s.name for s in target.leaves if s.tensor in rows_of_tensor and s.name != s.tensor}
    input_rows = {
        name: _rows_of(lowered, name, a) for name, a in arrays.items() if name in input_names - direct
    }
    nodes, read = _nodes_and_inputs_behind(lowered.model.graph, [s.tensor for s in pending])
    needed = {str(v.name) for v in read}
    surplus = sorted(set(arrays) - {s.name for s in target.leaves} - needed)
    if surplus and not (needed <= set(arrays) and _are_integers(lowered, surplus)):
        raise InvalidReferencesError(
            f"references are given for {surplus}, but {list(target.inputs)} are explained: give rows of "
            f"these, or of the inputs that they are computed from ({[str(v.name) for v in read]})."
        )
    if input_rows:
        check_count(input_rows)
    if pending:
        rows_of_tensor |= _compute_rows(lowered, [s.tensor for s in pending], nodes, read, input_rows)
    return {s.tensor: rows_of_tensor[s.tensor] for s in target.leaves}, input_rows


def _are_integers(lowered: Lowered, names: Sequence[str]) -> bool:
    """Tell whether the inputs need no references: a mask beside ids, for instance, is each row's own."""
    return all(not lowered.specs[name][1].is_floating_point() for name in names)


def _arrays_by_name(lowered: Lowered, target: Target, references: Any) -> dict[str, np.ndarray]:
    input_names = [str(v.name) for v in lowered.model.graph.inputs]
    if isinstance(references, Mapping):
        unknown = sorted(set(map(str, references)) - {*input_names, *target.inputs})
        if unknown:
            raise InvalidReferencesError(
                f"references are given for {unknown}; {list(target.inputs)} are explained, and the model's "
                f"inputs are {input_names}."
            )
        return {str(name): as_array(str(name), a) for name, a in references.items()}
    if len(target.inputs) != 1:
        raise unnamed_error(target.inputs)
    (name,), array = target.inputs, as_array(target.inputs[0], references)
    if name not in input_names and len(input_names) == 1 and not _is_row_of(lowered, name, array):
        name = input_names[0]  # rows of the model's input, from which the inner tensor is computed
    return {name: array}


def _is_row_of(lowered: Lowered, tensor: str, array: np.ndarray) -> bool:
    return array.shape[1:] == lowered.specs[tensor][0][1:]


def _fits(lowered: Lowered, leaf: Leaf, arrays: Mapping[str, np.ndarray]) -> bool:
    """Tell whether the array of that name holds the tensor's own rows; for ids, embeddings."""
    if leaf.is_filled:  # only rows of the input are allowed
        return False
    if leaf.indices is None:
        return True
    array = arrays[leaf.name]
    return is_float(array.dtype) and _is_row_of(lowered, leaf.tensor, array)


def _rows_of(lowered: Lowered, name: str, array: np.ndarray) -> np.ndarray:
    """Return rows of an input in its dtype."""
    row, dtype = lowered.specs[name][0], lowered.specs[name][1].numpy()
    array = as_column(array, row)
    check_rows(name, array, row, dtype)
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    if dtype.kind in "iub" and not np.array_equal(cast, array):
        raise whole_number_error(name, dtype)
    return np.asarray(cast)


def _compute_rows(
    lowered: Lowered,
    tensors: Sequence[str],
    nodes: Sequence[ir.Node],
    read: Sequence[ir.Value],
    input_rows: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Compute [K, …] of each tensor by `nodes` from the inputs `read`.

    The model runs row by row, since it may take only one row.
    """
    missing = [str(v.name) for v in read if v.name not in input_rows]
    if missing:
        raise InvalidReferencesError(
            f"references of {list(tensors)} are computed from {[v.name for v in read]}: give rows for each "
            f"({missing} missing), or rows of the tensors themselves."
        )
    names = [str(v.name) for v in read]
    values = {str(v.name): v for node in nodes for v in node.outputs}
    run = Runner(
        extract(lowered.model, nodes, read, [values[t] for t in tensors]), optimise=False, users_model=True
    )
    rows = []
    for i in range(len(input_rows[names[0]])):
        try:
            rows.append(run({name: input_rows[name][i : i + 1] for name in names}))
        except InvalidModelError as error:
            raise InvalidReferencesError(
                f"references: the model cannot take row {i} of {names} (an id outside of its table?): {error}"
            ) from error
    return {t: np.concatenate([row[t] for row in rows]) for t in tensors}


def _nodes_and_inputs_behind(graph: ir.Graph, tensors: Sequence[str]) -> tuple[list[ir.Node], list[ir.Value]]:
    """Return the nodes that compute some tensors, in order, and the graph's inputs that they read."""
    values = [v for v in (*graph.inputs, *(v for n in graph for v in n.outputs)) if v.name in tensors]
    nodes = nodes_behind(graph, values)
    needed = {*values, *(v for n in nodes for v in n.inputs)}
    return nodes, [v for v in graph.inputs if v in needed]
