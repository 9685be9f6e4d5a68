"""The combined graph of a method that needs no walk: a tree ensemble's attributions, from tables."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from compiler.combine.environment import Environment, MovedEnvironment
from compiler.combine.outputs import Seed, attributions_name, emit_values, interactions_name, total_of
from compiler.combine.players import outputs_of
from compiler.graph.fold import extract
from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.graph.traverse import nodes_behind
from compiler.lowering import Lowered
from compiler.manifest import ends_of
from compiler.methods.base import Margins, OfTrees
from compiler.references.reference_set import ReferenceSet
from compiler.runtime.session import Runner
from compiler.selection.path import Path
from compiler.trees.covers import expected_scores


def with_values(lowered: Lowered, path: Path, references: ReferenceSet | None) -> ReferenceSet | None:
    """The references with what the trees read of them, the explained output there, and the margin where that
    is rescaled, by their names.
    """
    if references is None or path.trees is None:
        return references
    asked = {path.trees.reads, path.output, path.trees.margin or path.output}
    return replace(references, arrays=_answers(lowered, references.arrays, asked))


def _answers(lowered: Lowered, given: Mapping[str, np.ndarray], asked: set[str]) -> dict[str, np.ndarray]:
    """What the model itself makes of rows of some of its tensors, beside these."""
    graph = lowered.model.graph
    values = {str(v.name): v for v in (*graph.inputs, *(v for node in graph for v in node.outputs))}
    known, wanted = [values[name] for name in given], [values[name] for name in asked - set(given)]
    nodes = nodes_behind(graph, wanted, known)
    run = Runner(extract(lowered.model, nodes, known, wanted), optimise=False, given=True)
    return {**given, **run(given)}


def at_references(at_x: Environment, path: Path, references: ReferenceSet | None) -> MovedEnvironment:
    """The mean of the explained output over the references; no other value is asked for there.

    Without references, what the trees' covers expect of it. The tables are made in float64, and so is this:
    in float32, a mean of thousands of rows is off by more than all the rest.

    Args:
        references: `with_values`.

    Raises:
        InvalidReferencesError: there are no covers either.
    """
    if references is None:
        base = _expected(at_x.lowered, path)
    else:
        rows = references.arrays[path.output]
        base = np.average(rows.astype(np.float64), 0, references.weights)[None]
    return MovedEnvironment(at_x, "reference", {path.output: at_x.op.row_constant(base)}, path.dependent)


def _expected(lowered: Lowered, path: Path) -> np.ndarray:
    """[1, …]: the leaves' mean, and what the model adds to its leaves at any row."""
    assert path.trees is not None
    due = expected_scores(path.trees.ensemble)
    row, dtype = lowered.specs[path.trees.reads]
    answered = _answers(lowered, {path.trees.reads: np.zeros(row, dtype.numpy())}, {path.output})[path.output]
    off = due - path.trees.ensemble.scores(np.zeros((1, prod(row[1:]))))
    return np.asarray(answered.astype(np.float64) + off.reshape(answered.shape))


def emit_of_trees(
    at_x: Environment, path: Path, method: OfTrees, seed: Seed, references: ReferenceSet | None
) -> None:
    """Adds the attributions and what they are compared with to the graph's outputs.

    Args:
        references: `with_values`.
    """
    assert path.trees is not None
    assert path.game is not None
    op, trees = at_x.op, path.trees
    assert trees.owners is not None
    op.scope = "trees"
    read = references and replace(references, arrays={trees.reads: references.arrays[trees.reads]})
    met, owners = np.unique(trees.owners, return_inverse=True)  # a player of no feature has no column
    asked = _asked(path, trees.ensemble.columns)
    about = trees.ensemble, asked, at_x.at(trees.reads), read
    found = method.attributions(op, *about, owners, _margins(at_x, path, references))
    between = method.interaction_values(op, *about, found, owners) if method.interactions else None
    op.scope = "attributions"
    found = _of_target(at_x, path, seed, op.reshape(found, (1, asked.shape[1], len(met))))
    outputs, totals = [], list[Tensor]()
    answered = outputs_of(path, path.game.of)
    for name, players in answered.items():
        own = op.reshape(_of(op, found, met, players.reshape(-1), 1), (1, *players.shape))
        outputs.append(op.attributions_output(own, attributions_name(name)))
        totals.append(total_of(op, outputs[-1], own))
    if between is not None:
        ((name, players),) = answered.items()
        pairs = _of_target(at_x, path, seed, op.reshape(between, (1, asked.shape[1], len(met), len(met))))
        for axis in (1, 2):
            pairs = _of(op, pairs, met, players.reshape(-1), axis)
        outputs.append(op.attributions_output(pairs, interactions_name(name)))
    op.graph.outputs.extend([*outputs, *emit_values(op, method, seed, totals)])


def _of(op: Ops, found: Tensor, met: np.ndarray, players: np.ndarray, axis: int) -> Tensor:
    """The numbers of some players along an axis on which `found` has those that were met; 0 of others."""
    if np.array_equal(players, met):
        return found
    place, there = np.searchsorted(met, players), np.isin(players, met)
    shape = [len(players) if i == axis else n for i, n in enumerate(found.shape)]
    if not there.any():
        return op.row_constant(np.zeros(shape, found.dtype.numpy()))
    own = op.Gather(found, np.where(there, place, 0), axis=axis)
    mask = there.reshape([-1 if i == axis else 1 for i in range(len(shape))]).astype(found.dtype.numpy())
    return own if there.all() else op.Mul(own, op.row_constant(mask))


def _margins(at_x: Environment, path: Path, references: ReferenceSet | None) -> Margins | None:
    if path.trees is None or path.trees.margin is None or references is None:
        return None
    name, columns = path.trees.margin, path.trees.ensemble.columns
    known = references.arrays[name].reshape(-1, columns)
    return Margins(at_x.op.reshape(at_x.at(name), (1, columns)), known)


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
