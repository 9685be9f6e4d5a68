"""The graph that looks up a row's attributions.

It has few nodes: for one row, ONNX Runtime spends as long on starting a node as on thousands of numbers.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.trees.picking import Picker, chunk_columns, concatenate
from rationale.trees.probability import Terms
from rationale.trees.program import BEYOND, mark, table_program
from rationale.trees.tables import Bit, Counts, SplitTest, Tables

_SHELF = 1 << 12  # slots that take as long as a few more nodes


def emit_tables(op: Ops, tables: Tables, x: Tensor, dtype: ir.DataType) -> Tensor:
    """Emit the attributions, row shape [1, targets · units].

    Args:
        x: the features, row shape [1, features].
        dtype: the type in which attributions are summed.
    """
    columns = tables.targets * len(tables.units)
    if not len(tables.column):
        return op.row_constant(np.zeros((1, columns), dtype.numpy()))
    pick, before = Picker(op), next(reversed(op.graph), None)
    indices, position_of = emit_counts(op, pick, tables.first, x)
    chunks, column_of = chunk_columns(tables.column, columns)
    is_empty = chunks < 0
    group = np.where(is_empty, len(tables.first.starts) - 1, tables.group[chunks])
    within = np.where(is_empty, 0, tables.within[chunks]).reshape(1, -1).astype(np.int32)
    indices = op.Add(pick(indices, position_of[group].reshape(-1)), op.row_constant(within))
    numbers = op.constant(np.pad(tables.numbers, (0, BEYOND)).astype(dtype.numpy()))
    looked_up = op.reshape(op.take(numbers, indices), (1, *chunks.shape))
    sums = pick.sums(op.ReduceSum(looked_up, [2], keepdims=0), column_of, columns)
    mark(op.graph, before, sums.value, table_program(tables, x.dtype))
    return sums


def emit_interactions(op: Ops, tables: Tables, x: Tensor, attributions: Tensor) -> Tensor:
    """Return interactions and, on the diagonal, the rest of the attributions: row shape [1, targets · P²].

    Args:
        tables: tables of pairs.
        attributions: row shape [1, targets · P].
    """
    targets, players, dtype = tables.targets, attributions.shape[1] // tables.targets, attributions.dtype
    diagonal = op.row_constant(np.eye(players, dtype=dtype.numpy())[None, None])
    own_values = op.reshape(attributions, (1, targets, players, 1))
    if not tables.units:
        return op.reshape(op.Mul(own_values, diagonal), (1, targets * players * players))
    pairs = emit_tables(op, tables, x, dtype)
    pick = Picker(op)
    padded = concatenate(op, [pairs, op.row_constant(np.zeros((1, 1), dtype.numpy()))])
    index = np.full((targets, players, players), padded.shape[1] - 1)  # for pairs that meet nowhere
    for unit, (i, j) in enumerate(tables.units):
        index[:, i, j] = index[:, j, i] = np.arange(targets) * len(tables.units) + unit
    off_diagonal = op.reshape(pick(padded, index.reshape(-1)), (1, targets, players, players))
    ends = np.add.outer(np.arange(targets) * players, np.array(tables.units).T)  # [targets, 2, pairs]
    doubled = concatenate(op, [pairs, pairs])
    of_pairs = pick.sums(doubled, ends.swapaxes(0, 1).reshape(-1), targets * players)
    own_values = op.Sub(own_values, op.reshape(of_pairs, (1, targets, players, 1)))
    return op.reshape(op.Add(off_diagonal, op.Mul(own_values, diagonal)), (1, targets * players * players))


def emit_counts(op: Ops, pick: Picker, counts: Counts, x: Tensor) -> tuple[Tensor, np.ndarray]:
    """Return [1, counts] int32, those with few slots first, and the position of each count."""
    bits, position = _bits(op, pick, counts.bits, x)
    slots = (counts.steps != 0).sum(axis=1)
    order, parts = np.argsort(slots, kind="stable"), []
    for shelf, most_slots in _shelves(slots[order]):
        shelf_counts = order[shelf]
        reads, steps = counts.reads[shelf_counts, :most_slots], counts.steps[shelf_counts, :most_slots]
        picked = op.reshape(pick(bits, position[reads].reshape(-1)), (1, *reads.shape))
        added = op.Mul(picked, op.row_constant(steps[None].astype(np.int32)))
        parts.append(op.ReduceSum(added, [2], keepdims=0))
    starts = op.row_constant(counts.starts[order][None].astype(np.int32))
    return op.Add(concatenate(op, parts), starts), np.argsort(order)


def _shelves(slots: np.ndarray) -> list[tuple[slice, int]]:
    """Split counts by their slots, ascending, into one or two parts; return the most slots of each.

    Two parts have the least padding that is possible; there is one part if two save too little.
    """
    count, most = len(slots), max(int(slots[-1]), 1)
    first = np.arange(1, count)
    filled = first * np.maximum(slots[:-1], 1) + (count - first) * most
    if count < 2 or filled.min() > count * most - _SHELF:
        return [(slice(count), most)]
    cut = int(filled.argmin()) + 1
    return [(slice(cut), max(int(slots[cut - 1]), 1)), (slice(cut, count), most)]


def _bits(op: Ops, pick: Picker, bits: Sequence[Bit], x: Tensor) -> tuple[Tensor, np.ndarray]:
    """Return 0 or 1 for each bit, test by test, and the position of each bit."""
    parts, order = [], []
    for test in SplitTest:
        tested_bits = [i for i, bit in enumerate(bits) if bit[1] is test]
        if tested_bits:
            bounds = np.asarray([[bits[i][2] for i in tested_bits]], x.dtype.numpy())
            picked = pick(x, np.asarray([bits[i][0] for i in tested_bits]))
            parts.append(_emit_split_test(op, test, picked, bounds))
            order += tested_bits
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    return op.Cast(concatenate(op, parts), to=int(ir.DataType.INT32)), position


def _emit_split_test(op: Ops, test: SplitTest, x: Tensor, bounds: np.ndarray) -> Tensor:
    """Return the test's result; every comparison with NaN is false."""
    if test is SplitTest.MISSING:
        return op.IsNaN(x)
    if test is SplitTest.REACHED:
        return op.GreaterOrEqual(x, op.row_constant(bounds))
    if test is SplitTest.PASSED:
        return op.Greater(x, op.row_constant(bounds))
    under = op.Less if test is SplitTest.REACHED_OR_MISSING else op.LessOrEqual
    return op.Not(under(x, op.row_constant(bounds)))


def emit_rescaled(
    op: Ops, tables: Tables, x: Tensor, margins: Tensor, terms: Sequence[Terms], target_matrix: np.ndarray
) -> Tensor:
    """Emit the attributions of probabilities, row shape [1, targets · players].

    Args:
        tables: tables with a target for each term of each column, one column after the other.
        margins: the margins of `terms`, row shape [1, columns].
        target_matrix: [columns, targets], the targets' coefficients of the columns.
    """
    players, ends = len(tables.units), np.cumsum([0, *(len(t.margins) for t in terms)])
    term_values = emit_tables(op, tables, x, op.dtype)
    column, target = np.nonzero(target_matrix)
    picks = [
        (term, t, target_matrix[c, t])
        for c, t in zip(column, target, strict=True)
        for term in range(ends[c], ends[c + 1])
    ]
    of_term, to = (np.array([p[i] for p in picks]) for i in (0, 1))
    pick = Picker(op)
    factors = op.Mul(_slopes(op, pick, margins, terms, of_term), op.row_constant(_row([p[2] for p in picks])))
    shape = (1, len(picks), players)
    indices = of_term[:, None] * players + np.arange(players)
    factors = op.reshape(op.Cast(factors, to=int(op.dtype)), (1, len(picks), 1))
    product = op.Mul(op.reshape(pick(term_values, indices.reshape(-1)), shape), factors)
    product = op.reshape(product, (1, len(picks) * players))
    column_of = to[:, None] * players + np.arange(players)
    return pick.sums(product, column_of.reshape(-1), target_matrix.shape[1] * players)


def _slopes(op: Ops, pick: Picker, margins: Tensor, terms: Sequence[Terms], chosen: np.ndarray) -> Tensor:
    """Return `probability.slope` from the row's margins to the chosen terms' ones, float64: [1, chosen]."""
    columns = np.repeat(np.arange(len(terms)), [len(t.margins) for t in terms])[chosen]
    term_margins = np.concatenate([t.margins for t in terms])[chosen]
    a = op.Cast(pick(margins, columns), to=int(ir.DataType.DOUBLE))
    return emit_slope(op, a, op.row_constant(_row(term_margins)), np.tanh(term_margins / 2))


def emit_slope(op: Ops, a: Tensor, b: Tensor, tanh_of_b: np.ndarray | None = None) -> Tensor:
    """Return `probability.slope` between margins a and b, all in float64.

    Args:
        tanh_of_b: tanh(b/2) if b is constant: [margins].
    """
    halves, ones = op.row_constant(_row([0.5])), op.row_constant(_row([1.0]))
    d = op.Sub(a, b)
    equal = op.Equal(d, op.row_constant(_row([0.0])))
    rise = op.Div(op.Tanh(op.Mul(d, halves)), op.Where(equal, ones, d))
    rise = op.Where(equal, halves, rise)
    tanh_of_a = op.Tanh(op.Mul(a, halves))
    other = op.Tanh(op.Mul(b, halves)) if tanh_of_b is None else op.row_constant(_row(tanh_of_b))
    return op.Mul(op.Mul(rise, halves), op.Sub(ones, op.Mul(tanh_of_a, other)))


def _row(numbers: Sequence[float] | np.ndarray) -> np.ndarray:
    return np.asarray(numbers, np.float64)[None]
