"""Leaves of an ensemble as boxes: each feature's numbers are cut into cells, between which no tree tells.

A leaf's score counts if the cell of every feature that its path tests lies in the leaf's set of cells. So a
score as a function of one feature, the others fixed, is a step function that one pass over the leaves gives
for all features at once (`Boxes.scan`), and the least and the greatest score in a box of cells are bounded by
the best and the worst leaf of each tree that the box reaches (`Boxes.range`).
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan

import numpy as np

from rationale.trees.ensemble import Ensemble


@dataclass(frozen=True, eq=False)
class Boxes:
    """The leaves of an ensemble for one score.

    The cells of feature f are numbered 0 … len(starts[f]), in ascending order; one more is for NaN. Flat
    arrays over the cells of all features begin at `offsets[f]`.

    Attributes:
        starts: for each feature, the least number of each cell but the first, in the type that trees compare.
        weights: [L], the score of each leaf; the leaves of one tree stand together.
        trees: [trees], the first leaf of each tree.
        leaf, feature: [C], the leaf and the feature of each condition on a path; features ascend.
        condition, low, high: [I], the condition of each interval of cells, its first cell, and the cell after
            its last; conditions ascend. A condition holds in one of its intervals; they do not overlap.
        is_logistic: whether the model answers the Sigmoid of the sum of leaves.
    """

    starts: tuple[np.ndarray, ...]
    weights: np.ndarray
    trees: np.ndarray
    leaf: np.ndarray
    feature: np.ndarray
    condition: np.ndarray
    low: np.ndarray
    high: np.ndarray
    is_logistic: bool = False

    @cached_property
    def sizes(self) -> np.ndarray:
        """[F], the number of cells of each feature, NaN's included."""
        return np.asarray([len(starts) + 2 for starts in self.starts])

    @cached_property
    def offsets(self) -> np.ndarray:
        """[F + 1], where the cells of each feature begin in a flat array."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @cached_property
    def edges(self) -> np.ndarray:
        """[cells of all features], whether a leaf tells a cell from the one before, or the feature begins."""
        edges, (first, after) = np.zeros(int(self.offsets[-1]) + 1, bool), self._ends
        edges[self.offsets] = edges[first] = edges[after] = True
        return edges[:-1]

    def cells(self, row: np.ndarray) -> np.ndarray:
        """Return [F], the cell of each number of a row."""
        compared = row.astype(self.starts[0].dtype).tolist()
        return np.array(
            [
                len(starts) + 1 if isnan(x) else bisect_right(starts, x)
                for starts, x in zip(self._numbers, compared, strict=True)
            ]
        )

    def scan(self, cells: np.ndarray) -> np.ndarray:
        """Return, for each cell of each feature, the score of a row that is changed to that cell alone.

        Args:
            cells: [F], the row.

        Returns:
            [cells of all features] float64, flat.
        """
        at = np.repeat(cells.astype(self.low.dtype), self._counts)
        inside = (self.low <= at) & (at < self.high)
        held = np.bincount(self._leaf.take(np.flatnonzero(inside)), minlength=len(self.weights))
        broken = np.minimum(self._tests - held, 2).astype(np.int8)
        holds = inside
        if len(self.low) > len(self.leaf):  # a condition may hold in another of its intervals
            holds = self._marked(self.condition.compress(inside)).take(self.condition)
        # All conditions of leaves that break none, and the broken one of those that break one.
        chosen = np.flatnonzero(broken.take(self._leaf) + holds == 1)
        weight, length = self._weight.take(chosen), int(self.offsets[-1]) + 1
        first, after = self._ends
        steps = np.bincount(first.take(chosen), weight, length)
        steps -= np.bincount(after.take(chosen), weight, length)
        gained, is_reached = np.cumsum(steps)[:-1], inside.take(chosen)
        reached, features = chosen.compress(is_reached), len(self.starts)
        lost = np.bincount(self._owner.take(reached), weight.compress(is_reached), features)
        total = float(self.weights[broken == 0].sum())
        return gained + np.repeat(total - lost, self.sizes)

    def within(self, low: np.ndarray, high: np.ndarray) -> "Boxes":
        """Return the leaves that a box of cells reaches, without the conditions that hold in all of it.

        Args:
            low, high: [F], the first cell of each feature, and the cell after its last.
        """
        first, last = np.repeat(low, self._counts), np.repeat(high, self._counts)
        meets, covers = self._meets(low, high), (self.low <= first) & (last <= self.high)
        reached = self._reached(meets)
        tested = reached.take(self.leaf)
        tested[self.condition.compress(covers)] = False
        kept = meets & tested.take(self.condition)
        condition, leaf = np.cumsum(tested) - 1, np.cumsum(reached)
        return Boxes(
            self.starts,
            self.weights[reached],
            (leaf - reached)[self.trees],
            leaf.take(self.leaf.compress(tested)) - 1,
            self.feature.compress(tested),
            condition.take(self.condition.compress(kept)),
            self.low.compress(kept),
            self.high.compress(kept),
            self.is_logistic,
        )

    def range(self, low: np.ndarray, high: np.ndarray) -> tuple[float, float]:
        """Return bounds of the scores of all rows in a box of cells.

        Args:
            low, high: [F], the first cell of each feature, and the cell after its last.
        """
        reached = self._reached(self._meets(low, high))
        least = np.minimum.reduceat(np.where(reached, self.weights, np.inf), self.trees)
        most = np.maximum.reduceat(np.where(reached, self.weights, -np.inf), self.trees)
        return float(least.sum()), float(most.sum())

    def _meets(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Return [I], whether each interval meets a box."""
        return np.asarray(
            (self.low < np.repeat(high, self._counts)) & (np.repeat(low, self._counts) < self.high)
        )

    def _reached(self, meets: np.ndarray) -> np.ndarray:
        """Return [L], whether one interval of each of a leaf's conditions is among these."""
        met = np.bincount(
            self.leaf.compress(self._marked(self.condition.compress(meets))), minlength=len(self.weights)
        )
        return np.asarray(met == self._tests)

    def _marked(self, conditions: np.ndarray) -> np.ndarray:
        """Return [C], whether each condition is among some."""
        marks = np.zeros(len(self.leaf), bool)
        marks[conditions] = True
        return marks

    @cached_property
    def _numbers(self) -> tuple[list[float], ...]:
        """`starts` as lists, in which a search for one number is faster."""
        return tuple(starts.tolist() for starts in self.starts)

    @cached_property
    def _ends(self) -> tuple[np.ndarray, np.ndarray]:
        """[I], the first cell of each interval, and the cell after its last, among those of all features."""
        offsets = self.offsets.take(self._owner)
        return offsets + self.low, offsets + self.high

    @cached_property
    def _owner(self) -> np.ndarray:
        """[I], the feature of each interval."""
        return np.asarray(self.feature[self.condition])

    @cached_property
    def _counts(self) -> np.ndarray:
        """[F], the number of intervals of each feature."""
        return np.bincount(self._owner, minlength=len(self.starts))

    @cached_property
    def _leaf(self) -> np.ndarray:
        """[I], the leaf of each interval."""
        return np.asarray(self.leaf[self.condition])

    @cached_property
    def _weight(self) -> np.ndarray:
        """[I], the score of each interval's leaf."""
        return np.asarray(self.weights[self._leaf])

    @cached_property
    def _tests(self) -> np.ndarray:
        """[L], the number of conditions of each leaf."""
        return np.bincount(self.leaf, minlength=len(self.weights))


def boxes(
    ensemble: Ensemble,
    features: int,
    column: int,
    dtype: np.dtype,
    factor: float = 1.0,
    apart: Sequence[Sequence[float]] = (),
) -> Boxes:
    """Return the leaves of an ensemble as boxes.

    Args:
        features: F, the number of features of a row.
        column: the score whose weights count.
        dtype: the type in which trees compare numbers.
        factor: a factor of all scores.
        apart: numbers of each feature that get a cell for themselves, or none.
    """
    starts = tuple(_starts(ensemble, f, dtype, apart[f] if apart else ()) for f in range(features))
    weights, trees, leaf, feature, condition, low, high = [list[int]() for _ in range(7)]
    values = factor * ensemble.weights[:, column]
    passing = {
        int(node): _passing(ensemble, int(node), starts) for node in np.flatnonzero(ensemble.feature >= 0)
    }
    for root in ensemble.roots:
        trees.append(len(weights))
        for end, conditions in _paths(ensemble, int(root), passing):
            for tested, cells in conditions.items():
                if cells.all():
                    continue
                edges = np.flatnonzero(np.diff(np.concatenate([[False], cells, [False]])))
                condition += [len(leaf)] * (len(edges) // 2)
                low += edges[::2].tolist()
                high += edges[1::2].tolist()
                leaf.append(len(weights))
                feature.append(tested)
            weights.append(values[end])
    of_leaf, of_feature, of_condition = (np.asarray(each, np.int64) for each in (leaf, feature, condition))
    order = np.argsort(of_feature, kind="stable")
    place = np.argsort(order)[of_condition]
    intervals = np.argsort(place, kind="stable")
    return Boxes(
        starts,
        np.asarray(weights, np.float64),
        np.asarray(trees, np.int64),
        of_leaf[order],
        of_feature[order],
        place[intervals],
        np.asarray(low, np.int32)[intervals],
        np.asarray(high, np.int32)[intervals],
        ensemble.post_transform == "LOGISTIC",
    )


def _starts(ensemble: Ensemble, feature: int, dtype: np.dtype, apart: Sequence[float]) -> np.ndarray:
    """Return the least number of each cell of a feature but the first."""
    nodes = np.flatnonzero(ensemble.feature == feature)
    of_node = [ensemble.bounds_of(int(node)) for node in nodes]
    own = np.asarray(apart, dtype)
    numbers = np.concatenate([own, own, *(ensemble.bounds[bounds].astype(dtype) for bounds in of_node)])
    is_first = np.arange(2 * len(own)) < len(own)
    strict = np.concatenate([is_first, *(ensemble.strict[bounds] for bounds in of_node)])
    return np.unique(np.where(strict, np.nextafter(numbers, dtype.type(np.inf)), numbers))


def _passing(ensemble: Ensemble, node: int, starts: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return [cells and NaN], whether each cell of a split's feature passes it."""
    own = starts[ensemble.feature[node]]
    bounds = ensemble.bounds[ensemble.bounds_of(node)].astype(own.dtype)
    strict = ensemble.strict[ensemble.bounds_of(node)]
    firsts = np.where(strict, np.nextafter(bounds, own.dtype.type(np.inf)), bounds)
    flips = np.bincount(np.searchsorted(own, firsts) + 1, minlength=len(own) + 1)
    past = np.cumsum(flips) % 2 == 1
    return np.concatenate([bool(ensemble.below[node]) ^ past, [bool(ensemble.missing[node])]])


def _paths(
    ensemble: Ensemble, root: int, passing: dict[int, np.ndarray]
) -> Iterator[tuple[int, dict[int, np.ndarray]]]:
    """Yield each leaf that a number reaches: its row of weights, and its cells by feature."""
    pending: list[tuple[int, dict[int, np.ndarray]]] = [(root, {})]
    while pending:
        node, conditions = pending.pop()
        feature = int(ensemble.feature[node])
        if feature < 0:
            yield int(ensemble.leaf[node]), conditions
            continue
        for following, passes in ((ensemble.yes[node], passing[node]), (ensemble.no[node], ~passing[node])):
            cells = passes & conditions[feature] if feature in conditions else passes
            if cells.any():
                pending.append((int(following), {**conditions, feature: cells}))
