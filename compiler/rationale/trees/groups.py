"""Groups of leaves that share a table, whose row is selected by the conditions that a row of data satisfies.

A group distinguishes only those states of a feature that its leaves distinguish. Sibling subtrees become one
group, bottom-up, if one table is at most twice as large as two: a row then needs a single lookup for both.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from operator import and_

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

    def index(self) -> dict[tuple[float, bool], int]:
        """Return the place of each bound."""
        return {
            pair: i for i, pair in enumerate(zip(self.numbers.tolist(), self.strict.tolist(), strict=True))
        }

    def pieces(self, x: np.ndarray) -> np.ndarray:
        """Return the piece of each number."""
        reached = np.searchsorted(self.numbers[~self.strict], x, "right")
        passed = np.searchsorted(self.numbers[self.strict], x, "left")
        return np.where(np.isnan(x), len(self.numbers) + 1, reached + passed)


@dataclass(frozen=True, eq=False)
class TreeLeaf:
    """A path from a root to a leaf.

    Attributes:
        row: the leaf's row of the ensemble's weights.
        satisfied: the pieces in which its conditions hold, by feature.
        shares: the product of the cover shares that go this way at its splits, by feature.
    """

    row: int
    satisfied: dict[int, tuple[bool, ...]]
    shares: dict[int, float]


@dataclass(frozen=True, eq=False)
class LeafGroup:
    """Leaves of one tree that share a table.

    Attributes:
        states: the state of each piece, by feature; that of piece 0 is 0.
    """

    states: dict[int, tuple[int, ...]]
    leaves: tuple[TreeLeaf, ...]

    @cached_property
    def size(self) -> dict[int, int]:
        """Return the number of states of each feature."""
        return {feature: max(states) + 1 for feature, states in self.states.items()}

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


def _pieces_that_pass(nodes: _Nodes, node: int, index: dict[tuple[float, bool], int]) -> tuple[bool, ...]:
    """Return whether the split is passed in each piece, and for NaN.

    Args:
        index: the place of each bound of the split's feature.
    """
    passing = [nodes.below[node]] * (len(index) + 1)
    for bound in set(nodes.bounds_of(node)):
        first = index[bound] + 1
        passing[first:] = [not passed for passed in passing[first:]]
    return (*passing, nodes.missing[node])


def _leaf_groups(
    ensemble: Ensemble, nodes: _Nodes, root: int, bounds: dict[int, FeatureBounds], used: np.ndarray
) -> Iterator[LeafGroup]:
    """Yield groups depth first; the groups of both sides of a split are merged when both exist."""
    pending: list[tuple[int, dict[int, tuple[bool, ...]], dict[int, float]] | None] = [(root, {}, {})]
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
            built.append([_leaf_group(TreeLeaf(row, satisfied, shares))] if satisfied and used[row] else [])
            continue
        passing = _pieces_that_pass(nodes, node, index[feature])
        failing = tuple(not passed for passed in passing)
        before = satisfied.get(feature)
        pending.append(None)  # then merge the groups of both sides
        share = _share(ensemble, node)
        sides = (nodes.yes[node], passing, share), (nodes.no[node], failing, 1 - share)
        steps = [(to, p if before is None else tuple(map(and_, p, before)), part) for to, p, part in sides]
        reached = [
            (to, {**satisfied, feature: passed}, {**shares, feature: shares.get(feature, 1.0) * portion})
            for to, passed, portion in steps
            if any(passed) or (portion > 0 and ensemble.share is not None)
        ]
        built += [[]] * (2 - len(reached))  # no number takes the other side
        pending += reached
    yield from built.pop()


def _share(ensemble: Ensemble, node: int) -> float:
    """Return the share of the split's cover that passes it; 0 if the game uses no covers."""
    share = 0.0 if ensemble.share is None else float(ensemble.share[node])
    if np.isnan(share):
        raise InvalidReferencesError(
            f"no row of the covers reaches node {node} of the trees (counted from 0), a split by feature "
            f"{ensemble.feature[node]}. Give more rows, best the training data, or references instead of "
            "covers."
        )
    return share


def _leaf_group(leaf: TreeLeaf) -> LeafGroup:
    return LeafGroup({feature: states_of(where) for feature, where in leaf.satisfied.items()}, (leaf,))


@lru_cache(_REMEMBERED)
def states_of(satisfied: tuple[bool, ...]) -> tuple[int, ...]:
    """Return the states of pieces of which a leaf's condition distinguishes two; that of piece 0 is 0."""
    return tuple(int(where != satisfied[0]) for where in satisfied)


@lru_cache(_REMEMBERED)
def _join(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return a state for each pair of states of a piece, numbered in the order of the pieces."""
    numbers: dict[tuple[int, int], int] = {}
    return tuple(numbers.setdefault(pair, len(numbers)) for pair in zip(a, b, strict=True))


def _merge(a: LeafGroup, b: LeafGroup) -> LeafGroup | None:
    """Merge two groups into one; return None if its table would be too large."""
    limit = min(MOST_STATES, int(_GROWTH * (a.cost + b.cost)))
    features = sorted({*a.states, *b.states})
    if prod(max(a.size.get(f, 1), b.size.get(f, 1)) for f in features) > limit:
        return None
    states, rows = dict[int, tuple[int, ...]](), 1
    for feature in features:
        if feature in a.states and feature in b.states:
            states[feature] = _join(a.states[feature], b.states[feature])
        else:
            states[feature] = a.states[feature] if feature in a.states else b.states[feature]
        rows *= max(states[feature]) + 1
        if rows > limit:
            return None
    group = LeafGroup(states, (*a.leaves, *b.leaves))
    return group if group.cost <= _GROWTH * (a.cost + b.cost) else None
