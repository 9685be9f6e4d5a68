"""The graph that looks a row's attributions up.

Few nodes: for one row, ONNX Runtime spends as long on starting one as on thousands of numbers.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.trees.picking import Picking, chunked, joined
from compiler.trees.tables import Bit, Counts, Tables, Test


def emit_tables(op: Ops, tables: Tables, x: Tensor, dtype: ir.DataType) -> Tensor:
    """The attributions, row shape [1, targets · units].

    Args:
        x: row shape [1, features].
        dtype: in which they are summed.
    """
    columns = tables.targets * len(tables.units)
    if not len(tables.column):
        return op.row_constant(np.zeros((1, columns), dtype.numpy()))
    pick = Picking(op)
    places = counted(op, pick, tables.places, x)
    index, owners = chunked(tables.column, columns)
    nothing = index < 0
    group = np.where(nothing, len(tables.places.starts) - 1, tables.group[index])
    within = np.where(nothing, 0, tables.within[index]).reshape(1, -1).astype(np.int32)
    places = op.Add(pick(places, group.reshape(-1)), op.row_constant(within))
    found = op.reshape(op.take(op.constant(tables.numbers.astype(dtype.numpy())), places), (1, *index.shape))
    return pick.sums(op.ReduceSum(found, [2], keepdims=0), owners, columns)


def emit_interactions(op: Ops, tables: Tables, x: Tensor, attributions: Tensor) -> Tensor:
    """Interactions and, on the diagonal, what the attributions hold beside them: row shape [1, targets · P²].

    Args:
        tables: of pairs.
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
    place = np.full((targets, players, players), found.shape[1] - 1)  # of pairs that meet nowhere
    for unit, (i, j) in enumerate(tables.units):
        place[:, i, j] = place[:, j, i] = np.arange(targets) * len(tables.units) + unit
    apart = op.reshape(pick(found, place.reshape(-1)), (1, targets, players, players))
    ends = np.add.outer(np.arange(targets) * players, np.array(tables.units).T)  # [targets, 2, pairs]
    twice = joined(op, [pairs, pairs])
    beside = pick.sums(twice, ends.swapaxes(0, 1).reshape(-1), targets * players)
    own = op.Sub(own, op.reshape(beside, (1, targets, players, 1)))
    return op.reshape(op.Add(apart, op.Mul(own, diagonal)), (1, targets * players * players))


def counted(op: Ops, pick: Picking, counts: Counts, x: Tensor) -> Tensor:
    """[1, counts] int32."""
    bits, place = _bits(op, pick, counts.bits, x)
    picked = op.reshape(pick(bits, place[counts.reads].reshape(-1)), (1, *counts.reads.shape))
    gone = op.Mul(picked, op.row_constant(counts.steps[None].astype(np.int32)))
    starts = op.row_constant(counts.starts[None].astype(np.int32))
    return op.Add(op.ReduceSum(gone, [2], keepdims=0), starts)


def _bits(op: Ops, pick: Picking, bits: Sequence[Bit], x: Tensor) -> tuple[Tensor, np.ndarray]:
    """0 and 1 for each bit, test by test; and where each of them stands."""
    parts, order = [], []
    for test in Test:
        own = [i for i, bit in enumerate(bits) if bit[1] is test]
        if own:
            bounds = np.asarray([[bits[i][2] for i in own]], x.dtype.numpy())
            picked = pick(x, np.asarray([bits[i][0] for i in own]))
            parts.append(_tested(op, test, picked, bounds))
            order += own
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return op.Cast(joined(op, parts), to=int(ir.DataType.INT32)), place


def _tested(op: Ops, test: Test, x: Tensor, bounds: np.ndarray) -> Tensor:
    """Every comparison with NaN is false."""
    if test is Test.MISSING:
        return op.IsNaN(x)
    if test is Test.REACHED:
        return op.GreaterOrEqual(x, op.row_constant(bounds))
    if test is Test.PASSED:
        return op.Greater(x, op.row_constant(bounds))
    under = op.Less if test is Test.REACHED_OR_MISSING else op.LessOrEqual
    return op.Not(under(x, op.row_constant(bounds)))
