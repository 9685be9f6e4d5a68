"""The graph of a tree ensemble's attributions, which it looks up in tables."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

import numpy as np

from rationale.graph.nodes import extract, nodes_behind
from rationale.graph.ops import Ops
from rationale.graph.runtime.session import Runner
from rationale.graph.tensor import Tensor
from rationale.lowering import Lowered
from rationale.methods.engine import Canvas, Results, Selection
from rationale.methods.environment import (
    Environment,
    MovedEnvironment,
    at_open_references,
    mean_at_references,
)
from rationale.methods.outputs import INTERACTIONS, Seed, make_seed, players_by_output
from rationale.methods.target import Target, reach_forward
from rationale.methods.trees.ensembles import TreeChoice
from rationale.methods.trees.method import Margins, OpenScores, TreeMethod, TreeScores
from rationale.references.reference_set import ReferenceSet
from rationale.trees.covers import expected_scores
from rationale.trees.picking import Picker


def emit(canvas: Canvas[TreeMethod, TreeChoice]) -> None:
    """Look up the attributions, and add the outputs to the graph's."""
    op, selection = canvas.op, canvas.selection
    target, trees, method = selection.target, selection.choice, selection.method
    at_x = canvas.at_x()
    at_x.lift_outputs()
    at_r = _at_open_references(canvas, at_x)
    references = None if at_r else _with_values(selection, canvas.references)
    op.scope = "seed"
    y = at_x.tensor(target.output)
    base = (
        mean_at_references(at_r, target.output)
        if at_r
        else op.row_constant(_base_value(selection, references).reshape(1, -1))
    )
    seed = make_seed(op, target, y, base, selection.lowered.narrow.edges.get(target.output))
    op.scope = "trees"
    # players without features get no column
    used_players, player_of = np.unique(trees.player_of, return_inverse=True)
    columns = trees.ensemble.columns
    matrix = np.eye(columns) if target.elements == "predicted" else target.matrix(columns)
    x, margins = at_x.tensor(trees.reads), _margins(at_x, trees, references)
    rows = None if references is None else references.arrays[trees.reads]
    scores = TreeScores(
        trees.ensemble,
        matrix,
        x,
        None if rows is None else rows.reshape(len(rows), -1),
        None if references is None else references.weights,
        player_of,
        margins,
        None if at_r is None or canvas.references is None else _open_scores(at_r, trees, canvas.references),
    )
    values = method.attributions(op, scores)
    interaction_values = method.interaction_values(op, scores, values) if method.interactions else None
    op.scope = "attributions"
    values = _at_targets(op, target, seed, op.reshape(values, (1, matrix.shape[1], len(used_players))))
    players = players_by_output(target, trees.game.player_of)

    def interactions() -> dict[str, Tensor]:
        assert interaction_values is not None
        ((name, players_of_tensor),) = players.items()
        pairs = op.reshape(interaction_values, (1, matrix.shape[1], len(used_players), len(used_players)))
        pairs = _at_targets(op, target, seed, pairs)
        for axis in (1, 2):
            pairs = _columns_of_players(op, pairs, used_players, players_of_tensor.reshape(-1), axis)
        return {name: pairs}

    def attributions() -> Iterator[tuple[str, Tensor]]:
        for name, players_of_tensor in players.items():
            flat = _columns_of_players(op, values, used_players, players_of_tensor.reshape(-1), 1)
            yield name, op.reshape(flat, (1, *players_of_tensor.shape))

    canvas.emit_outputs(Results(op, seed), attributions(), {INTERACTIONS: interactions})


def _with_values(
    selection: Selection[TreeMethod, TreeChoice], references: ReferenceSet | None
) -> ReferenceSet | None:
    """Return the references with the tensors that the model computes from them, by name.

    These are the trees' features, the explained output, and the margin if attributions are rescaled.
    """
    if references is None:
        return None
    trees, output = selection.choice, selection.target.output
    tensors = {trees.reads, output, trees.margin or output}
    return replace(references, arrays=_answers(selection.lowered, references.arrays, tensors))


def _answers(lowered: Lowered, rows: Mapping[str, np.ndarray], tensors: set[str]) -> dict[str, np.ndarray]:
    """Return the given rows together with other tensors that the model computes from them."""
    graph = lowered.model.graph
    values = {str(v.name): v for v in (*graph.inputs, *(v for node in graph for v in node.outputs))}
    known_values, missing = [values[name] for name in rows], [values[name] for name in tensors - set(rows)]
    nodes = nodes_behind(graph, missing, known_values)
    run = Runner(extract(lowered.model, nodes, known_values, missing), optimise=False, users_model=True)
    return {**rows, **run(rows)}


def _base_value(selection: Selection[TreeMethod, TreeChoice], references: ReferenceSet | None) -> np.ndarray:
    """Return [1, …], the mean of the explained output over the references.

    Without references, return its expectation by the trees' covers: the mean over the leaves, plus the
    constant that the model adds to its leaves. It is computed in float64, like the tables: in
    float32, a mean over thousands of rows has a larger error than all the rest.

    Raises:
        InvalidReferencesError: if there are no covers either.
    """
    trees, output = selection.choice, selection.target.output
    if references is not None:
        rows = references.arrays[output]
        return np.asarray(np.average(rows.astype(np.float64), 0, references.weights)[None])
    expected_score = expected_scores(trees.ensemble)
    row, dtype = selection.lowered.specs[trees.reads]
    zero_row = {trees.reads: np.zeros(row, dtype.numpy())}
    answered = _answers(selection.lowered, zero_row, {output})[output]
    constant = expected_score - trees.ensemble.scores(np.zeros((1, prod(row[1:]))))
    return np.asarray(answered.astype(np.float64) + constant.reshape(answered.shape))


def _columns_of_players(
    op: Ops, values: Tensor, used_players: np.ndarray, players: np.ndarray, axis: int
) -> Tensor:
    """Return the numbers of `players` along an axis that has those of `used_players`; 0 for others."""
    if np.array_equal(players, used_players):
        return values
    position, is_used = np.searchsorted(used_players, players), np.isin(players, used_players)
    shape = [len(players) if i == axis else n for i, n in enumerate(values.shape)]
    if not is_used.any():
        return op.row_constant(np.zeros(shape, values.dtype.numpy()))
    gathered = op.Gather(values, np.where(is_used, position, 0), axis=axis)
    mask = is_used.reshape([-1 if i == axis else 1 for i in range(len(shape))]).astype(values.dtype.numpy())
    return gathered if is_used.all() else op.Mul(gathered, op.row_constant(mask))


def _margins(at_x: Environment, trees: TreeChoice, references: ReferenceSet | None) -> Margins | None:
    if trees.margin is None:
        return None
    margins = None if references is None else references.arrays[trees.margin]
    return Margins(
        at_x.op.reshape(at_x.tensor(trees.margin), (1, trees.ensemble.columns)),
        None if margins is None else margins.reshape(-1, trees.ensemble.columns),
    )


def _at_open_references(canvas: Canvas[TreeMethod, TreeChoice], at_x: Environment) -> MovedEnvironment | None:
    """Return the values at references that come with each request; None if they are in the graph."""
    references, selection = canvas.references, canvas.selection
    if references is None or not references.is_open:
        return None
    op, dependent = at_x.op, reach_forward(selection.lowered.model.graph, selection.target.tensors)

    def total(weights: Tensor) -> Tensor:
        return op.reshape(_sum_columns(op, op.beside(weights, "K")), ())

    return at_open_references(at_x, references, dependent, total)


def _sum_columns(op: Ops, x: Tensor) -> Tensor:
    """Return the sum of a row [1, n], in one order whatever the batch: [1, 1]."""
    return Picker(op).sums(x, np.zeros(x.shape[1], np.int64), 1) if x.shape[1] > 1 else x


def _open_scores(at_r: MovedEnvironment, trees: TreeChoice, references: ReferenceSet) -> OpenScores:
    op, columns = at_r.op, trees.ensemble.columns
    weights = op.beside(op.weights["K"], "K")
    if weights.dtype != op.dtype:  # their sum is 1 only to rounding
        weights = op.Cast(weights, to=int(op.dtype))
        weights = op.Div(weights, _sum_columns(op, weights))
    margins = None if trees.margin is None else op.reshape(at_r.tensor(trees.margin), (1, columns))
    return OpenScores(at_r.tensor(trees.reads), weights, references.count, margins)


def _at_targets(op: Ops, target: Target, seed: Seed, values: Tensor) -> Tensor:
    """Return attributions [1, targets, …] along the axis T, or those of the predicted class."""
    if target.elements == "predicted":
        chosen = op.reshape(seed.multiplier, (1, values.shape[1], *(1 for _ in values.shape[2:])))
        return op.ReduceSum(op.Mul(values, chosen), [1], keepdims=0)
    if values.shape[1] == 1:
        return op.reshape(values, (1, *values.shape[2:]))
    return op.along(op.vary(values, frozenset("N")), "T")
