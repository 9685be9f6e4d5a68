"""The graph of a tree ensemble's attributions, which it looks up in tables."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from rationale.graph.nodes import extract, nodes_behind
from rationale.graph.ops import Ops
from rationale.graph.runtime.session import Runner
from rationale.graph.tensor import Tensor
from rationale.lowering import Lowered
from rationale.methods.engine import Canvas, Results, Selection
from rationale.methods.environment import Environment
from rationale.methods.outputs import INTERACTIONS, Seed, players_by_output, seed_of
from rationale.methods.target import Target
from rationale.methods.trees.ensembles import Trees
from rationale.methods.trees.method import Margins, TreeMethod
from rationale.references.reference_set import ReferenceSet
from rationale.trees.covers import expected_scores


def emit(canvas: Canvas[TreeMethod, Trees]) -> None:
    """Look up the attributions, and add the outputs to the graph's."""
    op, selection = canvas.op, canvas.selection
    target, trees, method = selection.target, selection.part, selection.method
    at_x = canvas.at_x()
    at_x.lift_outputs()
    references = _with_values(selection, canvas.references)
    op.scope = "seed"
    y = at_x.at(target.output)
    base = op.row_constant(_base_value(selection, references).reshape(1, -1))
    seed = seed_of(op, target, y, base, selection.lowered.narrow.edges.get(target.output))
    op.scope = "trees"
    read = references and replace(references, arrays={trees.reads: references.arrays[trees.reads]})
    used, player_of = np.unique(trees.player_of, return_inverse=True)  # players without features: no column
    columns = trees.ensemble.columns
    matrix = np.eye(columns) if target.elements == "predicted" else target.matrix(columns)
    about = trees.ensemble, matrix, at_x.at(trees.reads), read
    found = method.attributions(op, *about, player_of, _margins(at_x, trees, references))
    between = method.interaction_values(op, *about, found, player_of) if method.interactions else None
    op.scope = "attributions"
    found = _of_target(op, target, seed, op.reshape(found, (1, matrix.shape[1], len(used))))
    players = players_by_output(target, trees.game.of)

    def interactions() -> dict[str, Tensor]:
        assert between is not None
        ((name, own),) = players.items()
        pairs = op.reshape(between, (1, matrix.shape[1], len(used), len(used)))
        pairs = _of_target(op, target, seed, pairs)
        for axis in (1, 2):
            pairs = _of(op, pairs, used, own.reshape(-1), axis)
        return {name: pairs}

    attributions = (
        (name, op.reshape(_of(op, found, used, own.reshape(-1), 1), (1, *own.shape)))
        for name, own in players.items()
    )
    canvas.emit_outputs(Results(op=op, seed=seed), attributions, {INTERACTIONS: interactions})


def _with_values(
    selection: Selection[TreeMethod, Trees], references: ReferenceSet | None
) -> ReferenceSet | None:
    """Return the references with the tensors that the model computes from them, by name.

    These are the trees' features, the explained output, and the margin if attributions are rescaled.
    """
    if references is None:
        return None
    trees, output = selection.part, selection.target.output
    wanted = {trees.reads, output, trees.margin or output}
    return replace(references, arrays=_answers(selection.lowered, references.arrays, wanted))


def _answers(lowered: Lowered, given: Mapping[str, np.ndarray], wanted: set[str]) -> dict[str, np.ndarray]:
    """Return the given rows together with other tensors that the model computes from them."""
    graph = lowered.model.graph
    values = {str(v.name): v for v in (*graph.inputs, *(v for node in graph for v in node.outputs))}
    known, missing = [values[name] for name in given], [values[name] for name in wanted - set(given)]
    nodes = nodes_behind(graph, missing, known)
    run = Runner(extract(lowered.model, nodes, known, missing), optimise=False, given=True)
    return {**given, **run(given)}


def _base_value(selection: Selection[TreeMethod, Trees], references: ReferenceSet | None) -> np.ndarray:
    """Return [1, …], the mean of the explained output over the references.

    Without references, return its expectation by the trees' covers: the mean over the leaves, plus the
    constant that the model adds to its leaves. It is computed in float64, like the tables: in
    float32, a mean over thousands of rows has a larger error than all the rest.

    Raises:
        InvalidReferencesError: if there are no covers either.
    """
    trees, output = selection.part, selection.target.output
    if references is not None:
        rows = references.arrays[output]
        return np.asarray(np.average(rows.astype(np.float64), 0, references.weights)[None])
    due = expected_scores(trees.ensemble)
    row, dtype = selection.lowered.specs[trees.reads]
    nothing = {trees.reads: np.zeros(row, dtype.numpy())}
    answered = _answers(selection.lowered, nothing, {output})[output]
    off = due - trees.ensemble.scores(np.zeros((1, prod(row[1:]))))
    return np.asarray(answered.astype(np.float64) + off.reshape(answered.shape))


def _of(op: Ops, found: Tensor, used: np.ndarray, players: np.ndarray, axis: int) -> Tensor:
    """Return the numbers of `players` along an axis on which `found` has those of `used`; 0 for others."""
    if np.array_equal(players, used):
        return found
    position, there = np.searchsorted(used, players), np.isin(players, used)
    shape = [len(players) if i == axis else n for i, n in enumerate(found.shape)]
    if not there.any():
        return op.row_constant(np.zeros(shape, found.dtype.numpy()))
    own = op.Gather(found, np.where(there, position, 0), axis=axis)
    mask = there.reshape([-1 if i == axis else 1 for i in range(len(shape))]).astype(found.dtype.numpy())
    return own if there.all() else op.Mul(own, op.row_constant(mask))


def _margins(at_x: Environment, trees: Trees, references: ReferenceSet | None) -> Margins | None:
    if trees.margin is None or references is None:
        return None
    known = references.arrays[trees.margin].reshape(-1, trees.ensemble.columns)
    return Margins(at_x.op.reshape(at_x.at(trees.margin), (1, trees.ensemble.columns)), known)


def _of_target(op: Ops, target: Target, seed: Seed, found: Tensor) -> Tensor:
    """Return attributions [1, targets, …] along the axis T, or those of the predicted class."""
    if target.elements == "predicted":
        chosen = op.reshape(seed.multiplier, (1, found.shape[1], *(1 for _ in found.shape[2:])))
        return op.ReduceSum(op.Mul(found, chosen), [1], keepdims=0)
    if found.shape[1] == 1:
        return op.reshape(found, (1, *found.shape[2:]))
    return op.along(op.vary(found, frozenset("N")), "T")
