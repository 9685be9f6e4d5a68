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
class Bounds:
    """The bounds at which one tree's splits divide a feature: pieces 0 … len(numbers), then NaN."""

    numbers: np.ndarray
    strict: np.ndarray

    def pieces(self, x: np.ndarray) -> np.ndarray:
        """Return the piece of each number."""
        reached = np.searchsorted(self.numbers[~self.strict], x, "right")
        passed = np.searchsorted(self.numbers[self.strict], x, "left")
        return np.where(np.isnan(x), len(self.numbers) + 1, reached + passed)


@dataclass(frozen=True, eq=False)
class Leaf:
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
class Group:
    """Leaves of one tree that share a table.

    Attributes:
        states: the state of each piece, by feature; that of piece 0 is 0.
    """

    states: dict[int, np.ndarray]
    leaves: tuple[Leaf, ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(int(s.max()) + 1 for s in self.states.values())

    @property
    def rows(self) -> int:
        return prod(self.sizes)

    @property
    def cost(self) -> int:
        return self.rows * len(self.states)


@dataclass(frozen=True, eq=False)
class Tree:
    """The groups of one tree, and the bounds of its features."""

    bounds: dict[int, Bounds]
    groups: tuple[Group, ...]


def grouped(ensemble: Ensemble, used: np.ndarray) -> Iterator[Tree]:
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
        yield Tree(bounds, tuple(_groups(ensemble, int(root), bounds, used)))


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


def _bounds(ensemble: Ensemble, nodes: Sequence[int], feature: int) -> Bounds:
    own = [ensemble.bounds_of(n) for n in nodes if ensemble.feature[n] == feature]
    numbers = np.concatenate([ensemble.bounds[s] for s in own])
    strict = np.concatenate([ensemble.strict[s] for s in own])
    order = np.lexsort([strict, numbers])
    numbers, strict = numbers[order], strict[order]
    new = np.concatenate([[True], (numbers[1:] != numbers[:-1]) | (strict[1:] != strict[:-1])])
    return Bounds(numbers[new], strict[new])


def _passing(ensemble: Ensemble, node: int, bounds: Bounds) -> np.ndarray:
    """Return [pieces and NaN], whether the split is passed in each piece."""
    own = ensemble.bounds_of(node)
    keys = {(float(n), bool(s)) for n, s in zip(ensemble.bounds[own], ensemble.strict[own], strict=True)}
    flips = [pair in keys for pair in zip(bounds.numbers.tolist(), bounds.strict.tolist(), strict=True)]
    past = np.concatenate([[0], np.cumsum(flips)]) % 2 == 1
    return np.concatenate([bool(ensemble.below[node]) ^ past, [bool(ensemble.missing[node])]])


def _groups(ensemble: Ensemble, root: int, bounds: dict[int, Bounds], used: np.ndarray) -> Iterator[Group]:
    """Yield groups depth first; the groups of both sides of a split are merged when both exist."""
    pending: list[tuple[int, dict[int, np.ndarray], dict[int, float]] | None] = [(root, {}, {})]
    done: list[list[Group]] = []
    while pending:
        step = pending.pop()
        if step is None:
            right, left = done.pop(), done.pop()
            merged = _merged(left[0], right[0]) if len(left) == len(right) == 1 else None
            done.append([*left, *right] if merged is None else [merged])
            continue
        node, satisfied, shares = step
        feature = int(ensemble.feature[node])
        if feature < 0:
            row = int(ensemble.leaf[node])
            done.append([_alone(Leaf(row, satisfied, shares))] if satisfied and used[row] else [])
            continue
        passing = _passing(ensemble, node, bounds[feature])
        before = satisfied.get(feature)
        pending.append(None)  # then merge the groups of both sides
        share = _share(ensemble, node)
        sides = (ensemble.yes[node], passing, share), (ensemble.no[node], ~passing, 1 - share)
        here = [(int(to), there if before is None else there & before, part) for to, there, part in sides]
        reached = [
            (to, {**satisfied, feature: passed}, {**shares, feature: shares.get(feature, 1.0) * part})
            for to, passed, part in here
            if passed.any() or (part > 0 and ensemble.share is not None)
        ]
        done += [[]] * (2 - len(reached))  # no number takes the other side
        pending += reached
    yield from done.pop()


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


def _alone(leaf: Leaf) -> Group:
    return Group({f: _from_first(where.astype(np.int64)) for f, where in leaf.satisfied.items()}, (leaf,))


def _from_first(states: np.ndarray) -> np.ndarray:
    """Renumber the states in the order of the pieces."""
    numbers: dict[int, int] = {}
    return np.array([numbers.setdefault(state, len(numbers)) for state in states.tolist()])


def _merged(a: Group, b: Group) -> Group | None:
    """Merge two groups into one; return None if its table would be too large."""
    states, rows = {}, 1
    limit = min(MOST_STATES, int(_GROWTH * (a.cost + b.cost)))
    for feature in sorted({*a.states, *b.states}):
        left, right = a.states.get(feature), b.states.get(feature)
        if left is not None and right is not None:
            states[feature] = _from_first(left * (int(right.max()) + 1) + right)
        else:
            one = right if left is None else left
            assert one is not None
            states[feature] = one
        rows *= int(states[feature].max()) + 1
        if rows > limit:
            return None
    group = Group(states, (*a.leaves, *b.leaves))
    return group if group.cost <= _GROWTH * (a.cost + b.cost) else None
