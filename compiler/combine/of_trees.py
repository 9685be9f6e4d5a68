"""The combined graph of a method that needs no walk: a tree ensemble's attributions, from tables."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from compiler.combine.environment import Environment, MovedEnvironment
from compiler.combine.outputs import Seed, attributions_name, emit_values, interactions_name, total_of
from compiler.graph.axis_means import along
from compiler.graph.fold import extract
from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.graph.traverse import nodes_behind
from compiler.lowering import Lowered
from compiler.manifest import ends_of
from compiler.methods.base import OfTrees
from compiler.references.reference_set import ReferenceSet
from compiler.runtime.session import Runner
from compiler.selection.path import Path
from compiler.trees.covers import expected_scores


def with_values(lowered: Lowered, path: Path, references: ReferenceSet | None) -> ReferenceSet | None:
    """The references with what the trees read of them, and the explained output there, by their names."""
    if references is None:
        return None
    return replace(references, arrays={**references.arrays, **_values_at(lowered, path, references.arrays)})


def _values_at(lowered: Lowered, path: Path, rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """[K, …] of what the trees read and of the explained output, as the model itself has them."""
    assert path.trees is not None
    graph, asked = lowered.model.graph, {path.trees.reads, path.output}
    values = {str(v.name): v for v in (*graph.inputs, *(v for node in graph for v in node.outputs))}
    known, wanted = [values[t] for t in path.tensors], [values[name] for name in asked - set(path.tensors)]
    nodes = nodes_behind(graph, wanted, known)
    run = Runner(extract(lowered.model, nodes, known, wanted), optimise=False, given=True)
    return {**{t: rows[t] for t in path.tensors}, **run(rows)}


def at_references(at_x: Environment, path: Path, references: ReferenceSet | None) -> MovedEnvironment:
    """The explained output at the references; no other value is asked for there.

    Without references, what the trees' covers expect of it.

    Args:
        references: `with_values`.

    Raises:
        InvalidReferencesError: there are no covers either.
    """
    rows = _expected(at_x.lowered, path) if references is None else references.arrays[path.output]
    return MovedEnvironment(at_x, "reference", {path.output: along(at_x.op, rows, "K")}, path.dependent)


def _expected(lowered: Lowered, path: Path) -> np.ndarray:
    """[1, …]: the leaves' mean, and what the model adds to its leaves at any row."""
    assert path.trees is not None
    due = expected_scores(path.trees.ensemble)
    specs = {t: lowered.specs[t] for t in path.tensors}
    there = _values_at(lowered, path, {t: np.zeros(row, dtype.numpy()) for t, (row, dtype) in specs.items()})
    answered = there[path.output]
    off = due - path.trees.ensemble.scores(there[path.trees.reads].reshape(1, -1))
    return np.asarray(answered + off.reshape(answered.shape), answered.dtype)


def emit_of_trees(
    at_x: Environment, path: Path, method: OfTrees, seed: Seed, references: ReferenceSet | None
) -> None:
    """Adds the attributions and what they are compared with to the graph's outputs.

    Args:
        references: `with_values`.
    """
    assert path.trees is not None
    op, trees = at_x.op, path.trees
    op.scope = "trees"
    read = references and replace(references, arrays={trees.reads: references.arrays[trees.reads]})
    met, owners = np.unique(trees.owners, return_inverse=True)  # a player of no feature has no column
    asked = _asked(path, trees.ensemble.columns)
    found = method.attributions(op, trees.ensemble, asked, at_x.at(trees.reads), read, owners)
    found = op.reshape(found, (1, asked.shape[1], len(met)))
    op.scope = "attributions"
    found = _of_target(at_x, path, seed, found)
    outputs, totals, first = [], list[Tensor](), 0
    for leaf in path.leaves:
        row = at_x.at(leaf.tensor).shape[1:]
        own = _of_leaf(op, found, met, first, row)
        outputs.append(op.attributions_output(own, attributions_name(leaf.name)))
        totals.append(total_of(op, outputs[-1], own))
        first += prod(row)
    op.graph.outputs.extend([*outputs, *emit_values(op, method, seed, totals)])


def _of_leaf(op: Ops, found: Tensor, met: np.ndarray, first: int, row: tuple[int, ...]) -> Tensor:
    """The attributions [1, *row] of the players from `first` on, where `found` has those that were met."""
    count = prod(row)
    place = np.searchsorted(met, np.arange(first, first + count))
    there = np.isin(np.arange(first, first + count), met)
    if not there.any():
        return op.row_constant(np.zeros((1, *row), found.dtype.numpy()))
    if there.all() and count == len(met):
        return op.reshape(found, (1, *row))
    own = op.Gather(found, np.where(there, place, 0), axis=1)
    if not there.all():
        own = op.Mul(own, op.row_constant(there[None].astype(found.dtype.numpy())))
    return op.reshape(own, (1, *row))


def _asked(path: Path, columns: int) -> np.ndarray:
    """[columns, targets] how much of each score a target is; all of them where the row decides."""
    if path.targets == "predicted":
        return np.eye(columns)
    asked = np.zeros((columns, len(path.targets)))
    for i, target in enumerate(path.targets):
        first, against = ends_of(target) if isinstance(target, str) else (target, None)
        asked[first, i] += 1
        if against is not None:
            asked[against, i] -= 1
    return asked


def _of_target(at_x: Environment, path: Path, seed: Seed, found: Tensor) -> Tensor:
    """Attributions [1, targets, …] along the axis T, or those of the predicted class."""
    op = at_x.op
    if path.targets == "predicted":
        chosen = op.reshape(seed.multiplier, (1, found.shape[1], *(1 for _ in found.shape[2:])))
        return op.ReduceSum(op.Mul(found, chosen), [1], keepdims=0)
    if found.shape[1] == 1:
        return op.reshape(found, (1, *found.shape[2:]))
    return op.along(op.vary(found, frozenset("N")), "T")
