"""Shapley values of a tree ensemble, as tables that hold them for every row.

There are two games (Lundberg et al., "From local explanations to global understanding with explainable AI for
trees", 2020). Interventional: a coalition's features come from the row, all others from a reference, and its
worth is the mean of the ensemble's scores over the references. Path-dependent: at a split by a feature
outside the coalition a row goes both ways, by the shares of the cover ("Consistent individualized feature
attribution for tree ensembles", 2018, algorithm 1). Both are a sum over leaves, each a function of the
conditions that a row satisfies.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from itertools import combinations, pairwise
from math import prod

import numpy as np

from rationale.errors import UnsupportedModelError
from rationale.schema.machine import format_bytes
from rationale.trees.ensemble import Ensemble
from rationale.trees.groups import MOST_STATES, FeatureBounds, LeafGroup, Tree, TreeLeaf, grouped_trees
from rationale.trees.leaves import leaf_interactions, leaf_values

MOST_LEAVES = 1 << 16  # of all trees
MOST_LEAVES_OF_TREE = 1 << 12
MOST_BYTES = 256 << 20  # of all tables
_AT_ONCE = 1 << 18  # numbers of a batch of leaves: a core's cache holds them
_PREPARED = 1 << 20  # shares of patterns, and patterns of references, that wait for a batch
FLOAT = 4  # bytes
Players = dict[int, list[int]]  # with the features of each
Unit = tuple[int, ...]  # a player, or two
_Played = tuple[LeafGroup, TreeLeaf, Players]  # a leaf, its group and its players


class SplitTest(StrEnum):
    """The test of a number that a bit records."""

    REACHED = "reached"  # x ≥ bound
    REACHED_OR_MISSING = "reached or missing"
    PASSED = "passed"  # x > bound
    PASSED_OR_MISSING = "passed or missing"
    MISSING = "missing"


Bit = tuple[int, SplitTest, float]  # a feature, and the test of its number against a bound


@dataclass(frozen=True, eq=False)
class Counts:
    """Integers, each the sum of a start and the steps of the bits that it reads.

    Attributes:
        reads, steps: [counts, slots], indices in `bits`, and the numbers to add if these are 1.
        starts: [counts].
    """

    bits: tuple[Bit, ...]
    reads: np.ndarray
    steps: np.ndarray
    starts: np.ndarray


class CountsBuilder:
    """Counts under construction."""

    def __init__(self) -> None:
        self.bits: dict[Bit, int] = {}
        self.slots: list[Sequence[tuple[Bit, int]]] = []
        self.starts: list[int] = []

    def add(self, slots: Sequence[tuple[Bit, int]], start: int) -> int:
        """Add a count; return its index."""
        for bit, _ in slots:
            self.bits.setdefault(bit, len(self.bits))
        self.slots.append(slots)
        self.starts.append(start)
        return len(self.slots) - 1

    def build(self) -> Counts:
        shape = len(self.slots), max(map(len, self.slots), default=0)
        reads, steps = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for i, count_slots in enumerate(self.slots):
            reads[i, : len(count_slots)] = [self.bits[bit] for bit, _ in count_slots]
            steps[i, : len(count_slots)] = [step for _, step in count_slots]
        return Counts(tuple(self.bits), reads, steps, np.array(self.starts))


@dataclass(frozen=True, eq=False)
class Tables:
    """The attributions [targets, units] of a row as sums of numbers, a few from each group of leaves.

    The numbers of a group follow each other.

    Attributes:
        units: single players, or the pairs of players that meet on a path to a leaf.
        first: the index of each group's first number.
        numbers: float64; the last is 0, and the only number of the last group.
        group, within, column: [Σ numbers of each group], a number's group, its offset from the group's first
            number, and the attribution to which it is added.
    """

    targets: int
    units: tuple[tuple[int, ...], ...]
    first: Counts
    numbers: np.ndarray
    group: np.ndarray
    within: np.ndarray
    column: np.ndarray


def build_tables(
    ensemble: Ensemble,
    values: np.ndarray,
    references: np.ndarray | None,
    weights: np.ndarray | None,
    player_of: np.ndarray,
    *,
    pairs: bool = False,
    trees: Sequence[Tree] | None = None,
) -> Tables:
    """Build the tables of an ensemble.

    Args:
        values: [leaves, targets], a leaf's contribution to each target.
        references: [K, features], NaN for a missing value; None for the path-dependent game, by the covers
            of the ensemble.
        weights: [K] of sum 1, or [targets, K] with weights for each target; None for equal weights.
        player_of: [features], the player 0 … P − 1 of each feature: a player's features come from the row, or
            from a reference, all together.
        pairs: the interactions of two players, half of each, instead of the players' Shapley values.
        trees: the ensemble's trees with only some of their groups; None for all.

    Raises:
        UnsupportedModelError: if there are too many leaves, or tables would be too large; says how large.
        InvalidReferencesError: if covers leave out a split.
    """
    if references is not None:
        ensemble = replace(ensemble, share=None)
    trees = trees_of(ensemble, values) if trees is None else trees
    units = Units(player_of, pairs)
    _check_sizes(trees, values, units)
    layout = _TablesBuilder(trees, values, units)
    waiting: list[tuple[_Played, np.ndarray]] = []
    size = 0
    for tree in trees:
        played = [
            (group, leaf, units.players(leaf.satisfied)) for group in tree.groups for leaf in group.leaves
        ]
        if references is None:
            patterns = [_cover_patterns(leaf, players) for _, leaf, players in played]
        else:
            patterns = _reference_patterns(tree, played, references, weights)
        waiting += zip(played, patterns, strict=True)
        size += sum(p.size for p in patterns)
        if size > _PREPARED:
            layout.add(waiting)
            waiting, size = [], 0
    layout.add(waiting)
    return layout.build()


def trees_of(ensemble: Ensemble, values: np.ndarray) -> list[Tree]:
    """Return the trees with their groups; raise UnsupportedModelError if there are too many leaves."""
    _check_leaves(ensemble)
    return list(grouped_trees(ensemble, (values != 0).any(axis=1)))


def _check_leaves(ensemble: Ensemble) -> None:
    leaf_counts = ensemble.leaves_below()[ensemble.roots]
    for count, most, subject in (
        (int(leaf_counts.sum()), MOST_LEAVES, f"{len(leaf_counts)} trees have"),
        (int(leaf_counts.max()), MOST_LEAVES_OF_TREE, "the largest tree has"),
    ):
        if count > most:
            raise UnsupportedModelError(
                f"{subject} {count} leaves, but tables of Shapley values support {most} at most. Train "
                "with fewer or smaller trees (max_depth, num_leaves), or use shap.TreeExplainer."
            )


def _check_sizes(trees: Sequence[Tree], values: np.ndarray, units: "Units") -> None:
    groups = [group for tree in trees for group in tree.groups]
    deep = [group for group in groups if group.rows > MOST_STATES]
    size = sum(group.rows * len(columns_of(group, values, units)) for group in groups) * FLOAT
    if not deep and size <= MOST_BYTES:
        return
    leaves = sum(len(group.leaves) for group in groups)
    message = (
        f"{leaves} leaves in {len(trees)} trees make {len(groups)} tables of {format_bytes(size)} together"
    )
    if deep:
        widest = max(len(group.states) for group in deep)
        message += f"; {len(deep)} leaves depend on up to {widest} features each, 2^{widest} rows of a table"
    raise UnsupportedModelError(
        f"{message}: a graph can hold {format_bytes(MOST_BYTES)} in all, and {MOST_STATES} rows of each "
        "table (leaves on 12 features). Train with a max_depth (6 to 8) or with fewer trees, or use "
        "shap.TreeExplainer."
    )


class Units:
    """The units that have a column: players, or pairs of players."""

    def __init__(self, player_of: np.ndarray, pairs: bool) -> None:
        self.player_of, self.pairs = player_of, pairs
        self._player_list = player_of.tolist()

    def players(self, features: Iterable[int]) -> Players:
        """Return the players of features, with their features, in order."""
        players: Players = {}
        for feature in features:
            players.setdefault(self._player_list[feature], []).append(feature)
        return players

    def of_players(self, players: Iterable[int]) -> list[Unit]:
        """Return the units of players, in the order of `leaf_values` or `leaf_interactions`."""
        if self.pairs:
            return [(min(two), max(two)) for two in combinations(players, 2)]
        return [(player,) for player in players]

    def of_group(self, group: LeafGroup) -> list[Unit]:
        if not self.pairs:
            return self.of_players(self.players(group.states))
        leaves = (self.of_players(self.players(leaf.satisfied)) for leaf in group.leaves)
        return sorted({unit for units in leaves for unit in units})

    def all_units(self, trees: Sequence[Tree]) -> tuple[Unit, ...]:
        if not self.pairs:
            return tuple((player,) for player in range(int(self.player_of.max()) + 1))
        groups = [group for tree in trees for group in tree.groups]
        return tuple(sorted({unit for group in groups for unit in self.of_group(group)}))


def columns_of(group: LeafGroup, values: np.ndarray, units: Units) -> list[tuple[int, Unit]]:
    """Return target and unit of each column of a group's table."""
    rows = [leaf.row for leaf in group.leaves]
    if values.shape[1] == 1:
        targets = [0] * any(values[row, 0] != 0 for row in rows)
    else:
        targets = np.flatnonzero((values[rows] != 0).any(axis=0)).tolist()
    return [(t, unit) for t in targets for unit in units.of_group(group)]


def _reference_patterns(
    tree: Tree, played: Sequence[_Played], references: np.ndarray, weights: np.ndarray | None
) -> list[np.ndarray]:
    """Return the share of the references for each pattern of players whose conditions they satisfy.

    Returns:
        An array [W, 2^k] for each leaf: W is 1 for all targets together, or the number of targets.
    """
    pieces = {f: bounds.pieces(references[:, f]) for f, bounds in tree.bounds.items()}
    shares = np.atleast_2d(np.full(len(references), 1 / len(references)) if weights is None else weights)
    conditions: dict[tuple[tuple[int, tuple[bool, ...]], ...], int] = {}
    steps = [
        [
            (conditions.setdefault(tuple((f, leaf.satisfied[f]) for f in features), len(conditions)), 1 << i)
            for i, features in enumerate(reversed(players.values()))
        ]
        for _, leaf, players in played
    ]
    satisfied = np.array(
        [
            reduce(np.logical_and, [np.array(where)[pieces[feature]] for feature, where in condition])
            for condition in conditions
        ],
        np.float32,
    ).reshape(-1, len(references))
    patterns, at_once = [], max(1, _PREPARED // len(references))
    for first in range(0, len(played), at_once):
        part = steps[first : first + at_once]
        factors = np.zeros((len(part), len(conditions)), np.float32)  # codes are below 2^24: exact
        for i, leaf_steps in enumerate(part):
            for condition, step in leaf_steps:
                factors[i, condition] += step
        ends = np.cumsum([1 << len(leaf_steps) for leaf_steps in part])
        starts = np.concatenate([[0], ends[:-1]])
        codes = ((factors @ satisfied).astype(np.int64) + starts[:, None]).reshape(-1)
        counts = [np.bincount(codes, np.tile(share, len(part)), minlength=ends[-1]) for share in shares]
        patterns += np.split(np.stack(counts), ends[:-1], axis=1)
    return patterns


def _cover_patterns(leaf: TreeLeaf, players: Players) -> np.ndarray:
    """Return the share of each pattern by the covers: each player goes the leaf's way independently."""
    shares = (prod(leaf.shares[f] for f in features) for features in players.values())
    return reduce(np.kron, [np.array([1 - share, share]) for share in shares])[None]


class _TablesBuilder:
    """The positions of the groups' tables."""

    def __init__(self, trees: Sequence[Tree], values: np.ndarray, units: Units) -> None:
        self.values, self.units, self.targets = values, units, values.shape[1]
        self.all_units = units.all_units(trees)
        self.position = {unit: i for i, unit in enumerate(self.all_units)}
        members = [(tree, group) for tree in trees for group in tree.groups]
        self.columns = {id(g): {c: i for i, c in enumerate(columns_of(g, values, units))} for _, g in members}
        sizes = [group.rows * len(self.columns[id(group)]) for _, group in members]
        starts = np.cumsum([0, *sizes]).tolist()
        self.numbers = np.zeros(starts[-1] + 1)
        self.tables = {
            id(group): self.numbers[start : start + size].reshape(group.rows, -1)
            for (_, group), start, size in zip(members, starts, sizes, strict=False)
        }
        self.counting = CountsBuilder()
        for (tree, group), start in zip(members, starts, strict=False):
            self.counting.add(list(self._slots(tree, group)), start)
        self.counting.add((), starts[-1])

    def _slots(self, tree: Tree, group: LeafGroup) -> Iterator[tuple[Bit, int]]:
        """Yield the bits that make up a row's index in the table, and the numbers that each skips."""
        stride = group.rows * len(self.columns[id(group)])
        for feature, states in group.states.items():
            stride //= group.size[feature]
            for bit, step in bits_of(feature, states, tree.bounds[feature]):
                yield bit, step * stride

    def add(self, leaves: Sequence[tuple[_Played, np.ndarray]]) -> None:
        """Add leaves to the tables of their groups.

        Args:
            leaves: each with the share [W, 2^k] of each pattern of its players.
        """
        transform = leaf_interactions if self.units.pairs else leaf_values
        by_count: dict[int, list[tuple[_Played, np.ndarray]]] = {}
        for played, patterns in leaves:
            by_count.setdefault(len(played[2]), []).append((played, patterns))
        for k, same_size in sorted(by_count.items()):
            step = max(1, _AT_ONCE // (k ** (1 + self.units.pairs) << k))
            for i in range(0, len(same_size), step):
                batch = same_size[i : i + step]
                shares = np.stack([patterns for _, patterns in batch])
                transformed = transform(shares.reshape(-1, 1 << k)).reshape(*shares.shape, -1)
                for ((group, leaf, players), _), unit_values in zip(batch, transformed, strict=True):
                    self._add(group, leaf, players, unit_values)

    def _add(self, group: LeafGroup, leaf: TreeLeaf, players: Players, leaf_values: np.ndarray) -> None:
        """Add the values [W, 2^k, units] of a leaf's units to its group's table."""
        table, columns = self.tables[id(group)], self.columns[id(group)]
        units, pattern = self.units.of_players(players), _patterns_of_rows(group, leaf, players)
        for target in np.flatnonzero(self.values[leaf.row]).tolist():
            values_by_pattern = self.values[leaf.row, target] * leaf_values[target % len(leaf_values)]
            table_columns = [columns[target, unit] for unit in units]
            added = values_by_pattern.take(pattern, axis=0)
            if table_columns == list(range(table.shape[1])):
                table += added
            else:
                table[:, table_columns] += added

    def build(self) -> Tables:
        columns = [column for group_columns in self.columns.values() for column in group_columns]
        widths = [len(group_columns) for group_columns in self.columns.values()]
        return Tables(
            self.targets,
            self.all_units,
            self.counting.build(),
            self.numbers,
            group=np.repeat(np.arange(len(widths)), widths),
            within=np.concatenate([np.arange(width) for width in [0, *widths]]),
            column=np.array([t * len(self.all_units) + self.position[unit] for t, unit in columns], np.int64),
        )


def _patterns_of_rows(group: LeafGroup, leaf: TreeLeaf, players: Players) -> np.ndarray:
    """Return the pattern of a leaf's players in each row of its group's table."""
    last = len(leaf.satisfied) - 1
    shift = {f: last - i for i, f in enumerate(f for features in players.values() for f in features)}
    code = np.zeros((1, 1), np.int64)
    for feature, pieces in group.first_pieces.items():
        if feature in shift:
            satisfied, bit = leaf.satisfied[feature], 1 << shift[feature]
            code = (code + np.array([bit * satisfied[piece] for piece in pieces])).reshape(-1, 1)
        else:
            code = np.repeat(code, len(pieces), axis=0)
    code = code[:, 0]
    if len(players) == len(shift):  # each player is a feature
        return code
    pattern = np.zeros_like(code)
    for features in players.values():
        all_of = sum(1 << shift[f] for f in features)
        pattern = 2 * pattern + (code & all_of == all_of)
    return pattern


def bits_of(feature: int, states: Sequence[int], bounds: FeatureBounds) -> Iterator[tuple[Bit, int]]:
    """Yield the tests of a feature's number that determine its state, and the number that each adds.

    NaN passes as many bounds from state 0 as lead to its own state, or has a bit of its own.
    """
    *pieces, missing = states
    is_alike = missing in pieces
    passed = pieces.index(missing) if is_alike else 0
    for i, (before, after) in enumerate(pairwise(pieces)):
        if before != after:
            strict, with_missing = bool(bounds.strict[i]), i < passed
            yield (feature, _TESTS[strict, with_missing], float(bounds.numbers[i])), after - before
    if not is_alike:
        yield (feature, SplitTest.MISSING, 0.0), missing


_TESTS = {
    (False, False): SplitTest.REACHED,
    (False, True): SplitTest.REACHED_OR_MISSING,
    (True, False): SplitTest.PASSED,
    (True, True): SplitTest.PASSED_OR_MISSING,
}
