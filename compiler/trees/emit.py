"""The graph that looks a row's attributions up.

Everything runs along axis 1, one row of the batch after the other: GatherElements there is ten times faster
than Gather or GatherND in ONNX Runtime, and sums are taken in the same order whatever the batch. A ScatterND
that adds would be neither.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from compiler.graph.ops import Ops
from compiler.graph.tensor import Tensor
from compiler.trees.tables import Block, Tables, Test

_CHUNK = 32  # numbers that are added at once
_EVEN = 8  # numbers: where a row of them starts decides in which order ONNX Runtime adds what is no multiple


def emit_tables(op: Ops, tables: Tables, x: Tensor, dtype: ir.DataType) -> Tensor:
    """The attributions, row shape [1, targets · players].

    Args:
        x: row shape [1, features].
        dtype: in which they are summed.
    """
    columns = tables.targets * tables.players
    if not tables.blocks:
        return op.row_constant(np.zeros((1, columns), dtype.numpy()))
    bits, place = _bits(op, tables, x, dtype)
    found = [_look_up(op, block, place, bits, dtype) for block in tables.blocks]
    to = np.concatenate([block.columns.reshape(-1) for block in tables.blocks])
    return _sums(op, _joined(op, found), to, columns)


def _bits(op: Ops, tables: Tables, x: Tensor, dtype: ir.DataType) -> tuple[Tensor, np.ndarray]:
    """0 and 1 for each bit, test by test; and where each bit of the tables stands among them."""
    parts, order = [], []
    for test in Test:
        own = [i for i, bit in enumerate(tables.bits) if bit[1] is test]
        if own:
            columns = np.asarray([[tables.bits[i][0] for i in own]], np.int32)
            bounds = np.asarray([[tables.bits[i][2] for i in own]], x.dtype.numpy())
            picked = op.GatherElements(x, op.row_constant(columns), axis=1)
            parts.append(op.Cast(_tested(op, test, picked, bounds), to=int(dtype)))
            order += own
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return _joined(op, parts), place


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


def _look_up(op: Ops, block: Block, place: np.ndarray, bits: Tensor, dtype: ir.DataType) -> Tensor:
    """The numbers of each group's row: [1, groups · width]."""
    groups, slots = block.bits.shape
    picked = op.GatherElements(
        bits, op.row_constant(place[block.bits].reshape(1, -1).astype(np.int32)), axis=1
    )
    steps = op.row_constant(block.steps[None].astype(dtype.numpy()))
    going = op.ReduceSum(op.Mul(op.reshape(picked, (1, groups, slots)), steps), [2], keepdims=0)
    starts = op.row_constant(block.starts[None].astype(np.int32))
    rows = op.Add(op.Cast(going, to=int(ir.DataType.INT32)), starts)
    found = op.Gather(op.constant(block.table.astype(dtype.numpy())), rows, axis=0)
    return op.reshape(found, (1, groups * block.table.shape[1]))


def _joined(op: Ops, parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else op.emit("Concat", parts, {"axis": 1})[0]


def _sums(op: Ops, x: Tensor, owners: np.ndarray, columns: int) -> Tensor:
    """[1, columns]: the sum of the numbers that belong to each.

    In chunks of numbers of one column, then chunks of these sums, so that a column of many does not make all
    others as long.

    Args:
        owners: the column of each number of `x`; −1 for those that belong to none.
    """
    while True:
        order = np.argsort(owners, kind="stable")
        order = order[owners[order] >= 0]
        counts = np.bincount(owners[order], minlength=columns)
        last = counts.max(initial=0) <= _CHUNK
        chunks = np.ones(columns, np.int64) if last else -(-counts // _CHUNK)
        width = -(-int(max(counts.max(initial=1), 1)) // _EVEN) * _EVEN if last else _CHUNK
        starts = np.cumsum(chunks) - chunks
        within = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        index = np.full((int(chunks.sum()), width), x.shape[1])  # a 0 stands behind all numbers
        index[starts[owners[order]] + within // width, within % width] = order
        zero = op.row_constant(np.zeros((1, 1), x.dtype.numpy()))
        padded = op.emit("Concat", [x, zero], {"axis": 1})[0]
        picked = op.GatherElements(padded, op.row_constant(index.reshape(1, -1).astype(np.int32)), axis=1)
        x = op.ReduceSum(op.reshape(picked, (1, *index.shape)), [2], keepdims=0)
        if last:
            return x
        owners = np.repeat(np.arange(columns), chunks)
