"""Missing numbers on a walk: the walk ends behind the imputers, which replace each of them by a number.

A missing value has no difference from a reference. The number that the model uses in its place has one, and
depends on that one feature alone: its attributions are the feature's. A feature's attribution sums those of
all numbers that depend on it alone (the feature itself, an indicator that it is missing).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np
import onnx_ir as ir

from rationale.graph.batching import is_elementwise
from rationale.graph.nodes import extract, nodes_behind, values_read
from rationale.graph.runtime.session import Runner
from rationale.lowering import Lowered
from rationale.methods.leaves import OTHER_INPUT, ChosenLeaves, Leaf, is_float, keeps_batch
from rationale.rules.rule import Trait, find_rule


def behind_imputers(lowered: Lowered, chosen: ChosenLeaves) -> ChosenLeaves:
    """Move leaves behind the imputers, for the inputs whose missing values the model fills."""
    inputs = {str(v.name) for v in lowered.model.graph.inputs}
    floats = [s.name for s in chosen.leaves if s.tensor in inputs and s.name in lowered.specs]
    filled = _filled_leaves(lowered, floats)
    leaves = tuple(s for leaf in chosen.leaves for s in filled.get(leaf.tensor, (leaf,)))
    return replace(chosen, leaves=leaves)


def _filled_leaves(lowered: Lowered, names: Sequence[str]) -> dict[str, tuple[Leaf, ...]]:
    """Return the leaves behind the imputers, for each input whose missing values all become numbers."""
    elements, first = {}, 1
    for name in names:
        shape = lowered.specs[name][0]
        elements[name] = np.arange(first, first + prod(shape)).reshape(shape)
        first += prod(shape)
    ends = _single_source_ends(lowered, elements)
    if not ends or not all(is_float(lowered, end) and keeps_batch(lowered, str(end.name)) for end in ends):
        return {}
    empty = _still_missing(lowered, elements, ends)
    filled = [name for name in names if not np.isin(elements[name], empty).any()]
    if len(filled) < len(names):
        return _filled_leaves(lowered, filled)
    return {
        name: tuple(_leaves(name, sources, ends)) or (Leaf(name, name),) for name, sources in elements.items()
    }


def _single_source_ends(lowered: Lowered, elements: Mapping[str, np.ndarray]) -> dict[ir.Value, np.ndarray]:
    """Return the last tensors whose elements each depend on one element of an input, with these elements.

    Args:
        elements: a number above 0 for each element of the inputs.
    """
    sources = dict(elements)
    ends: dict[ir.Value, np.ndarray] = {}
    for node in lowered.model.graph:
        read = {v: sources[str(v.name)] for v in values_read(node) if v.name in sources}
        results = _result_sources(lowered, node, sources) if read else {}
        sources.update(results)
        if not results:
            ends.update(read)
    return ends


def _result_sources(
    lowered: Lowered, node: ir.Node, sources: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the source element of each element of a node's results; empty if one has several sources."""
    varying = list(dict.fromkeys(v for v in values_read(node) if not v.is_initializer()))
    names = [str(v.name) for v in node.outputs]
    if any(v.name not in sources for v in varying) or any(name not in lowered.specs for name in names):
        return {}
    rule = find_rule(node.op_type, node.domain)
    traits = rule.traits if rule else frozenset()
    if Trait.ELEMENTWISE in traits or is_elementwise(node.op_type, node.domain):
        shape = lowered.specs[names[0]][0]
        first, *other_arrays = (np.broadcast_to(sources[str(v.name)], shape) for v in varying)
        return {names[0]: first} if all(np.array_equal(first, other) for other in other_arrays) else {}
    constants = [v for v in node.inputs if v is not None and v.is_initializer()]
    if Trait.MOVING not in traits or any(is_float(lowered, v) for v in constants):
        return {}
    model = extract(lowered.model, [node], varying, list(node.outputs))
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.type = ir.TensorType(ir.DataType.INT64)
    moved = Runner(model, optimise=False)({str(v.name): sources[str(v.name)] for v in varying})
    return moved if all((array > 0).all() for array in moved.values()) else {}  # 0 is padding


def _still_missing(
    lowered: Lowered, elements: Mapping[str, np.ndarray], ends: Mapping[ir.Value, np.ndarray]
) -> np.ndarray:
    """Return the input elements that, if missing, do not become numbers everywhere in `ends`."""
    graph = lowered.model.graph
    inputs = [v for v in graph.inputs if v.name in elements]
    model = extract(lowered.model, nodes_behind(graph, ends), inputs, list(ends))
    gaps = {
        name: np.full(sources.shape, np.nan, lowered.specs[name][1].numpy())
        for name, sources in elements.items()
    }
    answers = Runner(model, optimise=False)(gaps)
    return np.concatenate([sources[~np.isfinite(answers[str(end.name)])] for end, sources in ends.items()])


def _leaves(name: str, elements: np.ndarray, ends: Mapping[ir.Value, np.ndarray]) -> Iterator[Leaf]:
    """Yield the leaves of an input: the tensors with numbers that depend on its elements."""
    for end, sources in ends.items():
        is_of_input = np.isin(sources, elements)
        if is_of_input.any():
            indices = np.where(is_of_input, sources - elements.flat[0], OTHER_INPUT)
            yield Leaf(str(end.name), name, indices, elements.shape, is_filled=True)
