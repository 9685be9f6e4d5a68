"""Shapley values of a row against references that come with it, leaf by leaf: ADR 0051.

A leaf's game between a row and one reference is that of `by_leaf`. Here the graph tests the conditions of
both: a says which of a leaf's conditions the row satisfies, b which ones the reference satisfies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import onnx_ir as ir

from rationale.errors import UnsupportedModelError
from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.schema.machine import format_bytes
from rationale.trees.by_leaf import LeafBlock, LeafConditions, coalition_shares
from rationale.trees.emit import emit_counts
from rationale.trees.emit_leaves import sum_leaves
from rationale.trees.groups import Tree
from rationale.trees.picking import Picker
from rationale.trees.tables import FLOAT, MOST_BYTES, Counts, Units

_FACTORS = 2  # lengths are multiples of it
_AT_ONCE = 1 << 20  # conditions of references in a block: a row needs a few numbers for each of them at once


@dataclass(frozen=True, eq=False)
class LeafPairs:
    """The leaves of an ensemble, and the conditions that a row and its references are tested for.

    With several references, the last condition of each leaf always holds.

    Attributes:
        conditions: counts that are positive if a row satisfies the condition.
    """

    players: int
    conditions: Counts
    blocks: tuple[LeafBlock, ...]


@dataclass(frozen=True, eq=False)
class Weighting:
    """Weights of the references, and the leaves' values that they apply to.

    Attributes:
        weights: the references' weights, row shape [1, K].
        values: [leaves, targets], a leaf's contribution to each target.
    """

    weights: Tensor
    values: np.ndarray


def build_pairs(trees: Sequence[Tree], player_of: np.ndarray, references: int) -> LeafPairs:
    """Return the conditions of the leaves, in blocks.

    Args:
        player_of: [features], the player of each feature.
        references: the number of references of a row.

    Raises:
        UnsupportedModelError: if a row would take too much memory; the message says how much.
    """
    units, conditions = Units(player_of, pairs=False), LeafConditions()
    by_length: dict[int, list[tuple[int, list[int], list[int]]]] = {}
    for tree in trees:
        for leaf in (leaf for group in tree.groups for leaf in group.leaves):
            players = units.players(leaf.satisfied)
            numbers = [conditions.number(tree, leaf, features) for features in players.values()]
            length = -(-(len(numbers) + (references > 1)) // _FACTORS) * _FACTORS
            by_length.setdefault(length, []).append((leaf.row, numbers, list(players)))
    always = conditions.counting.add((), 1)
    blocks = list[LeafBlock]()
    for length, leaves in sorted(by_length.items()):
        most = max(_AT_ONCE // (length * references), 1)
        blocks += [_block(leaves[i : i + most], length, always) for i in range(0, len(leaves), most)]
    pairs = LeafPairs(int(player_of.max()) + 1, conditions.counting.build(), tuple(blocks))
    _check_memory(pairs, references)
    return pairs


def _block(leaves: Sequence[tuple[int, list[int], list[int]]], k: int, always: int) -> LeafBlock:
    conditions, players = np.full((len(leaves), k), always), np.full((len(leaves), k), -1)
    for i, (_, numbers, of_leaf) in enumerate(leaves):
        conditions[i, : len(numbers)], players[i, : len(numbers)] = numbers, of_leaf
    return LeafBlock(conditions, np.array([row for row, _, _ in leaves]), players)


def _check_memory(pairs: LeafPairs, references: int) -> None:
    tested, slots = pairs.conditions.steps.shape
    held = sum(block.conditions.size for block in pairs.blocks)
    size = (references * tested * (slots + 2) + 3 * held + 4 * _AT_ONCE) * FLOAT
    if size > MOST_BYTES:
        leaves = sum(len(block.rows) for block in pairs.blocks)
        raise UnsupportedModelError(
            f"{leaves} leaves have {held} conditions, and with {references} references in each request a "
            f"row needs about {format_bytes(size)} of memory; the limit is {format_bytes(MOST_BYTES)}. "
            "Allow fewer references per request (--open-references 1), give a reference set, or train "
            "with a max_depth (6 to 8) or fewer trees."
        )


def emit_pairs(
    op: Ops, pairs: LeafPairs, x: Tensor, references: Tensor, weightings: Sequence[Weighting]
) -> Tensor:
    """Emit the attributions, row shape [1, targets · players]: the sum over the weightings.

    Args:
        x: the features, row shape [1, features].
        references: the features of the references, along K.
    """
    pick, dtype = Picker(op), op.dtype
    if not pairs.blocks:
        columns = weightings[0].values.shape[1] * pairs.players
        return op.row_constant(np.zeros((1, columns), dtype.numpy()))
    (a, position_of), (b, _) = (_satisfied(op, pick, pairs.conditions, rows) for rows in (x, references))
    weights = [weighting.weights for weighting in weightings]
    parts = [_block_values(op, pick, block, a, b, position_of, weights) for block in pairs.blocks]
    sums = [
        sum_leaves(op, pick, [part[i] for part in parts], pairs.blocks, weighting.values, pairs.players)
        for i, weighting in enumerate(weightings)
    ]
    return reduce(op.Add, sums)


def _satisfied(op: Ops, pick: Picker, conditions: Counts, rows: Tensor) -> tuple[Tensor, np.ndarray]:
    """Return 1 or 0 for each condition, and the position of each."""
    counts, position_of = emit_counts(op, pick, conditions, rows)
    return op.Cast(op.Greater(counts, 0), to=int(op.dtype)), position_of


def _block_values(
    op: Ops,
    pick: Picker,
    block: LeafBlock,
    a: Tensor,
    b: Tensor,
    position_of: np.ndarray,
    weights: Sequence[Tensor],
) -> list[Tensor]:
    """Return Shapley values of leaves of value 1, by each of the weights: [1, L · k].

    p: the conditions that only the row satisfies; n: those that only the reference satisfies.
    """
    numbers, (count, k), references = a.dtype.numpy(), block.conditions.shape, op.sizes["K"]
    index = position_of[block.conditions].reshape(-1)
    a = op.reshape(pick(a, index), (1, count, k))
    b = op.Transpose(op.reshape(op.beside(pick(b, index), "K"), (1, references, count, k)), perm=[0, 2, 1, 3])
    by_both = op.ReduceSum(op.Mul(op.reshape(a, (1, count, 1, k)), b), [3], keepdims=0)
    by_row, by_reference = op.ReduceSum(a, [2], keepdims=1), op.ReduceSum(b, [3], keepdims=0)
    p, n = (op.Sub(_number(op, k, a), t) for t in (by_reference, by_row))
    # no condition fails for both: k = a + b − both
    meets = op.Equal(op.Sub(by_both, by_row), op.Sub(by_reference, _number(op, k, a)))
    place = op.Cast(op.Add(op.Mul(p, _number(op, k + 1, a)), n), to=int(ir.DataType.INT32))
    place = op.Where(meets, place, op.row_constant(np.full((1, 1, 1), (k + 1) ** 2, np.int32)))
    share, of_p = (op.take(op.constant(table.astype(numbers)), place) for table in _shares(k))
    n = op.Max(n, _number(op, 1, a))
    return [
        op.reshape(_weighted(op, a, b, n, share, of_p, op.reshape(w, (1, 1, references))), (1, count * k))
        for w in weights
    ]


def _number(op: Ops, number: float, like: Tensor) -> Tensor:
    """Return a constant of rank 3: with fewer axes, ONNX Runtime goes through a tensor row by row."""
    return op.constant(np.full((1, 1, 1), number, like.dtype.numpy()))


def _shares(k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `coalition_shares`, and the same over p, 0 for p = 0."""
    shares = coalition_shares(k)
    p = np.append(np.repeat(np.arange(k + 1), k + 1), 0)
    return shares, shares / np.maximum(p, 1) * (p > 0)


def _weighted(
    op: Ops, a: Tensor, b: Tensor, n: Tensor, share: Tensor, of_p: Tensor, weights: Tensor
) -> Tensor:
    """Return Shapley values summed over the references by their weights: [1, L, k].

    Each leaf is a product of its own, so that a row is summed in one order whatever the batch.
    """
    _, count, references, k = b.shape
    gained, lost = op.Mul(of_p, weights), op.Mul(share, weights)
    if references == 1:
        whole, gained = gained, op.Mul(gained, op.reshape(b, (1, count, k)))
    else:
        rows = [op.reshape(t, (1, count, 1, references)) for t in (gained, lost)]
        sums = op.MatMul(op.emit("Concat", rows, {"axis": 2})[0], b)
        gained, lost = op.emit("Split", [sums, [1, 1]], {"axis": 2}, outputs=2)
        gained, lost = (op.reshape(t, (1, count, k)) for t in (gained, lost))
        whole = op.Slice(gained, [k - 1], [k], [2])  # every reference satisfies the last condition
    minus = op.Sub(_number(op, 0, a), op.Div(lost, n))  # Neg would answer −0
    return op.Where(op.Greater(a, _number(op, 0.5, a)), op.Sub(whole, gained), minus)
