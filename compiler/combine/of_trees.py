"""The combined graph of a method that needs no walk: a tree ensemble's attributions, from tables."""

from dataclasses import replace
from math import prod

import numpy as np

from compiler.combine.environment import Environment, MovedEnvironment
from compiler.combine.outputs import Seed, emit_values, names_of_attributions, total_of
from compiler.graph.axis_means import along
from compiler.graph.fold import extract
from compiler.graph.tensor import Tensor
from compiler.graph.traverse import nodes_behind
from compiler.lowering import Lowered
from compiler.manifest import ends_of
from compiler.methods.base import OfTrees
from compiler.references.reference_set import ReferenceSet
from compiler.runtime.session import Runner
from compiler.selection.path import Path
from compiler.trees.covers import expected_scores


def output_at(lowered: Lowered, path: Path, rows: np.ndarray) -> np.ndarray:
    """[K, …] the explained output at rows of what is explained, as the model itself answers it."""
    graph, (leaf,) = lowered.model.graph, path.tensors
    values = {str(v.name): v for v in (*graph.inputs, *(v for node in graph for v in node.outputs))}
    nodes = nodes_behind(graph, [values[path.output]], [values[leaf]])
    part = extract(lowered.model, nodes, [values[leaf]], [values[path.output]])
    run = Runner(part, optimise=False, given=True)
    return np.asarray(run({leaf: rows})[path.output])


def at_references(at_x: Environment, path: Path, references: ReferenceSet | None) -> MovedEnvironment:
    """The explained output at the references; no other value is asked for there.

    Without references, what the trees' covers expect of it.

    Raises:
        InvalidReferencesError: there are no covers either.
    """
    if references is None:
        rows = _expected(at_x.lowered, path)
    else:
        rows = output_at(at_x.lowered, path, references.arrays[path.tensors[0]])
    held = {path.output: along(at_x.op, rows, "K")}
    return MovedEnvironment(at_x, "reference", held, path.dependent)


def _expected(lowered: Lowered, path: Path) -> np.ndarray:
    """[1, …]: the leaves' mean, and what the model adds to its leaves at any row."""
    assert path.trees is not None
    ensemble, (row, dtype) = path.trees.ensemble, lowered.specs[path.tensors[0]]
    due = expected_scores(ensemble)
    answered = output_at(lowered, path, np.zeros(row, dtype.numpy()))
    at_zero = ensemble.scores(np.zeros((1, prod(row[1:]))))
    return np.asarray(answered + (due - at_zero).reshape(answered.shape), answered.dtype)


def emit_of_trees(
    at_x: Environment, path: Path, method: OfTrees, seed: Seed, references: ReferenceSet | None
) -> None:
    """Adds the attributions and what they are compared with to the graph's outputs."""
    assert path.trees is not None
    op, (leaf,) = at_x.op, path.leaves
    op.scope = "trees"
    x, columns = at_x.at(leaf.tensor), path.trees.ensemble.columns
    asked = _asked(path, columns)
    players, (name,) = path.players, names_of_attributions(path)
    owners, row = (players.of[leaf.name], (len(players.names),)) if players else (None, x.shape[1:])
    found = method.attributions(op, path.trees.ensemble, asked, at_x.at(path.trees.reads), references, owners)
    found = op.reshape(found, (1, asked.shape[1], *row))
    op.scope = "attributions"
    output = op.attributions_output(_of_target(at_x, path, seed, found), name)
    values = emit_values(
        op, method, seed, [total_of(op, output, replace(x, shape=(1, *row), dtype=found.dtype))]
    )
    op.graph.outputs.extend([output, *values])


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
