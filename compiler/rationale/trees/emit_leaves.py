"""The graph that compares a row with the references' patterns, leaf by leaf: see `by_leaf`."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.trees.by_leaf import Block, LeafBlock, Leaves, coalition_shares
from rationale.trees.emit import emit_counts
from rationale.trees.picking import Picker, chunk_columns, concatenate


def emit_leaves(op: Ops, leaves: Leaves, x: Tensor, dtype: ir.DataType) -> Tensor:
    """Emit the attributions, row shape [1, targets · players].

    Args:
        x: the features, row shape [1, features].
        dtype: the type in which attributions are summed.
    """
    pick = Picker(op)
    counts, position_of = emit_counts(op, pick, leaves.conditions, x)
    fulfilled = op.Cast(op.Greater(counts, 0), to=int(dtype))
    parts = [_block_values(op, pick, block, fulfilled, position_of, dtype) for block in leaves.blocks]
    return sum_leaves(op, pick, parts, leaves.blocks, leaves.values, leaves.players)


def sum_leaves(
    op: Ops,
    pick: Picker,
    parts: Sequence[Tensor],
    blocks: Sequence[LeafBlock],
    values: np.ndarray,
    player_count: int,
) -> Tensor:
    """Sum the Shapley values of leaves of value 1 by player: row shape [1, targets · players].

    Args:
        parts: for each block, its leaves' values [1, L · k].
        values: [leaves of the ensemble, targets], each leaf's contribution to each target.
    """
    players = np.concatenate([block.players.reshape(-1) for block in blocks])
    rows = np.concatenate([np.repeat(block.rows, block.players.shape[1]) for block in blocks])
    of_entry = values[rows] * (players >= 0)[:, None]
    entry, target = np.nonzero(of_entry)
    columns = values.shape[1] * player_count
    index, column_of = chunk_columns(target * player_count + players[entry], columns)
    factors = np.where(index < 0, 0, of_entry[entry, target][index]).astype(parts[0].dtype.numpy())
    leaf_values = concatenate(op, parts)
    picked = op.reshape(pick(leaf_values, entry[index].reshape(-1)), (1, *index.shape))
    weighted_values = op.Mul(picked, op.row_constant(factors[None]))
    return pick.sums(op.ReduceSum(weighted_values, [2], keepdims=0), column_of, columns)


def _block_values(
    op: Ops, pick: Picker, block: Block, fulfilled: Tensor, position_of: np.ndarray, dtype: ir.DataType
) -> Tensor:
    """Return Shapley values of leaves of value 1: [1, L · k].

    a: the conditions that the row satisfies; B: those that a pattern satisfies; s⁺: Σ_u of the value of a
    player among the p.
    """
    numbers, (count, most, k) = dtype.numpy(), block.patterns.shape
    a = op.reshape(pick(fulfilled, position_of[block.conditions].reshape(-1)), (1, count, k))
    patterns = op.constant(block.patterns.astype(numbers))
    satisfied = block.patterns.sum(axis=2)
    satisfied_by_both = op.reshape(op.MatMul(patterns, op.reshape(a, (1, count, k, 1))), (1, count, most))
    sums = op.ReduceSum(a, [2], keepdims=1)
    # no condition fails for both: k = a + B − both; this never holds after the last pattern
    of_row = np.where(block.shares > 0, satisfied - k, 1)[None].astype(numbers)
    meets = op.Equal(op.Sub(satisfied_by_both, sums), op.row_constant(of_row))
    p = k - satisfied
    n = op.Sub(op.row_constant(np.full((1, 1, 1), k, numbers)), sums)
    index = op.Add(
        op.row_constant((p * (k + 1))[None].astype(np.int32)), op.Cast(n, to=int(ir.DataType.INT32))
    )
    index = op.Where(meets, index, op.row_constant(np.full((1, 1, 1), (k + 1) ** 2, np.int32)))
    share = op.take(op.constant(coalition_shares(k).astype(numbers)), index)
    each = np.stack([block.shares / np.maximum(p, 1) * (p > 0), block.shares], axis=1)
    weighed = op.Mul(op.reshape(share, (1, count, 1, most)), op.row_constant(each[None].astype(numbers)))
    gained, lost = op.emit("Split", [op.MatMul(weighed, patterns), [1, 1]], {"axis": 2}, outputs=2)
    gained, lost = (op.reshape(t, (1, count, k)) for t in (gained, lost))
    whole = op.Slice(gained, [k - 1], [k], [2])  # every pattern satisfies the last condition
    plus = op.Sub(whole, gained)
    minus = op.Div(lost, op.Neg(op.Max(n, op.row_constant(np.ones((1, 1, 1), numbers)))))
    return op.reshape(op.Where(op.Greater(a, 0.5), plus, minus), (1, count * k))
