"""Groups of leaves that share a table, whose row is selected by the conditions that a row of data satisfies.

A group distinguishes only those states of a feature that its leaves distinguish. Sibling subtrees become one
group, bottom-up, if one table is at most twice as large as two: a row then needs a single lookup for both.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from rationale.errors import InvalidReferencesError
from rationale.trees.ensemble import Ensemble

MOST_STATES = 4096  # of a group
_GROWTH = 2  # factor by which a merge may enlarge tables: fewer groups are worth it


@dataclass(frozen=True, eq=False)
class FeatureBounds:
    """The bounds at which one tree's splits divide a feature: pieces 0 … len(numbers), then NaN."""

    numbers: np.ndarray
    strict: np.ndarray

    @cached_property
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
    satisfied: dict[int, np.ndarray]
    shares: dict[int, float]


@dataclass(frozen=True, eq=False)
class LeafGroup:
    """Leaves of one tree that share a table.

    Attributes:
        states: the state of each piece, by feature; that of piece 0 is 0.
    """

    states: dict[int, np.ndarray]
    leaves: tuple[TreeLeaf, ...]

    @cached_property
    def size(self) -> dict[int, int]:
        """Return the number of states of each feature."""
        return {feature: int(states.max()) + 1 for feature, states in self.states.items()}

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
    for root in ensemble.roots:
        nodes = _reached(ensemble, int(root))
        bounds = {
            f: _bounds(ensemble, nodes, f) for f in np.unique(ensemble.feature[nodes]).tolist() if f >= 0
        }
        yield Tree(bounds, tuple(_leaf_groups(ensemble, int(root), bounds, used)))


def _reached(ensemble: Ensemble, root: int) -> list[int]:
    """Return the nodes of one tree."""
    seen, pending = {root}, [root]
    while pending:
        node = pending.pop()
        if ensemble.feature[node] >= 0:
            new = {int(ensemble.yes[node]), int(ensemble.no[node])} - seen
            seen |= new
            pending += new
    return sorted(seen)


def _bounds(ensemble: Ensemble, nodes: Sequence[int], feature: int) -> FeatureBounds:
    spans = [ensemble.bounds_of(n) for n in nodes if ensemble.feature[n] == feature]
    numbers = np.concatenate([ensemble.bounds[s] for s in spans])
    strict = np.concatenate([ensemble.strict[s] for s in spans])
    order = np.lexsort([strict, numbers])
    numbers, strict = numbers[order], strict[order]
    is_first = np.concatenate([[True], (numbers[1:] != numbers[:-1]) | (strict[1:] != strict[:-1])])
    return FeatureBounds(numbers[is_first], strict[is_first])


def _pieces_that_pass(ensemble: Ensemble, node: int, bounds: FeatureBounds) -> np.ndarray:
    """Return [pieces and NaN], whether the split is passed in each piece."""
    span = ensemble.bounds_of(node)
    passing = np.full(len(bounds.numbers) + 2, bool(ensemble.below[node]))
    for pair in set(zip(ensemble.bounds[span].tolist(), ensemble.strict[span].tolist(), strict=True)):
        passing[bounds.index[pair] + 1 :] ^= True
    passing[-1] = ensemble.missing[node]
    return passing


def _leaf_groups(
    ensemble: Ensemble, root: int, bounds: dict[int, FeatureBounds], used: np.ndarray
) -> Iterator[LeafGroup]:
    """Yield groups depth first; the groups of both sides of a split are merged when both exist."""
    pending: list[tuple[int, dict[int, np.ndarray], dict[int, float]] | None] = [(root, {}, {})]
    built: list[list[LeafGroup]] = []
    while pending:
        step = pending.pop()
        if step is None:
            above, below = built.pop(), built.pop()
            merged = _merge(below[0], above[0]) if len(below) == len(above) == 1 else None
            built.append([*below, *above] if merged is None else [merged])
            continue
        node, satisfied, shares = step
        feature = int(ensemble.feature[node])
        if feature < 0:
            row = int(ensemble.leaf[node])
            built.append([_leaf_group(TreeLeaf(row, satisfied, shares))] if satisfied and used[row] else [])
            continue
        passing = _pieces_that_pass(ensemble, node, bounds[feature])
        before = satisfied.get(feature)
        pending.append(None)  # then merge the groups of both sides
        share = _share(ensemble, node)
        sides = (ensemble.yes[node], passing, share), (ensemble.no[node], ~passing, 1 - share)
        steps = [(int(to), p if before is None else p & before, portion) for to, p, portion in sides]
        reached = [
            (to, {**satisfied, feature: passed}, {**shares, feature: shares.get(feature, 1.0) * portion})
            for to, passed, portion in steps
            if passed.any() or (portion > 0 and ensemble.share is not None)
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
            f"{ensemble.feature[node]}: how often it is passed is unknown. Give more rows, best those of the "
            "training, or references instead of covers."
        )
    return share


def _leaf_group(leaf: TreeLeaf) -> LeafGroup:
    return LeafGroup(
        {f: (where != where[0]).astype(np.int64) for f, where in leaf.satisfied.items()}, (leaf,)
    )


def _renumber(states: np.ndarray) -> np.ndarray:
    """Renumber the states in the order of the pieces."""
    numbers: dict[int, int] = {}
    return np.array([numbers.setdefault(state, len(numbers)) for state in states.tolist()])


def _merge(a: LeafGroup, b: LeafGroup) -> LeafGroup | None:
    """Merge two groups into one; return None if its table would be too large."""
    limit = min(MOST_STATES, int(_GROWTH * (a.cost + b.cost)))
    features = sorted({*a.states, *b.states})
    if prod(max(a.size.get(f, 1), b.size.get(f, 1)) for f in features) > limit:
        return None
    states, rows = {}, 1
    for feature in features:
        states_of_a, states_of_b = a.states.get(feature), b.states.get(feature)
        if states_of_a is not None and states_of_b is not None:
            states[feature] = _renumber(states_of_a * b.size[feature] + states_of_b)
        else:
            single_states = states_of_b if states_of_a is None else states_of_a
            assert single_states is not None
            states[feature] = single_states
        rows *= int(states[feature].max()) + 1
        if rows > limit:
            return None
    group = LeafGroup(states, (*a.leaves, *b.leaves))
    return group if group.cost <= _GROWTH * (a.cost + b.cost) else None
