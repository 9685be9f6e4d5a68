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
from functools import lru_cache, reduce
from itertools import combinations, pairwise
from math import prod

import numpy as np

from rationale.errors import UnsupportedModelError
from rationale.schema.machine import format_bytes
from rationale.trees.ensemble import Ensemble
from rationale.trees.groups import (
    MOST_STATES,
    FeatureBounds,
    LeafGroup,
    Tree,
    TreeLeaf,
    grouped_trees,
    unpack,
)
from rationale.trees.leaves import leaf_interactions, leaf_values

MOST_LEAVES = 1 << 16  # of all trees
MOST_LEAVES_OF_TREE = 1 << 12
MOST_BYTES = 256 << 20  # of all tables
_AT_ONCE = 1 << 16  # patterns of a batch of leaves: a core's cache holds them
_PREPARED = 1 << 20  # shares of patterns, and patterns of references, that wait for a batch
_SHAPES = 32  # of tables, whose rows' states are kept
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
                f"{subject} {count} leaves, and Shapley values as tables are made for {most} at most. Train "
                "with fewer or smaller trees (max_depth, num_leaves), or take shap.TreeExplainer."
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
        f"{message}: a graph holds at most {format_bytes(MOST_BYTES)} in all, and {MOST_STATES} rows of each "
        "table (leaves on 12 features). Train with a max_depth (6 to 8), or with fewer trees, or take "
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
    shares = np.atleast_2d(np.full(len(references), 1 / len(references)) if weights is None else weights)
    running = np.concatenate([[0], np.cumsum(shares[0])])  # added one by one, as bincount adds weights
    satisfied, conditions = satisfied_conditions(tree, [(leaf, p) for _, leaf, p in played], references)
    sizes = [len(players) for _, _, players in played]
    steps = [1 << i for size in sizes for i in reversed(range(size))]
    numbers = [condition for of_leaf in conditions for condition in of_leaf]
    factors = np.zeros((len(played), len(satisfied)), np.float32)  # codes are below 2^24: exact
    factors[np.repeat(np.arange(len(played)), sizes), numbers] = steps
    patterns, at_once = list[np.ndarray](), max(1, _PREPARED // len(references))
    for first in range(0, len(played), at_once):
        part = factors[first : first + at_once]
        ends = np.cumsum([1 << size for size in sizes[first : first + at_once]])
        starts = np.concatenate([[0], ends[:-1]])
        codes = ((part @ satisfied).astype(np.int64) + starts[:, None]).reshape(-1)
        if weights is None:
            counts = running[np.bincount(codes, minlength=ends[-1])][None]
        else:
            counts = np.stack([np.bincount(codes, np.tile(share, len(part)), ends[-1]) for share in shares])
        patterns += np.split(counts, ends[:-1], axis=1)
    return patterns


def satisfied_conditions(
    tree: Tree, leaves: Sequence[tuple[TreeLeaf, Players]], references: np.ndarray
) -> tuple[np.ndarray, list[list[int]]]:
    """Return the conditions that references satisfy, and which ones a leaf's players have.

    Returns:
        [conditions, K] float32, 0 or 1, and for each leaf the index of a condition for each player.
    """
    if not leaves:
        return np.zeros((0, len(references)), np.float32), []
    conditions: dict[tuple[tuple[int, int], ...], int] = {}
    of_leaves = [
        [
            conditions.setdefault(tuple([(f, leaf.satisfied[f]) for f in features]), len(conditions))
            for features in players.values()
        ]
        for leaf, players in leaves
    ]
    pieces = {f: bounds.pieces(references[:, f]) for f, bounds in tree.bounds.items()}
    parts = [part for condition in conditions for part in condition]
    masks = unpack([mask for _, mask in parts], max(bounds.count for bounds in tree.bounds.values()))
    tests = [m.take(pieces[f]) for (f, _), m in zip(parts, masks.astype(np.float32), strict=True)]
    firsts = np.cumsum([0, *(len(condition) for condition in conditions)])[:-1]
    return np.multiply.reduceat(np.stack(tests), firsts, axis=0), of_leaves


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
        """Fill the tables of groups.

        Args:
            leaves: all leaves of the groups, each with the share [W, 2^k] of each pattern of its players.
        """
        transform = leaf_interactions if self.units.pairs else leaf_values
        by_count: dict[int, list[tuple[_Played, np.ndarray]]] = {}
        for played, patterns in leaves:
            by_count.setdefault(len(played[2]), []).append((played, patterns))
        by_group: dict[int, list[tuple[_Played, np.ndarray]]] = {}
        for k, same_size in sorted(by_count.items()):
            step = max(1, _AT_ONCE >> k)
            for i in range(0, len(same_size), step):
                batch = same_size[i : i + step]
                shares = np.stack([patterns for _, patterns in batch])
                transformed = transform(shares.reshape(-1, 1 << k)).reshape(*shares.shape[:2], -1, 1 << k)
                for (played, _), unit_values in zip(batch, transformed, strict=True):
                    by_group.setdefault(id(played[0]), []).append((played, unit_values))
        for members in by_group.values():
            self._fill(members[0][0][0], members)

    def _fill(self, group: LeafGroup, leaves: Sequence[tuple[_Played, np.ndarray]]) -> None:
        """Fill the table of a group with its leaves' values [W, units, 2^k]."""
        columns = self.columns[id(group)]
        table = np.zeros((len(columns), group.rows))
        patterns = _patterns_of_rows(group, [played for played, _ in leaves])
        for ((_, leaf, players), unit_values), pattern in zip(leaves, patterns, strict=True):
            units = self.units.of_players(players)
            for target, value in enumerate(self.values[leaf.row].tolist()):
                if not value:
                    continue
                added = (value * unit_values[target % len(unit_values)]).take(pattern, axis=1)
                for unit, numbers in zip(units, added, strict=True):
                    column = table[columns[target, unit]]
                    column += numbers
        self.tables[id(group)][:] = table.T

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


def _patterns_of_rows(group: LeafGroup, leaves: Sequence[_Played]) -> Iterator[np.ndarray]:
    """Yield for each leaf the pattern of its players in each row of its group's table."""
    satisfied = [
        [
            bits[feature] if feature in bits and leaf.satisfied[feature] >> piece & 1 else 0
            for feature, firsts in group.first_pieces.items()
            for piece in firsts
        ]
        for _, leaf, players in leaves
        for bits in (_bits_of_features(players),)
    ]
    codes = np.array(satisfied, float) @ _states_of_rows(tuple(group.size.values()))
    for code, (_, leaf, players) in zip(codes.astype(np.int64), leaves, strict=True):
        if len(players) == len(leaf.satisfied):
            yield code
            continue
        bits, pattern = _bits_of_features(players), np.zeros_like(code)
        for features in players.values():
            all_of = sum(bits[f] for f in features)
            pattern = 2 * pattern + (code & all_of == all_of)
        yield pattern


def _bits_of_features(players: Players) -> dict[int, int]:
    """Return a bit for each feature; the first has the highest."""
    features = [f for of_player in players.values() for f in of_player]
    return {f: 1 << i for i, f in enumerate(reversed(features))}


@lru_cache(_SHAPES)
def _states_of_rows(sizes: tuple[int, ...]) -> np.ndarray:
    """Return [Σ sizes, rows]: 1 if a feature has a state in a row of a table."""
    states = np.indices(sizes).reshape(len(sizes), -1)
    rows = [of_feature == np.arange(size)[:, None] for of_feature, size in zip(states, sizes, strict=True)]
    return np.concatenate(rows, dtype=float)


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
