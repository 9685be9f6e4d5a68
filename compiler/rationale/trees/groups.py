"""Groups of leaves that share a table, whose row is selected by the conditions that a row of data satisfies.

A group distinguishes only those states of a feature that its leaves distinguish. Sibling subtrees become one
group, bottom-up, if one table is at most twice as large as two: a row then needs a single lookup for both.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

import numpy as np

from rationale.errors import InvalidReferencesError
from rationale.trees.ensemble import Ensemble

MOST_STATES = 4096  # of a group
_REMEMBERED = 1 << 14  # states of pieces, which many leaves share
_GROWTH = 2  # factor by which a merge may enlarge tables: fewer groups are worth it


@dataclass(frozen=True, eq=False)
class FeatureBounds:
    """The bounds at which one tree's splits divide a feature: pieces 0 … len(numbers), then NaN."""

    numbers: np.ndarray
    strict: np.ndarray

    @property
    def count(self) -> int:
        """The number of pieces, NaN included."""
        return len(self.numbers) + 2

    def index(self) -> dict[tuple[float, bool], int]:
        """Return the place of each bound."""
        return {
            pair: i for i, pair in enumerate(zip(self.numbers.tolist(), self.strict.tolist(), strict=True))
        }

    def pieces(self, x: np.ndarray) -> np.ndarray:
        """Return the piece of each number."""
        reached = np.searchsorted(self.numbers[~self.strict], x, "right")
        passed = np.searchsorted(self.numbers[self.strict], x, "left")
        return np.where(np.isnan(x), self.count - 1, reached + passed)


@dataclass(frozen=True, eq=False)
class TreeLeaf:
    """A path from a root to a leaf.

    Attributes:
        row: the leaf's row of the ensemble's weights.
        satisfied: the pieces in which its conditions hold, by feature: bit i is set for piece i.
        shares: the product of the cover shares that go this way at its splits, by feature; empty without
            covers.
    """

    row: int
    satisfied: dict[int, int]
    shares: dict[int, float]


@dataclass(frozen=True, eq=False)
class LeafGroup:
    """Leaves of one tree that share a table.

    Attributes:
        states: the state of each piece, by feature; that of piece 0 is 0.
        size: the number of states of each feature.
    """

    states: dict[int, tuple[int, ...]]
    size: dict[int, int]
    leaves: tuple[TreeLeaf, ...]

    @cached_property
    def first_pieces(self) -> dict[int, list[int]]:
        """Return the first piece of each state of each feature."""
        return {
            feature: [s.index(i) for i in range(self.size[feature])] for feature, s in self.states.items()
        }

    @cached_property
    def rows(self) -> int:
        return prod(self.size.values())

    @property
    def cost(self) -> int:
        return self.rows * len(self.states)


@dataclass(frozen=True, eq=False)
class Tree:
    """The groups of one tree, and the bounds of its features."""

    bounds: dict[int, FeatureBounds]
    groups: tuple[LeafGroup, ...]


def grouped_trees(ensemble: Ensemble, used: np.ndarray) -> Iterator[Tree]:
    """Yield one tree after the other.

    Args:
        used: [leaves], whether a leaf contributes to an explained target.

    Raises:
        InvalidReferencesError: if covers leave out a split.
    """
    nodes = _Nodes(ensemble)
    for root in ensemble.roots.tolist():
        bounds = nodes.bounds_below(root)
        yield Tree(bounds, tuple(_leaf_groups(ensemble, nodes, root, bounds, used)))


class _Nodes:
    """The nodes of an ensemble as lists: Python reads a number of these much faster than one of an array."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.dtype = ensemble.bounds.dtype
        self.feature, self.leaf = ensemble.feature.tolist(), ensemble.leaf.tolist()
        self.yes, self.no = ensemble.yes.tolist(), ensemble.no.tolist()
        self.below, self.missing = ensemble.below.tolist(), ensemble.missing.tolist()
        self._first = ensemble.first.tolist()
        self._bounds = list(zip(ensemble.bounds.tolist(), ensemble.strict.tolist(), strict=True))

    def bounds_of(self, node: int) -> list[tuple[float, bool]]:
        return self._bounds[self._first[node] : self._first[node + 1]]

    def bounds_below(self, root: int) -> dict[int, FeatureBounds]:
        """Return the bounds of the splits that are reached from a root, by feature."""
        seen, pending, bounds = {root}, [root], dict[int, set[tuple[float, bool]]]()
        while pending:
            node = pending.pop()
            if (feature := self.feature[node]) >= 0:
                bounds.setdefault(feature, set()).update(self.bounds_of(node))
                new = {self.yes[node], self.no[node]} - seen
                seen |= new
                pending += new
        return {feature: self._sorted(bounds[feature]) for feature in sorted(bounds)}

    def _sorted(self, bounds: set[tuple[float, bool]]) -> FeatureBounds:
        numbers, strict = zip(*sorted(bounds), strict=True) if bounds else ((), ())
        return FeatureBounds(np.array(numbers, self.dtype), np.array(strict, bool))


def _pieces_that_pass(nodes: _Nodes, node: int, index: dict[tuple[float, bool], int]) -> int:
    """Return the pieces in which the split is passed; the highest is NaN.

    Args:
        index: the place of each bound of the split's feature.
    """
    pieces = (2 << len(index)) - 1  # all but NaN
    passing = pieces if nodes.below[node] else 0
    for bound in set(nodes.bounds_of(node)):
        passing ^= pieces >> (index[bound] + 1) << (index[bound] + 1)
    return passing | (pieces + 1 if nodes.missing[node] else 0)


def _leaf_groups(
    ensemble: Ensemble, nodes: _Nodes, root: int, bounds: dict[int, FeatureBounds], used: np.ndarray
) -> Iterator[LeafGroup]:
    """Yield groups depth first; the groups of both sides of a split are merged when both exist."""
    pending: list[tuple[int, dict[int, int], dict[int, float]] | None] = [(root, {}, {})]
    index = {feature: of_feature.index() for feature, of_feature in bounds.items()}
    built: list[list[LeafGroup]] = []
    while pending:
        step = pending.pop()
        if step is None:
            above, below = built.pop(), built.pop()
            merged = _merge(below[0], above[0]) if len(below) == len(above) == 1 else None
            built.append([*below, *above] if merged is None else [merged])
            continue
        node, satisfied, shares = step
        feature = nodes.feature[node]
        if feature < 0:
            row = nodes.leaf[node]
            leaf = TreeLeaf(row, satisfied, shares)
            built.append([_leaf_group(leaf, bounds)] if satisfied and used[row] else [])
            continue
        every = (4 << len(index[feature])) - 1
        passing = _pieces_that_pass(nodes, node, index[feature])
        before = satisfied.get(feature, every)
        pending.append(None)  # then merge the groups of both sides
        share = _share(ensemble, node)
        sides = (nodes.yes[node], passing, share), (nodes.no[node], every ^ passing, 1 - share)
        reached = [
            (to, {**satisfied, feature: passed & before}, _shares_after(ensemble, shares, feature, portion))
            for to, passed, portion in sides
            if passed & before or (portion > 0 and ensemble.share is not None)
        ]
        built += [[]] * (2 - len(reached))  # no number takes the other side
        pending += reached
    yield from built.pop()


def _shares_after(
    ensemble: Ensemble, shares: dict[int, float], feature: int, portion: float
) -> dict[int, float]:
    if ensemble.share is None:
        return shares
    return {**shares, feature: shares.get(feature, 1.0) * portion}


def _share(ensemble: Ensemble, node: int) -> float:
    """Return the share of the split's cover that passes it; 0 if the game uses no covers."""
    share = 0.0 if ensemble.share is None else float(ensemble.share[node])
    if np.isnan(share):
        raise InvalidReferencesError(
            f"no row of the covers reaches node {node} of the trees (counted from 0), a split by feature "
            f"{ensemble.feature[node]}: how often it is passed is unknown. Give more rows, best those of the "
            "training, or references instead of covers."
        )
    return share


def _leaf_group(leaf: TreeLeaf, bounds: dict[int, FeatureBounds]) -> LeafGroup:
    states = {feature: states_of(pieces, bounds[feature].count) for feature, pieces in leaf.satisfied.items()}
    return LeafGroup(states, {feature: max(s) + 1 for feature, s in states.items()}, (leaf,))


@lru_cache(_REMEMBERED)
def states_of(satisfied: int, pieces: int) -> tuple[int, ...]:
    """Return the states of pieces of which a leaf's condition distinguishes two; that of piece 0 is 0."""
    first = satisfied & 1
    return tuple((satisfied >> i & 1) ^ first for i in range(pieces))


@lru_cache(_REMEMBERED)
def _join(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Return a state for each pair of states of a piece, numbered as pieces have them, and their number."""
    numbers: dict[tuple[int, int], int] = {}
    states = tuple([numbers.setdefault(pair, len(numbers)) for pair in zip(a, b, strict=True)])
    return states, len(numbers)


def _merge(a: LeafGroup, b: LeafGroup) -> LeafGroup | None:
    """Merge two groups into one; return None if its table would be too large."""
    limit = min(MOST_STATES, _GROWTH * (a.cost + b.cost))
    size = {**a.size, **b.size}
    shared = [feature for feature in a.size if feature in b.size]
    for feature in shared:
        size[feature] = max(a.size[feature], b.size[feature])
    rows = prod(size.values())
    if rows > limit:
        return None
    states = {**a.states, **b.states}
    for feature in shared:
        rows //= size[feature]
        states[feature], size[feature] = _join(a.states[feature], b.states[feature])
        rows *= size[feature]
        if rows > limit:
            return None
    if rows * len(size) > _GROWTH * (a.cost + b.cost):
        return None
    features = sorted(size)
    return LeafGroup({f: states[f] for f in features}, {f: size[f] for f in features}, (*a.leaves, *b.leaves))


def unpack(masks: Sequence[int], pieces: int) -> np.ndarray:
    """Return [masks, pieces], the bits of sets of pieces."""
    width = -(-pieces // 8)
    held = np.frombuffer(b"".join(mask.to_bytes(width, "little") for mask in masks), np.uint8)
    return np.unpackbits(held.reshape(-1, width), axis=1, count=pieces, bitorder="little")
