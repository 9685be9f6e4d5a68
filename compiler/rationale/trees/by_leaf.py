"""Shapley values at run time, from the references' patterns, for leaves on too many features for a table.

A leaf of value 1 is the product of k conditions. Of those on which a row and a reference differ, let the row
satisfy p and the reference n; if both fail one, the product is 0 for every coalition. Otherwise each of the
p players has (p − 1)! n! / (p + n)!, and each of the n has −p! (n − 1)! / (p + n)!: a unanimity game's share
(Shapley, "A Value for n-Person Games", 1953), here over the references by their pattern.

If no condition fails for both, p is k minus the number of conditions that the reference satisfies, and n is k
minus the number that the row satisfies.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import lgamma

import numpy as np

from rationale.errors import UnsupportedModelError
from rationale.schema.machine import format_bytes
from rationale.trees.groups import MOST_STATES, Tree, TreeLeaf, states_of
from rationale.trees.tables import (
    FLOAT,
    MOST_BYTES,
    Bit,
    Counts,
    CountsBuilder,
    Units,
    bits_of,
    columns_of,
    satisfied_conditions,
)

_PAIR_S = 6e-9  # seconds per leaf and pattern in an answer, measured on one core
_FACTORS = 4  # lengths are multiples of it
_AT_ONCE = 1 << 18  # pairs in a block: a row needs a few numbers for each of them at once
_WASTE = 1 << 14  # pairs that may only fill up a block
_WORD = 40  # conditions in an integer that also has room for a pattern's number


@dataclass(frozen=True, eq=False)
class LeafBlock:
    """Leaves with similar numbers of conditions, filled up with conditions that always hold.

    Attributes:
        conditions: [L, k], the conditions of a leaf's players.
        rows: [L], the leaves' rows of the ensemble's weights.
        players: [L, k], the player of each condition; −1 after the last.
    """

    conditions: np.ndarray
    rows: np.ndarray
    players: np.ndarray


@dataclass(frozen=True, eq=False)
class Block(LeafBlock):
    """Leaves that also have similar numbers of patterns; the last of their conditions always holds.

    Attributes:
        patterns: [L, U, k], 0 or 1, whether the references satisfy the conditions.
        shares: [L, U], the patterns' shares of the references; 0 after the last pattern.
    """

    patterns: np.ndarray
    shares: np.ndarray


@dataclass(frozen=True, eq=False)
class Leaves:
    """The attributions [targets, players] of a row as sums over leaves.

    Attributes:
        values: [leaves of the ensemble, targets].
        conditions: counts that are positive if a row satisfies the condition.
    """

    values: np.ndarray
    players: int
    conditions: Counts
    blocks: tuple[Block, ...]

    @property
    def pairs(self) -> int:
        return sum(block.shares.size for block in self.blocks)


def split_by_size(
    trees: Sequence[Tree], values: np.ndarray, player_of: np.ndarray
) -> tuple[list[Tree], list[Tree]]:
    """Split groups into those kept as tables, and those with tables too large, largest first."""
    units = Units(player_of, pairs=False)
    sizes = {
        id(group): group.rows * len(columns_of(group, values, units)) * FLOAT
        for tree in trees
        for group in tree.groups
    }
    groups = sorted((g for tree in trees for g in tree.groups), key=lambda g: sizes[id(g)])
    total = np.cumsum([sizes[id(g)] for g in groups], dtype=float)
    table_groups = {
        id(group)
        for group, total_size in zip(groups, total, strict=True)
        if group.rows <= MOST_STATES and total_size <= MOST_BYTES
    }

    def only(tree: Tree, tables: bool) -> Tree:
        return replace(tree, groups=tuple(g for g in tree.groups if (id(g) in table_groups) is tables))

    return [only(tree, True) for tree in trees], [only(tree, False) for tree in trees]


@dataclass(frozen=True, eq=False)
class LeafPatterns:
    """A leaf: numbers and players of its k conditions, the references' patterns [U, k] and their shares."""

    row: int
    numbers: list[int]
    players: list[int]
    patterns: np.ndarray
    shares: np.ndarray


def build_leaves(
    trees: Sequence[Tree],
    values: np.ndarray,
    references: np.ndarray,
    weights: np.ndarray | None,
    player_of: np.ndarray,
) -> Leaves:
    """Return the leaves' conditions and the references' patterns; arguments are those of `build_tables`.

    Raises:
        UnsupportedModelError: if there are more pairs of leaf and pattern than a graph holds; says how many.
    """
    units = Units(player_of, pairs=False)
    share = np.full(len(references), 1 / len(references)) if weights is None else weights
    conditions, leaf_patterns, size = LeafConditions(), list[LeafPatterns](), 0
    for tree in trees:
        leaves = [(leaf, units.players(leaf.satisfied)) for group in tree.groups for leaf in group.leaves]
        satisfied, tested = satisfied_conditions(tree, leaves, references)
        for (leaf, players), of_leaf in zip(leaves, tested, strict=True):
            patterns, shares = _patterns(satisfied[of_leaf] > 0, share)
            numbers = [conditions.number(tree, leaf, features) for features in players.values()]
            leaf_patterns.append(LeafPatterns(leaf.row, numbers, list(players), patterns, shares))
            size += patterns.size * FLOAT
            if size > MOST_BYTES:
                raise _too_large_error(trees, leaf_patterns)
    always = conditions.counting.add((), 1)
    blocks = tuple(_blocks(leaf_patterns, always))
    return Leaves(values, int(player_of.max()) + 1, conditions.counting.build(), blocks)


class LeafConditions:
    """The conditions of all leaves, each once."""

    def __init__(self) -> None:
        self.counting = CountsBuilder()
        self._numbers: dict[tuple[tuple[tuple[Bit, int], ...], int], int] = {}

    def number(self, tree: Tree, leaf: TreeLeaf, features: Sequence[int]) -> int:
        """Return the number of the condition that all `features` have values that lead to a leaf."""
        slots, start = list[tuple[Bit, int]](), 1 - len(features)
        for feature in features:
            first = leaf.satisfied[feature] & 1
            states = states_of(leaf.satisfied[feature], tree.bounds[feature].count)
            slots += [
                (bit, (1 - 2 * first) * step) for bit, step in bits_of(feature, states, tree.bounds[feature])
            ]
            start += first
        key = tuple(slots), start
        if key not in self._numbers:
            self._numbers[key] = self.counting.add(slots, start)
        return self._numbers[key]


def _too_large_error(trees: Sequence[Tree], counted_leaves: Sequence[LeafPatterns]) -> UnsupportedModelError:
    """Return the error that there are too many pairs, with an estimate from those counted so far."""
    leaves = [leaf for tree in trees for group in tree.groups for leaf in group.leaves]
    share = len(leaves) / len(counted_leaves)
    size = share * sum(leaf.patterns.size for leaf in counted_leaves) * FLOAT
    seconds = share * sum(len(leaf.shares) for leaf in counted_leaves) * _PAIR_S
    most = max(len(leaf.satisfied) for leaf in leaves)
    return UnsupportedModelError(
        f"{len(leaves)} leaves depend on up to {most} features each, too many for tables; the patterns of "
        f"the references on them would take about {format_bytes(int(size))}, and an answer about "
        f"{seconds:.1g} s for each row: a graph holds at most {format_bytes(MOST_BYTES)}. Give fewer "
        "references, train with a max_depth (6 to 8) or fewer trees, or take shap.TreeExplainer."
    )


def _patterns(satisfied: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct columns of `satisfied` [k, K] as rows, and their shares of the references."""
    code = np.zeros(satisfied.shape[1], np.int64)
    for i in range(0, len(satisfied), _WORD):
        for row in satisfied[i : i + _WORD]:
            code = 2 * code + row
        _, first, code = np.unique(code, return_index=True, return_inverse=True)
    return satisfied[:, first].T, np.bincount(code, share)


def _blocks(leaves: Sequence[LeafPatterns], always: int) -> Iterator[Block]:
    """Yield blocks of leaves with similar lengths and, among these, similar numbers of patterns."""

    def length(leaf: LeafPatterns) -> int:
        return -(-(len(leaf.numbers) + 1) // _FACTORS) * _FACTORS

    pending: list[LeafPatterns] = []
    pairs = 0
    for leaf in sorted(leaves, key=lambda leaf: (length(leaf), -len(leaf.shares))):
        if pending:
            filled = (len(pending) + 1) * len(pending[0].shares)
            waste = filled - pairs - len(leaf.shares)
            other = length(leaf) != length(pending[0])
            if other or filled > _AT_ONCE or waste > max(pairs // 4, _WASTE):
                yield _block(pending, length(pending[0]), always)
                pending, pairs = [], 0
        pending.append(leaf)
        pairs += len(leaf.shares)
    if pending:
        yield _block(pending, length(pending[0]), always)


def _block(leaves: Sequence[LeafPatterns], k: int, always: int) -> Block:
    count, most = len(leaves), len(leaves[0].shares)
    conditions, players = np.full((count, k), always), np.full((count, k), -1)
    patterns, shares = np.ones((count, most, k), bool), np.zeros((count, most))
    for i, leaf in enumerate(leaves):
        pattern_count, condition_count = leaf.patterns.shape
        conditions[i, :condition_count], players[i, :condition_count] = leaf.numbers, leaf.players
        patterns[i, :pattern_count, :condition_count], shares[i, :pattern_count] = leaf.patterns, leaf.shares
    return Block(conditions, np.array([leaf.row for leaf in leaves]), players, patterns, shares)


def coalition_shares(k: int) -> np.ndarray:
    """Return p! n! / (p + n)! for p and n up to k, flattened from [k + 1, k + 1], with a 0 at the end."""
    logs = np.array([lgamma(i + 1) for i in range(2 * k + 1)])
    p, n = np.ogrid[: k + 1, : k + 1]
    return np.append(np.exp(logs[p] + logs[n] - logs[p + n]), 0)
