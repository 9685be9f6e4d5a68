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
from rationale.graph.nodes import Nodes, reads
from rationale.graph.ops import Ops
from rationale.graph.tensor import Chunks, Tensor
from rationale.methods.coalitions.method import CoalitionMethod, Coalitions, Game
from rationale.methods.engine import Canvas, Selection
from rationale.methods.outputs import (
    STANDARD_ERROR,
    Outputs,
    Seed,
    emit_values,
    in_two,
    players_by_output,
    seed_of,
    total_of,
)
from rationale.methods.players import CoalitionGame
from rationale.methods.target import Target, made_by, reach_backward
from rationale.references.reference_set import ReferenceSet
from rationale.schema.machine import Deployment, format_bytes
from rationale.schema.manifest import contrast_ends

MOST_MIXED = 50_000_000  # model rows per explained row: hours for a small network
AT_ONCE = 1024  # mixed rows per call: larger calls are slower, since they do not fit the caches
SHARE = 8  # the model may take 1/SHARE of the memory budget for the rows of one call

_CHOSEN = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64})
"""Types that ONNX Runtime's Where takes; inputs of other number types hold integers."""


@dataclass(frozen=True)
class Mixing:
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
    def mixed(self) -> int:
        """The number of mixed rows. The coalition of all players is the row itself and needs no call."""
        return (len(self.coalitions.masks) - 1) * self.references.count


def _mixing(selection: Selection, references: ReferenceSet, deployment: Deployment) -> Mixing:
    """Return the game; call this before the graph is changed.

    Raises:
        InvalidOptionError: if there are too many players or model calls.
    """
    target, lowered = selection.target, selection.lowered
    assert isinstance(selection.part, Game)
    game = selection.part.game
    method: Any = selection.method
    coalitions = method.coalitions(game.players)
    mixed = (len(coalitions.masks) - 1) * references.count
    if mixed > MOST_MIXED:
        raise InvalidOptionError(
            f"{method.name}: {len(coalitions.masks)} coalitions of {game.players} players and "
            f"{references.count} references are {mixed} rows of the model for one row to explain, and "
            f"{MOST_MIXED} are the most. Give fewer references (rationale references), or fewer permutations."
        )
    model = lowered.model.clone()
    size = 1 if lowered.single_row_only else _rows_at_once(model, target, mixed, deployment)
    return Mixing(model, target, game, coalitions, references, size)


def _rows_at_once(model: ir.Model, target: Target, mixed: int, deployment: Deployment) -> int:
    needed = reach_backward(model.graph, target.output, target.tensors)
    nodes = [n for n in model.graph if any(v.name in needed for v in n.outputs)]
    each = max(peak(nodes, sizes(model, Chunks())), 1)
    room = deployment.memory_budget // SHARE
    if each > room:
        raise InvalidOptionError(
            f"the memory budget of {format_bytes(deployment.memory_budget)} is too small: the model takes "
            f"{format_bytes(each)} for a row. Raise --memory-budget."
        )
    return int(min(room // each, AT_ONCE, mixed))


def emit(canvas: Canvas, outputs: Outputs) -> None:
    """Add the attributions, base value, explained value and gap to the graph's outputs."""
    op, selection, target = canvas.op, canvas.selection, canvas.selection.target
    method: Any = selection.method
    if not selection.lowered.single_row_only:  # the model's own answers are read without reshaping
        canvas = replace(canvas, flat=canvas.flat | {target.output})
    at_x = canvas.at_x()
    assert canvas.references is not None
    mixing = _mixing(selection, canvas.references, op.variants.deployment)
    at_x.lift_outputs()
    seed = seed_of(
        op, target, at_x.at(target.output), None, selection.lowered.narrow.edges.get(target.output)
    )
    op.scope = "coalitions"
    operands = [op.flat(at_x.at(name)).value for name in _rows_read(mixing)]
    body = _Row(op, mixing, method).graph(seed)
    given = [*operands, op.flat(seed.explained).value]
    if target.elements == "predicted":
        given.append(op.flat(seed.multiplier).value)
    scan = ir.node(
        "Scan", given, {"body": body, "num_scan_inputs": len(given)}, num_outputs=len(body.outputs)
    )
    scan.name = op._fresh("Scan")
    for i, (value, inside) in enumerate(zip(scan.outputs, body.outputs, strict=True)):
        value.name, value.type = f"{scan.name}.{i}", inside.type
        value.shape = ir.Shape(["N", *(inside.shape or ())])
    op.graph.append(scan)
    double = ir.DataType.DOUBLE
    base = Tensor(scan.outputs[0], seed.explained.shape, double, frozenset("N"), rows=True)
    answered, *rest = in_two(op, base, seed.explained.dtype)
    found = _each(op, mixing, scan.outputs[1])
    answered_values = {
        name: op.attributions_output(v, outputs.attributions[name]) for name, v in found.items()
    }
    totals = [total_of(op, answered_values[name], value) for name, value in found.items()]
    own = list(answered_values.values())
    if method.standard_error:
        errors = _each(op, mixing, scan.outputs[2])
        own += [
            op.attributions_output(v, outputs.of_kind(STANDARD_ERROR)[name]) for name, v in errors.items()
        ]
    seed = replace(seed, base=answered, rest=rest[0] if rest else None)
    op.graph.outputs.extend([*own, *emit_values(op, seed, totals, gap=True)])


def _each(op: Ops, mixing: Mixing, found: ir.Value) -> dict[str, Tensor]:
    """Return each explained tensor's share of [N, T, players]: per element, or per group of elements."""
    own = players_by_output(mixing.target, mixing.game.of)
    return {tensor: _of(op, mixing, found, players) for tensor, players in own.items()}


def _of(op: Ops, mixing: Mixing, found: ir.Value, of: np.ndarray) -> Tensor:
    """Return the entries of [N, T, players] that belong to the players `of`: row shape [1, *of.shape]."""
    dtype = op.dtype
    if not np.array_equal(of.reshape(-1), np.arange(mixing.game.players)):
        indices = op.constant(of.reshape(-1).astype(np.int64)).value
        found = op._node("Gather", [found, indices], {"axis": 2})[0]
    axes = ("N", "T") if op.sizes["T"] > 1 else ("N",)
    shaped = op._node("Reshape", [found, op._ints([-1, op.sizes["T"], *of.shape])], {})[0]
    return Tensor(shaped, (1, *of.shape), dtype, frozenset(axes), rows=True, split=axes)


def _rows_read(mixing: Mixing) -> list[str]:
    """Return the values that the body reads per row: explained tensors, and the inputs they need.

    The body reads inputs without rows directly, since they are the same for all.
    """
    ends, graph = mixing.target.tensors, mixing.model.graph
    needed = reach_backward(graph, mixing.target.output, ends) - set(ends)
    accompanying = [v for v in graph.inputs if v.name in needed and v.shape is not None and v.shape.rank()]
    return [*ends, *(str(v.name) for v in accompanying)]


class _Row:
    """The body of the Scan over rows of the batch."""

    def __init__(self, op: Ops, mixing: Mixing, method: CoalitionMethod) -> None:
        self.op, self.mixing, self.method = op, mixing, method
        self.body = ir.Graph([], [], nodes=[], opset_imports=op.graph.opset_imports, name="coalitions/row")
        self.nodes = Nodes(self.body, "coalitions/row")

    def graph(self, seed: Seed) -> ir.Graph:
        """Return the body that explains one row.

        Inputs: a row of each tensor, the explained value, and the predicted class if that is the target.

        Outputs: base value [T] in float64, attributions [T, players], and their standard errors if these are
        requested.
        """
        op, mixing, c = self.nodes, self.mixing, self.mixing.coalitions
        specs = {str(v.name): v for v in _values(mixing.model.graph)}
        rows = {name: self._input(specs[name], f"x_{i}") for i, name in enumerate(_rows_read(mixing))}
        explained = self._own("explained", seed.explained.shape[1:], seed.explained.dtype)
        winner = None
        if mixing.target.elements == "predicted":
            chosen = self._own("predicted", seed.multiplier.shape[1:], seed.multiplier.dtype)
            winner = op.ArgMax(op.Reshape(chosen, [-1]), axis=0, keepdims=1)
        values = self._values_of(rows, winner, seed.explained.shape[1])
        whole = op.Cast(op.Unsqueeze(explained, [0]), to=ir.DataType.DOUBLE.value)
        v = op.Concat(values, whole, axis=0)  # [C, T]
        gains = op.Sub(op.Gather(v, self._shared(c.joined)), op.Gather(v, self._shared(c.before)))
        weighted = op.Mul(gains, self._shared(c.weights[..., None]))  # [D, P, T]
        base = op.Reshape(op.Slice(v, [0], [1], [0]), [-1])
        found = [base, op.Transpose(op.ReduceSum(weighted, [0], keepdims=0), perm=[1, 0])]
        if self.method.standard_error:
            found.append(self._standard_error(weighted, seed.explained.shape[1]))
        shapes = [[seed.explained.shape[1]], *([seed.explained.shape[1], mixing.game.players],) * 2]
        dtypes = [ir.DataType.DOUBLE, *(seed.explained.dtype,) * 2]
        for value, shape, dtype in zip(found, shapes, dtypes, strict=False):
            out = op.Cast(value, to=dtype.value)
            out.dtype, out.shape = dtype, ir.Shape(shape)
            self.body.outputs.append(out)
        return self.body

    def _standard_error(self, weighted: ir.Value, targets: int) -> ir.Value:
        """Return √(Σ (φ_p − φ)² / (n(n − 1))) over the n pairs p of orders."""
        op, n = self.nodes, self.method.pairs
        split = op.Reshape(weighted, [n, -1, self.mixing.game.players, targets])
        each = op.Mul(op.ReduceSum(split, [1], keepdims=0), np.asarray(float(n)))  # [n, P, T]
        off = op.Sub(each, op.ReduceMean(each, [0], keepdims=1))
        squares = op.ReduceSum(op.Mul(off, off), [0], keepdims=0)
        return op.Transpose(op.Sqrt(op.Div(squares, np.asarray(float(n * (n - 1))))), perm=[1, 0])

    def _values_of(self, rows: Mapping[str, ir.Value], winner: ir.Value | None, targets: int) -> ir.Value:
        """Return v [C − 1, T] in float64: the model's answers to mixed rows, averaged over the references."""
        op, mixing, k = self.nodes, self.mixing, self.mixing.references.count
        starts = np.arange(0, mixing.mixed, mixing.size)
        chunk = _Chunk(self.op, mixing, rows).graph(winner)
        node = ir.node("Scan", [self._shared(starts)], {"body": chunk, "num_scan_inputs": 1}, num_outputs=1)
        node.name = op.fresh("Scan")
        node.outputs[0].name = node.name
        op.insert([node])
        answers = op.Reshape(node.outputs[0], [-1, targets])
        if len(starts) * mixing.size > mixing.mixed:
            answers = op.Slice(answers, [0], [mixing.mixed], [0])
        answers = op.Cast(op.Reshape(answers, [-1, k, targets]), to=ir.DataType.DOUBLE.value)
        weights = mixing.references.weights
        if weights is None:
            return op.ReduceMean(answers, [1], keepdims=0)
        return op.ReduceSum(op.Mul(answers, self._shared(weights[:, None])), [1], keepdims=0)

    def _input(self, value: ir.Value, name: str) -> ir.Value:
        assert value.shape is not None
        assert value.dtype is not None
        return self._own(name, [d for d in value.shape[1:] if isinstance(d, int)], value.dtype)

    def _own(self, name: str, shape: Sequence[int], dtype: ir.DataType) -> ir.Value:
        made = ir.Value(name=f"coalitions/row/{name}", type=ir.TensorType(dtype), shape=ir.Shape(shape))
        self.body.inputs.append(made)
        return made

    def _shared(self, array: np.ndarray) -> ir.Value:
        """Return a constant of the main graph; bodies can read it."""
        return self.op.constant(array).value


class _Chunk:
    """The body of the Scan over mixed rows: a chunk of them, and the model's answers at the targets."""

    def __init__(self, op: Ops, mixing: Mixing, rows: Mapping[str, ir.Value]) -> None:
        self.op, self.mixing, self.rows = op, mixing, rows
        start = ir.Value(
            name="coalitions/mixed/start", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([])
        )
        self.body = ir.Graph(
            [start], [], nodes=[], opset_imports=op.graph.opset_imports, name="coalitions/mixed"
        )
        self.nodes = Nodes(self.body, "coalitions/mixed")

    def graph(self, winner: ir.Value | None) -> ir.Graph:
        """Return the body of a chunk. Input: the first mixed row's number. Output: [size, T]."""
        op, mixing, references = self.nodes, self.mixing, self.mixing.references
        count = np.asarray(references.count, np.int64)
        last = np.asarray(mixing.mixed - 1, np.int64)
        numbers = op.Min(op.Add(self.body.inputs[0], self._shared(np.arange(mixing.size))), last)
        k = op.Mod(numbers, count)
        masks = op.Gather(self._shared(mixing.coalitions.masks), op.Div(numbers, count))  # [size, P]
        inputs = {}
        for name, row in self.rows.items():
            shape = [d for d in (row.shape or ()) if isinstance(d, int)]
            x = op.Reshape(row, [1, *shape])
            if name not in mixing.game.of:
                inputs[name] = op.Expand(x, [mixing.size, *(1 for _ in shape)])
                continue
            inputs[name] = self._mixed(self._mask(masks, mixing.game.of[name]), x, references.arrays[name], k)
        y = self._evaluate(inputs)
        answers = self._at_targets(op.Reshape(y, [mixing.size, -1]), winner)
        answers.dtype = self.op.dtype
        self.body.outputs.append(answers)
        return self.body

    def _mixed(self, mask: ir.Value, x: ir.Value, references: np.ndarray, k: ir.Value) -> ir.Value:
        """Return the row's elements if their players are in the coalition, else those of reference k."""
        op, dtype = self.nodes, ir.DataType.from_numpy(references.dtype)
        if dtype in _CHOSEN:
            return op.Where(mask, x, op.Gather(self._shared(references), k))
        if references.dtype.kind == "U":
            return op.Where(mask, x, op.Gather(self._text(references), k))
        wide = op.Cast(x, to=ir.DataType.INT64.value)
        r = op.Gather(self._shared(references.astype(np.int64)), k)
        return op.Cast(op.Where(mask, wide, r), to=dtype.value)

    def _text(self, array: np.ndarray) -> ir.Value:
        """Return a string constant of the main graph."""
        tensor = ir.StringTensor([text.encode() for text in array.reshape(-1)], shape=ir.Shape(array.shape))
        value = ir.Value(name=self.op._fresh("texts"), const_value=tensor)
        tensor.name, value.shape, value.dtype = value.name, tensor.shape, ir.DataType.STRING
        self.op.graph.register_initializer(value)
        return value

    def _mask(self, masks: ir.Value, of: np.ndarray) -> ir.Value:
        """Return a mask [size, *row]: true if the element's player is in the coalition."""
        op, players = self.nodes, of.reshape(-1)
        if not np.array_equal(players, np.arange(self.mixing.game.players)):
            masks = op.Gather(masks, players.astype(np.int64), axis=1)
        return op.Reshape(masks, [self.mixing.size, *of.shape]) if of.ndim != 1 else masks

    def _at_targets(self, y: ir.Value, winner: ir.Value | None) -> ir.Value:
        """Return the targets [size, T] from the outputs y [size, elements]."""
        op, target = self.nodes, self.mixing.target
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
        graph, ends = self.mixing.model.graph, list(inputs)
        needed = reach_backward(graph, self.mixing.target.output, ends)
        nodes = [n for n in graph if any(v.name in needed for v in n.outputs) and not made_by(n, ends)]
        values = {str(v.name): v for v in _values(graph)}
        graph.outputs.clear()
        for name, value in inputs.items():
            ir.convenience.replace_all_uses_with(values[name], value)
        outside = {str(v.name): v for v in (*self.op.graph.inputs, *self.op.graph.initializers.values())}
        for value in [*graph.inputs, *graph.initializers.values()]:
            ir.convenience.replace_all_uses_with(value, outside[str(value.name)])
        graph.remove(nodes)
        made = {v for n in nodes for v in n.outputs}
        for node in nodes:
            missing = [v.name for v in reads(node) if v.graph is graph]
            if missing:
                raise UnsupportedModelError(
                    f"{node.op_type} node {node.name!r} reads {missing}, made by the node that makes "
                    f"what is explained ({ends}): explain an input instead (--input)."
                )
            node.name = self.nodes.fresh(f"model/{node.name or node.op_type}")
        for value in made:
            value.name, value.shape = f"coalitions/model/{value.name}" if value.name else None, None
        self.nodes.insert(nodes)
        return inputs.get(self.mixing.target.output, values[self.mixing.target.output])

    def _shared(self, array: np.ndarray) -> ir.Value:
        return self.op.constant(array).value


def _values(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.inputs, *(v for n in graph for v in n.outputs)]
