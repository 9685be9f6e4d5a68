"""The graph that looks a row's attributions up.

Few nodes: for one row, ONNX Runtime spends as long on starting one as on thousands of numbers.
"""

import numpy as np
import onnx_ir as ir

from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.trees.picking import Picking, chunked, joined
from compiler.trees.tables import Tables, Test


def emit_tables(op: Ops, tables: Tables, x: Tensor, dtype: ir.DataType) -> Tensor:
    """The attributions, row shape [1, targets · players].

    Args:
        x: row shape [1, features].
        dtype: in which they are summed.
    """
    columns = tables.targets * tables.players
    if not len(tables.column):
        return op.row_constant(np.zeros((1, columns), dtype.numpy()))
    pick = Picking(op)
    starts = _starts(op, pick, tables, *_bits(op, pick, tables, x))
    index, owners = chunked(tables.column, columns)
    nothing = index < 0
    group = np.where(nothing, len(tables.starts) - 1, tables.group[index])
    within = np.where(nothing, 0, tables.within[index]).reshape(1, -1).astype(np.int32)
    places = op.Add(pick(starts, group.reshape(-1)), op.row_constant(within))
    found = op.reshape(op.take(op.constant(tables.numbers.astype(dtype.numpy())), places), (1, *index.shape))
    return pick.sums(op.ReduceSum(found, [2], keepdims=0), owners, columns)


def _bits(op: Ops, pick: Picking, tables: Tables, x: Tensor) -> tuple[Tensor, np.ndarray]:
    """0 and 1 for each bit, test by test; and where each bit of the tables stands among them."""
    parts, order = [], []
    for test in Test:
        own = [i for i, bit in enumerate(tables.bits) if bit[1] is test]
        if own:
            bounds = np.asarray([[tables.bits[i][2] for i in own]], x.dtype.numpy())
            picked = pick(x, np.asarray([tables.bits[i][0] for i in own]))
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


def _starts(op: Ops, pick: Picking, tables: Tables, bits: Tensor, place: np.ndarray) -> Tensor:
    """Where each group's numbers begin: [1, groups]."""
    picked = op.reshape(pick(bits, place[tables.reads].reshape(-1)), (1, *tables.reads.shape))
    gone = op.Mul(picked, op.row_constant(tables.steps[None].astype(np.int32)))
    starts = op.row_constant(tables.starts[None].astype(np.int32))
    return op.Add(op.ReduceSum(gone, [2], keepdims=0), starts)
