"""scikit-learn's RandomTreesEmbedding: for each leaf of its trees, 1 for the rows in it and 0 for others."""

from typing import Any

import numpy as np

from rationale.conversion.boosters.tables import BoosterTable
from rationale.conversion.boosters.trees import BoostedTrees, Leaf, Split, Tree


def read_trees(model: Any) -> BoostedTrees:
    leaves_by_tree = model.one_hot_encoder_.categories_  # the leaves of each tree
    firsts = np.cumsum([0, *map(len, leaves_by_tree)])
    trees = [
        _tree(estimator.tree_, {int(leaf): first + i for i, leaf in enumerate(leaves)})
        for estimator, leaves, first in zip(model.estimators_, leaves_by_tree, firsts.tolist(), strict=False)
    ]
    return BoostedTrees(trees=trees, base=np.zeros(int(firsts[-1])))


def read_table(model: Any) -> BoosterTable:
    return BoosterTable(model.n_features_in_, None, [None] * model.n_features_in_)


def _tree(tree: Any, columns: dict[int, int]) -> Tree:
    nodes = dict[int, Split | Leaf]()
    for number in range(tree.node_count):
        left, right = int(tree.children_left[number]), int(tree.children_right[number])
        if left == -1:
            nodes[number] = {columns[number]: 1.0}
        else:
            feature, bound = int(tree.feature[number]), float(tree.threshold[number])
            nodes[number] = Split(feature, left, right, missing=False, bound=bound)
    return nodes
