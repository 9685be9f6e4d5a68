"""The graph that looks up a row's attributions.

It has few nodes: for one row, ONNX Runtime spends as long on starting a node as on thousands of numbers.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.trees.picking import Picking, chunked, joined
from rationale.trees.probability import Terms
from rationale.trees.tables import Bit, Counts, Tables, Test

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
    pick = Picking(op)
    indices, at = counted(op, pick, tables.first, x)
    index, column_of = chunked(tables.column, columns)
    nothing = index < 0
    group = np.where(nothing, len(tables.first.starts) - 1, tables.group[index])
    within = np.where(nothing, 0, tables.within[index]).reshape(1, -1).astype(np.int32)
    indices = op.Add(pick(indices, at[group].reshape(-1)), op.row_constant(within))
    found = op.reshape(op.take(op.constant(tables.numbers.astype(dtype.numpy())), indices), (1, *index.shape))
    return pick.sums(op.ReduceSum(found, [2], keepdims=0), column_of, columns)


def emit_interactions(op: Ops, tables: Tables, x: Tensor, attributions: Tensor) -> Tensor:
    """Return interactions and, on the diagonal, the rest of the attributions: row shape [1, targets · P²].

    Args:
        tables: tables of pairs.
        attributions: row shape [1, targets · P].
    """
    targets, players, dtype = tables.targets, attributions.shape[1] // tables.targets, attributions.dtype
    diagonal = op.row_constant(np.eye(players, dtype=dtype.numpy())[None, None])
    own = op.reshape(attributions, (1, targets, players, 1))
    if not tables.units:
        return op.reshape(op.Mul(own, diagonal), (1, targets * players * players))
    pairs = emit_tables(op, tables, x, dtype)
    pick = Picking(op)
    found = joined(op, [pairs, op.row_constant(np.zeros((1, 1), dtype.numpy()))])
    index = np.full((targets, players, players), found.shape[1] - 1)  # for pairs that meet nowhere
    for unit, (i, j) in enumerate(tables.units):
        index[:, i, j] = index[:, j, i] = np.arange(targets) * len(tables.units) + unit
    apart = op.reshape(pick(found, index.reshape(-1)), (1, targets, players, players))
    ends = np.add.outer(np.arange(targets) * players, np.array(tables.units).T)  # [targets, 2, pairs]
    twice = joined(op, [pairs, pairs])
    of_pairs = pick.sums(twice, ends.swapaxes(0, 1).reshape(-1), targets * players)
    own = op.Sub(own, op.reshape(of_pairs, (1, targets, players, 1)))
    return op.reshape(op.Add(apart, op.Mul(own, diagonal)), (1, targets * players * players))


def counted(op: Ops, pick: Picking, counts: Counts, x: Tensor) -> tuple[Tensor, np.ndarray]:
    """Return [1, counts] int32, those with few slots first, and the position of each count."""
    bits, position = _bits(op, pick, counts.bits, x)
    slots = (counts.steps != 0).sum(axis=1)
    order, parts = np.argsort(slots, kind="stable"), []
    for own, most in _shelves(slots[order]):
        which = order[own]
        reads, steps = counts.reads[which, :most], counts.steps[which, :most]
        picked = op.reshape(pick(bits, position[reads].reshape(-1)), (1, *reads.shape))
        gone = op.Mul(picked, op.row_constant(steps[None].astype(np.int32)))
        parts.append(op.ReduceSum(gone, [2], keepdims=0))
    starts = op.row_constant(counts.starts[order][None].astype(np.int32))
    return op.Add(joined(op, parts), starts), np.argsort(order)


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


def _bits(op: Ops, pick: Picking, bits: Sequence[Bit], x: Tensor) -> tuple[Tensor, np.ndarray]:
    """Return 0 or 1 for each bit, test by test, and the position of each bit."""
    parts, order = [], []
    for test in Test:
        own = [i for i, bit in enumerate(bits) if bit[1] is test]
        if own:
            bounds = np.asarray([[bits[i][2] for i in own]], x.dtype.numpy())
            picked = pick(x, np.asarray([bits[i][0] for i in own]))
            parts.append(_tested(op, test, picked, bounds))
            order += own
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    return op.Cast(joined(op, parts), to=int(ir.DataType.INT32)), position


def _tested(op: Ops, test: Test, x: Tensor, bounds: np.ndarray) -> Tensor:
    """Return the test's result; every comparison with NaN is false."""
    if test is Test.MISSING:
        return op.IsNaN(x)
    if test is Test.REACHED:
        return op.GreaterOrEqual(x, op.row_constant(bounds))
    if test is Test.PASSED:
        return op.Greater(x, op.row_constant(bounds))
    under = op.Less if test is Test.REACHED_OR_MISSING else op.LessOrEqual
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
    players, ends = len(tables.units), np.cumsum([0, *(len(t.at) for t in terms)])
    found = emit_tables(op, tables, x, op.dtype)
    column, target = np.nonzero(target_matrix)
    picks = [
        (term, t, target_matrix[c, t])
        for c, t in zip(column, target, strict=True)
        for term in range(ends[c], ends[c + 1])
    ]
    of_term, to = (np.array([p[i] for p in picks]) for i in (0, 1))
    pick = Picking(op)
    factors = op.Mul(_slopes(op, pick, margins, terms, of_term), op.row_constant(_row([p[2] for p in picks])))
    each = (1, len(picks), players)
    indices = of_term[:, None] * players + np.arange(players)
    factors = op.reshape(op.Cast(factors, to=int(op.dtype)), (1, len(picks), 1))
    product = op.Mul(op.reshape(pick(found, indices.reshape(-1)), each), factors)
    product = op.reshape(product, (1, len(picks) * players))
    column_of = to[:, None] * players + np.arange(players)
    return pick.sums(product, column_of.reshape(-1), target_matrix.shape[1] * players)


def _slopes(op: Ops, pick: Picking, margins: Tensor, terms: Sequence[Terms], chosen: np.ndarray) -> Tensor:
    """Return `probability.slope` from the row's margins to the chosen terms' ones, float64: [1, chosen]."""
    columns = np.repeat(np.arange(len(terms)), [len(t.at) for t in terms])[chosen]
    at = np.concatenate([t.at for t in terms])[chosen]
    a = op.Cast(pick(margins, columns), to=int(ir.DataType.DOUBLE))
    b = op.row_constant(_row(at))
    half, one = op.row_constant(_row([0.5])), op.row_constant(_row([1.0]))
    d = op.Sub(a, b)
    equal = op.Equal(d, op.row_constant(_row([0.0])))
    rise = op.Div(op.Tanh(op.Mul(d, half)), op.Where(equal, one, d))
    rise = op.Where(equal, half, rise)
    flat = op.Sub(one, op.Mul(op.Tanh(op.Mul(a, half)), op.row_constant(_row(np.tanh(at / 2)))))
    return op.Mul(op.Mul(rise, half), flat)


def _row(numbers: Sequence[float] | np.ndarray) -> np.ndarray:
    return np.asarray(numbers, np.float64)[None]
