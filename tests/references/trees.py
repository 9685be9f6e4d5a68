"""Random tree ensembles as nested nodes: evaluated one row at a time, written as each ONNX operator, and
their Shapley values by enumerating every coalition.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

MODES = {
    "LEQ": lambda x, t: x <= t[0],
    "LT": lambda x, t: x < t[0],
    "GTE": lambda x, t: x >= t[0],
    "GT": lambda x, t: x > t[0],
    "EQ": lambda x, t: x == t[0],
    "NEQ": lambda x, t: x != t[0],
    "MEMBER": lambda x, t: x in t,
}
GRID = (-1.0, -0.5, 0.0, 0.5, 1.0)  # of thresholds, and of many features: ties
MEMBERS = (1.0, 2.0, 3.0, 5.0, 8.0)  # ONNX Runtime takes sets of whole numbers alone


@dataclass(frozen=True)
class Leaf:
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Split:
    feature: int
    mode: str
    numbers: tuple[float, ...]
    missing: bool
    yes: "Node"
    no: "Node"

    def passed(self, x: float) -> bool:
        return bool(MODES[self.mode](x, self.numbers)) or (self.missing and math.isnan(x))


Node = Leaf | Split


def random_trees(
    seed: int,
    modes: Sequence[str],
    *,
    features: int = 5,
    columns: int = 1,
    trees: int = 4,
    depth: int = 4,
    grid: Sequence[float] = GRID,
) -> list[Node]:
    random = np.random.default_rng(seed)

    def grow(levels: int) -> Node:
        if not levels or (levels < depth - 1 and random.random() < 0.2):
            return Leaf(tuple(float(np.float32(w)) for w in random.standard_normal(columns)))
        mode = str(random.choice(modes))
        count = 3 if mode == "MEMBER" else 1
        numbers = tuple(float(n) for n in random.choice(grid, count, replace=False))
        missing = bool(random.random() < 0.5)
        return Split(
            int(random.integers(features)), mode, numbers, missing, grow(levels - 1), grow(levels - 1)
        )

    return [grow(depth) for _ in range(trees)]


def rows(seed: int, count: int, features: int = 5, grid: Sequence[float] = GRID) -> np.ndarray:
    """On and off the grid, and some missing."""
    random = np.random.default_rng(seed)
    x = random.choice(grid, (count, features))
    x = np.where(random.random(x.shape) < 0.4, random.standard_normal(x.shape), x)
    return np.where(random.random(x.shape) < 0.15, np.nan, x).astype(np.float32)


def scores(trees: Sequence[Node], x: np.ndarray) -> np.ndarray:
    """[N, columns] float64."""

    def leaf(node: Node, row: np.ndarray) -> tuple[float, ...]:
        while isinstance(node, Split):
            node = node.yes if node.passed(float(row[node.feature])) else node.no
        return node.weights

    return np.array([[leaf(tree, row) for tree in trees] for row in x]).sum(axis=1)


Worth = Callable[[Sequence[int]], np.ndarray]  # of a coalition of players: [N, columns]


def interventional(
    f: Callable[[np.ndarray], np.ndarray],
    x: np.ndarray,
    references: np.ndarray,
    weights: np.ndarray | None = None,
    player_of: Sequence[int] | None = None,
) -> Worth:
    """The mean of f over the references, with the coalition's features from the row.

    Args:
        player_of: the player of each feature; by default each is one.
    """
    owned = np.arange(x.shape[1]) if player_of is None else np.asarray(player_of)

    def worth(chosen: Sequence[int]) -> np.ndarray:
        mixed = [np.where(np.isin(owned, chosen), row, references) for row in x]
        return np.stack([np.average(f(rows), axis=0, weights=weights) for rows in mixed])

    return worth


Covers = dict[int, float]  # by the id of a node


def covers_of(trees: Sequence[Node], rows: np.ndarray) -> Covers:
    """How many rows reach each node."""
    covers: Covers = {}
    pending = [(tree, rows) for tree in trees]
    while pending:
        node, reaching = pending.pop()
        covers[id(node)] = len(reaching)
        if isinstance(node, Split):
            passed = np.array([node.passed(float(row[node.feature])) for row in reaching], bool)
            pending += [(node.yes, reaching[passed]), (node.no, reaching[~passed])]
    return covers


def path_dependent(
    trees: Sequence[Node], x: np.ndarray, covers: Covers, player_of: Sequence[int] | None = None
) -> Worth:
    """EXPVALUE of Lundberg et al., "Consistent individualized feature attribution for tree ensembles", 2018,
    algorithm 1.
    """
    owned = range(x.shape[1]) if player_of is None else player_of

    def expected(node: Node, row: np.ndarray, chosen: Sequence[int]) -> np.ndarray:
        if isinstance(node, Leaf):
            return np.array(node.weights)
        if owned[node.feature] in chosen:
            return expected(node.yes if node.passed(float(row[node.feature])) else node.no, row, chosen)
        sides = [(covers[id(side)], side) for side in (node.yes, node.no) if covers[id(side)]]
        return sum(cover * expected(side, row, chosen) for cover, side in sides) / covers[id(node)]

    return lambda chosen: np.stack([sum(expected(tree, row, chosen) for tree in trees) for row in x])


def shapley_of(worth: Worth, count: int) -> np.ndarray:
    """[N, columns, P] by every coalition of the players."""
    worth = _remembered(worth)
    values = np.zeros((*worth(()).shape, count))
    for size in range(count):
        for chosen in combinations(range(count), size):
            share, value = 1 / (count * math.comb(count - 1, size)), worth(chosen)
            for j in set(range(count)).difference(chosen):
                values[:, :, j] += share * (worth((*chosen, j)) - value)
    return values


def interactions_of(worth: Worth, count: int) -> np.ndarray:
    """[N, columns, P, P]: half the Shapley interaction index of two players for either, and on the diagonal
    what is left of a player's Shapley value; as shap defines them.
    """
    worth = _remembered(worth)
    interactions = np.zeros((*worth(()).shape, count, count))
    for i, j in combinations(range(count), 2):
        other_players = [p for p in range(count) if p not in (i, j)]
        for size in range(count - 1):
            share = 1 / (2 * (count - 1) * math.comb(count - 2, size))
            for chosen in combinations(other_players, size):
                with_both, alone = (
                    worth((*chosen, i, j)) + worth(chosen),
                    worth((*chosen, i)) + worth((*chosen, j)),
                )
                interactions[:, :, i, j] += share * (with_both - alone)
        interactions[:, :, j, i] = interactions[:, :, i, j]
    main_values = shapley_of(worth, count) - interactions.sum(axis=3)
    interactions[:, :, range(count), range(count)] = main_values
    return interactions


def shapley(
    f: Callable[[np.ndarray], np.ndarray],
    x: np.ndarray,
    references: np.ndarray,
    weights: np.ndarray | None = None,
    player_of: Sequence[int] | None = None,
) -> np.ndarray:
    """[N, columns, P]: of the interventional game."""
    count = x.shape[1] if player_of is None else max(player_of) + 1
    return shapley_of(interventional(f, x, references, weights, player_of), count)


def _remembered(worth: Worth) -> Worth:
    worths: dict[frozenset[int], np.ndarray] = {}

    def remembered(chosen: Sequence[int]) -> np.ndarray:
        key = frozenset(chosen)
        if key not in worths:
            worths[key] = worth(chosen)
        return worths[key]

    return remembered


# -- as ONNX ---------------------------------------------------------------------------------------------


def listed(trees: Sequence[Node]) -> Iterator[tuple[int, int, Node, int, int]]:
    """Tree, number, node, and the numbers of the nodes that follow it."""
    for tree, root in enumerate(trees):
        pending, count = [(0, root)], 1
        while pending:
            number, node = pending.pop()
            yield tree, number, node, count, count + 1
            if isinstance(node, Split):
                pending += [(count, node.yes), (count + 1, node.no)]
                count += 2


def attributes(trees: Sequence[Node], prefix: str, only: int | None = None) -> dict[str, Any]:
    """Of TreeEnsembleRegressor ("target") and TreeEnsembleClassifier ("class").

    Args:
        only: the one column whose weights are written, under the number 0.
    """
    lists: dict[str, list[Any]] = {
        f"nodes_{name}": []
        for name in "treeids nodeids featureids modes values truenodeids falsenodeids "
        "missing_value_tracks_true".split()
    }
    weights: dict[str, list[Any]] = {f"{prefix}_{name}": [] for name in "treeids nodeids ids weights".split()}
    for tree, number, node, yes, no in listed(trees):
        if isinstance(node, Leaf):
            line = (tree, number, 0, "LEAF", 0.0, 0, 0, 0)
            columns = range(len(node.weights)) if only is None else [only]
            for column in columns:
                entry = (tree, number, column if only is None else 0, node.weights[column])
                for values, value in zip(weights.values(), entry, strict=True):
                    values.append(value)
        else:
            mode = f"BRANCH_{node.mode}"
            line = (tree, number, node.feature, mode, node.numbers[0], yes, no, int(node.missing))
        for values, value in zip(lists.values(), line, strict=True):
            values.append(value)
    return lists | weights


def regressor(trees: Sequence[Node], features: int = 5, **more: Any) -> onnx.ModelProto:
    root = trees[0]
    while isinstance(root, Split):
        root = root.yes
    columns = len(root.weights)
    node = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        **{**attributes(trees, "target"), "n_targets": columns, **more},
    )
    return model_of(node, features, {"y": columns})


def classifier(
    trees: Sequence[Node], classes: int, features: int = 5, only: int | None = None, **more: Any
) -> onnx.ModelProto:
    attributes_of_node = {
        **attributes(trees, "class", only),
        "classlabels_int64s": list(range(classes)),
        **more,
    }
    node = helper.make_node(
        "TreeEnsembleClassifier", ["x"], ["label", "p"], domain="ai.onnx.ml", **attributes_of_node
    )
    return model_of(node, features, {"p": classes})


def ensemble(
    trees: Sequence[Node], features: int = 5, dtype: Any = np.float32, **more: Any
) -> onnx.ModelProto:
    """TreeEnsemble of ai.onnx.ml 5, of one column."""
    order = list(listed(trees))
    splits = {
        (t, n): i for i, (t, n) in enumerate((t, n) for t, n, node, *_ in order if isinstance(node, Split))
    }
    leaves = {
        (t, n): i for i, (t, n) in enumerate((t, n) for t, n, node, *_ in order if isinstance(node, Leaf))
    }
    lists: dict[str, list[Any]] = {
        name: []
        for name in "nodes_featureids nodes_truenodeids nodes_trueleafs nodes_falsenodeids nodes_falseleafs "
        "nodes_missing_value_tracks_true".split()
    }
    numbers, modes, members = [], [], []
    for tree, _, node, yes, no in order:
        if isinstance(node, Leaf):
            continue
        ways = [
            (splits.get((tree, to), leaves.get((tree, to))), int((tree, to) in leaves)) for to in (yes, no)
        ]
        line = (node.feature, *ways[0], *ways[1], int(node.missing))
        for values, value in zip(lists.values(), line, strict=True):
            values.append(value)
        numbers.append(node.numbers[0])
        modes.append(list(MODES).index(node.mode) if node.mode != "LEQ" else 0)
        members += [*node.numbers, np.nan] if node.mode == "MEMBER" else []
    tensors = {
        "nodes_splits": np.array(numbers, dtype),
        "nodes_modes": np.array(modes, np.uint8),
        "leaf_weights": np.array([n.weights[0] for *_, n, _, _ in order if isinstance(n, Leaf)], dtype),
    }
    if members:
        tensors["membership_values"] = np.array(members, dtype)
    node = helper.make_node(
        "TreeEnsemble",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        tree_roots=[splits[t, 0] for t in range(len(trees))],
        leaf_targetids=[0] * len(leaves),
        n_targets=1,
        **lists,
        **{name: onnx.numpy_helper.from_array(array, name) for name, array in tensors.items()},
        **more,
    )
    return model_of(node, features, {"y": 1}, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), version=5)


def model_of(
    node: onnx.NodeProto,
    features: int,
    outputs: dict[str, int],
    dtype: int = TensorProto.FLOAT,
    version: int = 3,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        [node],
        "trees",
        [helper.make_tensor_value_info("x", dtype, ["N", features])],
        [helper.make_tensor_value_info(name, dtype, ["N", size]) for name, size in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
