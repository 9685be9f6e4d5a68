"""The combined graph of a coalition method: the model itself, called for coalitions of players.

A Scan over the rows of the batch contains a Scan over the mixed rows. Mixed row c·K + k, for coalition c and
reference k, takes the coalition's features from the row and all others from reference k. So neither a row's
answer nor the memory depends on the other rows of the batch: docs/adr/0034-coalitions.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from rationale.errors import InvalidOptionError, UnsupportedModelError
from rationale.graph.memory.budget import peak, sizes
from rationale.graph.nodes import NodeBuilder, values_read
from rationale.graph.ops import Ops
from rationale.graph.tensor import Chunks, Tensor
from rationale.methods.coalitions.method import CoalitionMethod, Coalitions, Game
from rationale.methods.engine import Canvas, Results, Selection
from rationale.methods.outputs import STANDARD_ERROR, Seed, make_seed, players_by_output, split_rounding
from rationale.methods.players import CoalitionGame
from rationale.methods.target import Target, computes, reach_backward
from rationale.references.reference_set import ReferenceSet
from rationale.schema.machine import Deployment, format_bytes
from rationale.schema.manifest import contrast_ends

MOST_MIXED = 50_000_000  # model rows per explained row: hours for a small network
AT_ONCE = 1024  # mixed rows per call: larger calls are slower, since they do not fit the caches
SHARE = 8  # the model may take 1/SHARE of the memory budget for the rows of one call

_WHERE_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64})
"""Types that ONNX Runtime's Where takes; inputs of other number types hold integers."""


@dataclass(frozen=True)
class GamePlan:
    """The game, and the model that plays it.

    Attributes:
        model: a copy of the lowered model, whose nodes go into the body.
        size: number of mixed rows in one call.
    """

    model: ir.Model
    target: Target
    game: CoalitionGame
    coalitions: Coalitions
    references: ReferenceSet
    size: int

    @property
    def mixed_rows(self) -> int:
        """The number of mixed rows. The coalition of all players is the row itself and needs no call."""
        return (len(self.coalitions.masks) - 1) * self.references.count


def _plan_game(
    selection: Selection[CoalitionMethod, Game], references: ReferenceSet, deployment: Deployment
) -> GamePlan:
    """Return the game; call this before the graph is changed.

    Raises:
        InvalidOptionError: if there are too many players or model calls.
    """
    target, lowered, method = selection.target, selection.lowered, selection.method
    game = selection.choice.game
    coalitions = method.coalitions(game.players)
    mixed_rows = (len(coalitions.masks) - 1) * references.count
    if mixed_rows > MOST_MIXED:
        raise InvalidOptionError(
            f"{method.name}: {len(coalitions.masks)} coalitions of {game.players} players and "
            f"{references.count} references need {mixed_rows} rows of the model for each explained row; "
            f"the limit is {MOST_MIXED}. Give fewer references (rationale references), or fewer "
            "permutations."
        )
    model = lowered.model.clone()
    size = 1 if lowered.single_row_only else _rows_at_once(model, target, mixed_rows, deployment)
    return GamePlan(model, target, game, coalitions, references, size)


def _rows_at_once(model: ir.Model, target: Target, mixed_rows: int, deployment: Deployment) -> int:
    needed = reach_backward(model.graph, target.output, target.tensors)
    nodes = [n for n in model.graph if any(v.name in needed for v in n.outputs)]
    each = max(peak(nodes, sizes(model, Chunks())), 1)
    room = deployment.memory_budget // SHARE
    if each > room:
        raise InvalidOptionError(
            f"the memory budget of {format_bytes(deployment.memory_budget)} is too small: the model takes "
            f"{format_bytes(each)} for a row. Raise --memory-budget."
        )
    return int(min(room // each, AT_ONCE, mixed_rows))


def emit(canvas: Canvas[CoalitionMethod, Game]) -> None:
    """Call the model for coalitions, and add the outputs to the graph's."""
    op, selection, target = canvas.op, canvas.selection, canvas.selection.target
    if not selection.lowered.single_row_only:  # the model's own answers are read without reshaping
        canvas = replace(canvas, flat=canvas.flat | {target.output})
    at_x = canvas.at_x()
    assert canvas.references is not None
    plan = _plan_game(selection, canvas.references, op.variants.deployment)
    at_x.lift_outputs()
    seed = make_seed(
        op, target, at_x.tensor(target.output), None, selection.lowered.narrow.edges.get(target.output)
    )
    op.scope = "coalitions"
    operands = [op.flat(at_x.tensor(name)).value for name in _row_inputs(plan)]
    body = _RowBody(op, plan, selection.method).graph(seed)
    scan_inputs = [*operands, op.flat(seed.explained).value]
    if target.elements == "predicted":
        scan_inputs.append(op.flat(seed.multiplier).value)
    attributes: dict[str, Any] = {"body": body, "num_scan_inputs": len(scan_inputs)}
    scan = ir.node("Scan", scan_inputs, attributes, num_outputs=len(body.outputs))
    scan.name = op._fresh("Scan")
    for i, (value, inside) in enumerate(zip(scan.outputs, body.outputs, strict=True)):
        value.name, value.type = f"{scan.name}.{i}", inside.type
        value.shape = ir.Shape(["N", *(inside.shape or ())])
    op.graph.append(scan)
    double = ir.DataType.DOUBLE
    base = Tensor(scan.outputs[0], seed.explained.shape, double, frozenset("N"), rows=True)
    seed = Seed(seed.multiplier, seed.explained, *split_rounding(op, base, seed.explained.dtype))
    attributions = _by_output(op, plan, scan.outputs[1])
    errors = {STANDARD_ERROR: lambda: _by_output(op, plan, scan.outputs[2])}
    canvas.emit_outputs(Results(op, seed), attributions.items(), errors)


def _by_output(op: Ops, plan: GamePlan, per_player: ir.Value) -> dict[str, Tensor]:
    """Return each explained tensor's share of [N, T, players]: per element, or per group of elements."""
    players_of_output = players_by_output(plan.target, plan.game.player_of)
    return {
        tensor: _entries_of_players(op, plan, per_player, players)
        for tensor, players in players_of_output.items()
    }


def _entries_of_players(op: Ops, plan: GamePlan, per_player: ir.Value, players: np.ndarray) -> Tensor:
    """Return the entries of [N, T, players] that belong to `players`: row shape [1, *players.shape]."""
    dtype = op.dtype
    if not np.array_equal(players.reshape(-1), np.arange(plan.game.players)):
        indices = op.constant(players.reshape(-1).astype(np.int64)).value
        per_player = op._node("Gather", [per_player, indices], {"axis": 2})[0]
    axes = ("N", "T") if op.sizes["T"] > 1 else ("N",)
    entries = op._node("Reshape", [per_player, op._ints([-1, op.sizes["T"], *players.shape])], {})[0]
    return Tensor(entries, (1, *players.shape), dtype, frozenset(axes), rows=True, split=axes)


def _row_inputs(plan: GamePlan) -> list[str]:
    """Return the values that the body reads per row: explained tensors, and the inputs they need.

    The body reads inputs without rows directly, since they are the same for all.
    """
    ends, graph = plan.target.tensors, plan.model.graph
    needed = reach_backward(graph, plan.target.output, ends) - set(ends)
    accompanying = [v for v in graph.inputs if v.name in needed and v.shape is not None and v.shape.rank()]
    return [*ends, *(str(v.name) for v in accompanying)]


class _BodyBuilder:
    """The body of a Scan under construction."""

    def __init__(self, op: Ops, plan: GamePlan, name: str) -> None:
        self.op, self.plan = op, plan
        self.body = ir.Graph([], [], nodes=[], opset_imports=op.graph.opset_imports, name=name)
        self.nodes = NodeBuilder(self.body, name)

    def _add_input(self, name: str, shape: Sequence[int], dtype: ir.DataType) -> ir.Value:
        value = ir.Value(name=f"{self.body.name}/{name}", type=ir.TensorType(dtype), shape=ir.Shape(shape))
        self.body.inputs.append(value)
        return value

    def _constant(self, array: np.ndarray) -> ir.Value:
        """Return a constant of the main graph; bodies can read it."""
        return self.op.constant(array).value


class _RowBody(_BodyBuilder):
    """The body of the Scan over rows of the batch."""

    def __init__(self, op: Ops, plan: GamePlan, method: CoalitionMethod) -> None:
        super().__init__(op, plan, "coalitions/row")
        self.method = method

    def graph(self, seed: Seed) -> ir.Graph:
        """Return the body that explains one row.

        Inputs: a row of each tensor, the explained value, and the predicted class if that is the target.

        Outputs: base value [T] in float64, attributions [T, players], and their standard errors if these are
        requested.
        """
        op, plan, coalitions = self.nodes, self.plan, self.plan.coalitions
        specs = {str(v.name): v for v in _values(plan.model.graph)}
        rows = {name: self._row_input(specs[name], f"x_{i}") for i, name in enumerate(_row_inputs(plan))}
        explained = self._add_input("explained", seed.explained.shape[1:], seed.explained.dtype)
        winner = None
        if plan.target.elements == "predicted":
            chosen = self._add_input("predicted", seed.multiplier.shape[1:], seed.multiplier.dtype)
            winner = op.ArgMax(op.Reshape(chosen, [-1]), axis=0, keepdims=1)
        mixed_values = self._coalition_values(rows, winner, seed.explained.shape[1])
        row_value = op.Cast(op.Unsqueeze(explained, [0]), to=ir.DataType.DOUBLE.value)
        values = op.Concat(mixed_values, row_value, axis=0)  # [C, T]
        joined, before = (
            op.Gather(values, self._constant(c)) for c in (coalitions.joined, coalitions.before)
        )
        gains = op.Sub(joined, before)
        weighted = op.Mul(gains, self._constant(coalitions.weights[..., None]))  # [D, P, T]
        base = op.Reshape(op.Slice(values, [0], [1], [0]), [-1])
        results = [base, op.Transpose(op.ReduceSum(weighted, [0], keepdims=0), perm=[1, 0])]
        if self.method.standard_error:
            results.append(self._standard_error(weighted, seed.explained.shape[1]))
        shapes = [[seed.explained.shape[1]], *([seed.explained.shape[1], plan.game.players],) * 2]
        dtypes = [ir.DataType.DOUBLE, *(seed.explained.dtype,) * 2]
        for value, shape, dtype in zip(results, shapes, dtypes, strict=False):
            out = op.Cast(value, to=dtype.value)
            out.dtype, out.shape = dtype, ir.Shape(shape)
            self.body.outputs.append(out)
        return self.body

    def _standard_error(self, weighted: ir.Value, targets: int) -> ir.Value:
        """Return √(Σ (φ_p − φ)² / (n(n − 1))) over the n pairs p of orders."""
        op, n = self.nodes, self.method.pairs
        by_pair = op.Reshape(weighted, [n, -1, self.plan.game.players, targets])
        pair_values = op.Mul(op.ReduceSum(by_pair, [1], keepdims=0), np.asarray(float(n)))  # [n, P, T]
        deviations = op.Sub(pair_values, op.ReduceMean(pair_values, [0], keepdims=1))
        squares = op.ReduceSum(op.Mul(deviations, deviations), [0], keepdims=0)
        return op.Transpose(op.Sqrt(op.Div(squares, np.asarray(float(n * (n - 1))))), perm=[1, 0])

    def _coalition_values(
        self, rows: Mapping[str, ir.Value], winner: ir.Value | None, targets: int
    ) -> ir.Value:
        """Return v [C − 1, T] in float64: the model's answers to mixed rows, averaged over the references."""
        op, plan, k = self.nodes, self.plan, self.plan.references.count
        starts = np.arange(0, plan.mixed_rows, plan.size)
        chunk = _MixedRowsBody(self.op, plan, rows).graph(winner)
        node = ir.node("Scan", [self._constant(starts)], {"body": chunk, "num_scan_inputs": 1}, num_outputs=1)
        node.name = op.fresh("Scan")
        node.outputs[0].name = node.name
        op.insert([node])
        answers = op.Reshape(node.outputs[0], [-1, targets])
        if len(starts) * plan.size > plan.mixed_rows:
            answers = op.Slice(answers, [0], [plan.mixed_rows], [0])
        answers = op.Cast(op.Reshape(answers, [-1, k, targets]), to=ir.DataType.DOUBLE.value)
        weights = plan.references.weights
        if weights is None:
            return op.ReduceMean(answers, [1], keepdims=0)
        return op.ReduceSum(op.Mul(answers, self._constant(weights[:, None])), [1], keepdims=0)

    def _row_input(self, value: ir.Value, name: str) -> ir.Value:
        assert value.shape is not None
        assert value.dtype is not None
        return self._add_input(name, [d for d in value.shape[1:] if isinstance(d, int)], value.dtype)


class _MixedRowsBody(_BodyBuilder):
    """The body of the Scan over mixed rows: a chunk of them, and the model's answers at the targets."""

    def __init__(self, op: Ops, plan: GamePlan, rows: Mapping[str, ir.Value]) -> None:
        super().__init__(op, plan, "coalitions/mixed")
        self.rows = rows
        self._add_input("start", [], ir.DataType.INT64)

    def graph(self, winner: ir.Value | None) -> ir.Graph:
        """Return the body of a chunk. Input: the first mixed row's number. Output: [size, T]."""
        op, plan, references = self.nodes, self.plan, self.plan.references
        count = np.asarray(references.count, np.int64)
        last = np.asarray(plan.mixed_rows - 1, np.int64)
        numbers = op.Min(op.Add(self.body.inputs[0], self._constant(np.arange(plan.size))), last)
        reference_numbers = op.Mod(numbers, count)
        masks = op.Gather(self._constant(plan.coalitions.masks), op.Div(numbers, count))  # [size, P]
        inputs = {}
        for name, row in self.rows.items():
            shape = [d for d in (row.shape or ()) if isinstance(d, int)]
            x = op.Reshape(row, [1, *shape])
            if name not in plan.game.player_of:
                inputs[name] = op.Expand(x, [plan.size, *(1 for _ in shape)])
                continue
            inputs[name] = self._mix_rows(
                self._mask(masks, plan.game.player_of[name]), x, references.arrays[name], reference_numbers
            )
        y = self._evaluate(inputs)
        answers = self._at_targets(op.Reshape(y, [plan.size, -1]), winner)
        answers.dtype = self.op.dtype
        self.body.outputs.append(answers)
        return self.body

    def _mix_rows(self, mask: ir.Value, x: ir.Value, references: np.ndarray, k: ir.Value) -> ir.Value:
        """Return the row's elements if their players are in the coalition, else those of reference k."""
        op, dtype = self.nodes, ir.DataType.from_numpy(references.dtype)
        if dtype in _WHERE_TYPES:
            return op.Where(mask, x, op.Gather(self._constant(references), k))
        if references.dtype.kind == "U":
            return op.Where(mask, x, op.Gather(self._string_constant(references), k))
        wide = op.Cast(x, to=ir.DataType.INT64.value)
        r = op.Gather(self._constant(references.astype(np.int64)), k)
        return op.Cast(op.Where(mask, wide, r), to=dtype.value)

    def _string_constant(self, array: np.ndarray) -> ir.Value:
        """Return a string constant of the main graph."""
        tensor = ir.StringTensor([text.encode() for text in array.reshape(-1)], shape=ir.Shape(array.shape))
        value = ir.Value(name=self.op._fresh("texts"), const_value=tensor)
        tensor.name, value.shape, value.dtype = value.name, tensor.shape, ir.DataType.STRING
        self.op.graph.register_initializer(value)
        return value

    def _mask(self, masks: ir.Value, of: np.ndarray) -> ir.Value:
        """Return a mask [size, *row]: true if the element's player is in the coalition."""
        op, players = self.nodes, of.reshape(-1)
        if not np.array_equal(players, np.arange(self.plan.game.players)):
            masks = op.Gather(masks, players.astype(np.int64), axis=1)
        return op.Reshape(masks, [self.plan.size, *of.shape]) if of.ndim != 1 else masks

    def _at_targets(self, y: ir.Value, winner: ir.Value | None) -> ir.Value:
        """Return the targets [size, T] from the outputs y [size, elements]."""
        op, target = self.nodes, self.plan.target
        if winner is not None:
            return op.Gather(y, winner, axis=1)
        ends = [contrast_ends(t) if isinstance(t, str) else (t, None) for t in target.elements]
        first = op.Gather(y, [i for i, _ in ends], axis=1)
        if all(i is None for _, i in ends):
            return first
        contrasted = np.asarray([i is not None for _, i in ends])
        against = op.Gather(y, [i or 0 for _, i in ends], axis=1)
        zero = np.asarray(0, self.op.dtype.numpy())
        return op.Sub(first, op.Where(contrasted, against, zero))

    def _evaluate(self, inputs: Mapping[str, ir.Value]) -> ir.Value:
        """Return the explained output of the mixed rows; a copy of the model's nodes computes it."""
        graph, input_names = self.plan.model.graph, list(inputs)
        needed = reach_backward(graph, self.plan.target.output, input_names)
        nodes = [
            n for n in graph if any(v.name in needed for v in n.outputs) and not computes(n, input_names)
        ]
        values = {str(v.name): v for v in _values(graph)}
        graph.outputs.clear()
        for name, value in inputs.items():
            ir.convenience.replace_all_uses_with(values[name], value)
        outside = {str(v.name): v for v in (*self.op.graph.inputs, *self.op.graph.initializers.values())}
        for value in [*graph.inputs, *graph.initializers.values()]:
            ir.convenience.replace_all_uses_with(value, outside[str(value.name)])
        graph.remove(nodes)
        inner_values = {v for n in nodes for v in n.outputs}
        for node in nodes:
            missing = [v.name for v in values_read(node) if v.graph is graph]
            if missing:
                raise UnsupportedModelError(
                    f"{node.op_type} node {node.name!r} reads {missing}, an output of the same node as the "
                    f"explained tensors ({input_names}): explain an input instead (--input)."
                )
            node.name = self.nodes.fresh(f"model/{node.name or node.op_type}")
        for value in inner_values:
            value.name, value.shape = f"coalitions/model/{value.name}" if value.name else None, None
        self.nodes.insert(nodes)
        return inputs.get(self.plan.target.output, values[self.plan.target.output])


def _values(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.inputs, *(v for n in graph for v in n.outputs)]
