"""A tree ensemble in one form, for any ONNX operator."""

from dataclasses import dataclass

import numpy as np

MOST_PATHS = 1 << 40  # counted leaves; a larger number carries no more information


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Trees over one row of features, whose leaves are added.

    The nodes of all trees form one sequence. A split divides the numbers of its feature at bounds, in
    ascending order: a number is past a bound if it is larger, or equal and the bound is not strict.
    At each bound, the outcome flips.

    Attributes:
        roots: [trees], the first node of each tree.
        feature: [nodes], the feature of a split; −1 for a leaf.
        yes, no: [nodes], the next node by a split's outcome.
        below: [nodes], the outcome before the first bound.
        missing: [nodes], the outcome for NaN.
        first: [nodes + 1], index of each split's first bound.
        bounds: the numbers at which splits divide their features.
        strict: whether a number must be larger than the bound.
        leaf: [nodes], a row of `weights`; −1 for a split.
        weights: [leaves, columns] float64, the values that a leaf adds to the scores.
        post_transform: the operator's transform of the scores, or "NONE".
        share: [nodes], the share of a split's rows that pass it; None if unknown.
    """

    roots: np.ndarray
    feature: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    below: np.ndarray
    missing: np.ndarray
    first: np.ndarray
    bounds: np.ndarray
    strict: np.ndarray
    leaf: np.ndarray
    weights: np.ndarray
    post_transform: str = "NONE"
    share: np.ndarray | None = None

    @property
    def columns(self) -> int:
        return int(self.weights.shape[1])

    def bounds_of(self, node: int) -> slice:
        return slice(int(self.first[node]), int(self.first[node + 1]))

    def leaves_below(self) -> np.ndarray:
        """Return [nodes], the number of paths from each node to a leaf; at most MOST_PATHS."""
        feature, yes, no = self.feature.tolist(), self.yes.tolist(), self.no.tolist()
        counts = [0] * len(feature)
        for node in self.upwards():
            below = counts[yes[node]] + counts[no[node]] if feature[node] >= 0 else 1
            counts[node] = min(below, MOST_PATHS)
        return np.array(counts, np.int64)

    def depth(self) -> int:
        """Return the number of splits on the longest path from a root to a leaf; raise as `upwards` does."""
        level, depth = np.unique(self.roots), 0
        while len(level := level[self.feature[level] >= 0]):
            depth += 1
            if depth == len(self.feature):  # more than all splits: a node follows itself
                self.upwards()
            level = np.unique(np.concatenate([self.yes[level], self.no[level]]))
        return depth

    def upwards(self) -> list[int]:
        """Return the nodes that a row can reach, children before their parents.

        Raises:
            ValueError: if a node follows itself.
        """
        entered, finished = 1, 2
        feature, yes, no = self.feature.tolist(), self.yes.tolist(), self.no.tolist()
        state = bytearray(len(feature))
        order: list[int] = []
        pending: list[int] = self.roots.tolist()
        while pending:
            node = pending[-1]
            if state[node] == 0 and feature[node] >= 0:
                state[node] = entered
                children = yes[node], no[node]
                if any(state[n] == entered for n in children):
                    raise ValueError(node)
                pending += [n for n in children if state[n] == 0]
                continue
            pending.pop()
            if state[node] != finished:
                state[node] = finished
                order.append(node)
        return order

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Return [N, columns] float64, the sum of the leaves that each row reaches, without base values."""
        total = np.zeros((len(x), self.columns))
        for root in self.roots:
            nodes = np.full(len(x), root)
            while (split := self.feature[nodes] >= 0).any():
                for node in np.unique(nodes[split]):
                    rows = nodes == node
                    passed = self.outcome(int(node), x[rows, self.feature[node]])
                    nodes[rows] = np.where(passed, self.yes[node], self.no[node])
            total += self.weights[self.leaf[nodes]]
        return total

    def scores_between(self) -> np.ndarray:
        """Return [2, columns], a lower and an upper bound of every row's scores."""
        least, most = np.zeros((2, len(self.feature), self.columns))
        for node in self.upwards():
            if self.feature[node] < 0:
                least[node] = most[node] = self.weights[self.leaf[node]]
            else:
                sides = [self.yes[node], self.no[node]]
                least[node], most[node] = least[sides].min(axis=0), most[sides].max(axis=0)
        return np.stack([least[self.roots].sum(axis=0), most[self.roots].sum(axis=0)])

    def outcome(self, node: int, x: np.ndarray) -> np.ndarray:
        """Tell whether numbers of a split's feature pass it."""
        node_bounds = self.bounds_of(node)
        flips = is_past(x, self.bounds[node_bounds], self.strict[node_bounds]).sum(axis=1)
        return np.asarray(np.where(np.isnan(x), self.missing[node], self.below[node] ^ (flips % 2 == 1)))


def is_past(x: np.ndarray, bounds: np.ndarray, strict: np.ndarray) -> np.ndarray:
    """Return [len(x), bounds], whether each number is past each bound; NaN is past none."""
    numbers = x[:, None]
    return np.asarray(np.where(strict, numbers > bounds, numbers >= bounds))
