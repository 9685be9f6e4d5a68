"""Tree operators that are no trees: a clear error each, soon, before ONNX Runtime looks at them."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from rationale import InvalidModelError, TreeShap, UnsupportedModelError, compile_model
from rationale.graph.runtime.session import Runner
from rationale.trees.covers import passing_share
from rationale.trees.read import read_ensemble
from rationale.trees.tables import build_tables
from tests.references import trees as forest

STUMP = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [0, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_values": [0.0, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
    "target_treeids": [0, 0],
    "target_nodeids": [1, 2],
    "target_ids": [0, 0],
    "target_weights": [1.0, 2.0],
    "n_targets": 1,
}
SPLITS = {"nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF"]}
BAD = {
    "a node that follows itself": (
        {"nodes_truenodeids": [0, 0, 0]},
        "node 0 .* is its own descendant",
    ),
    "a circle": (
        SPLITS | {"nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 2, 0]},
        "is its own descendant",
    ),
    "a dangling node": ({"nodes_falsenodeids": [7, 0, 0]}, "nodes_falsenodeids names node 7 of tree 0"),
    "a dangling leaf": ({"target_nodeids": [1, 9]}, "target_nodeids names node 9 of tree 0"),
    "a node twice": ({"nodes_nodeids": [0, 1, 1]}, "node 1 of tree 0"),
    "thresholds too few": ({"nodes_values": [0.0]}, "nodes_values .*1 .*3"),
    "hit rates too few": ({"nodes_hitrates": [1.0]}, "nodes_hitrates .*1 .*3"),
    "modes too few": ({"nodes_modes": ["LEAF"]}, "nodes_modes has 1 entries"),
    "weights too few": ({"target_weights": [1.0]}, "target_weights .*1 .*2"),
    "no nodes": ({name: [] for name in STUMP} | {"n_targets": 1}, "has no nodes"),
    "an unknown mode": ({"nodes_modes": ["BRANCH_OR", "LEAF", "LEAF"]}, r"nodes_modes holds \['OR'\]"),
    "a threshold that is no number": ({"nodes_values": [np.nan, 0.0, 0.0]}, "a threshold is nan"),
    "a weight that is no number": ({"target_weights": [1.0, np.inf]}, "a weight is inf"),
    "a score that is not there": ({"target_ids": [0, 5]}, "a leaf adds to score 5 of 1"),
    "a feature that is not there": ({"nodes_featureids": [9, 0, 0]}, "splits by feature 9, and a row has 5"),
    "the feature behind the last": ({"nodes_featureids": [5, 0, 0]}, "splits by feature 5, and a row has 5"),
    "a negative feature": ({"nodes_featureids": [-1, 0, 0]}, "splits by feature -1"),
    "no number of scores": ({"n_targets": 0}, "how many scores"),
    "trees among each other": (
        {
            "nodes_treeids": [0, 1, 0],
            "nodes_modes": ["LEAF"] * 3,
            "target_treeids": [0, 0],
            "target_nodeids": [0, 2],
        },
        "do not stand together",
    ),
    "another aggregate": ({"aggregate_function": "MEDIAN"}, "aggregate_function is 'MEDIAN'"),
}


def stump(**changed: Any) -> onnx.ModelProto:
    attributes = {name: value for name, value in {**STUMP, **changed}.items() if value != []}
    node = onnx.helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", **attributes)
    return forest.model_of(node, 5, {"y": 1})


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_tree_is_refused(name: str) -> None:
    changed, words = BAD[name]
    with pytest.raises(InvalidModelError, match=words):
        compile_model(stump(**changed), TreeShap(np.zeros((2, 5))))


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("tree_roots", [99], "tree_roots"),
        ("nodes_truenodeids", [99], "nodes_truenodeids names 99"),
        ("nodes_featureids", [7], "feature 7"),
        ("leaf_targetids", [3], "score 3 of 1"),
        ("nodes_trueleafs", [], "nodes_trueleafs has 0 entries"),
    ],
)
def test_the_newer_operator_too(attribute: str, value: list[int], words: str) -> None:
    model = forest.ensemble(forest.random_trees(0, ("LEQ",)))
    (node,) = model.graph.node
    edited = next(a for a in node.attribute if a.name == attribute)
    edited.ints[: len(value) or len(edited.ints)] = value
    with pytest.raises(InvalidModelError, match=words):
        compile_model(model, TreeShap(np.zeros((2, 5))))


@pytest.mark.parametrize("name", ["aggregate_function", "post_transform"])
@pytest.mark.parametrize("number", [-1, 9])
def test_a_number_that_stands_for_no_word(name: str, number: int) -> None:
    model = forest.ensemble(forest.random_trees(0, ("LEQ",)), **{name: number})
    with pytest.raises(InvalidModelError, match=f"{name} is {number}"):
        compile_model(model, TreeShap(np.zeros((2, 5))))


def test_sets_that_do_not_fit() -> None:
    model = forest.ensemble(forest.random_trees(0, ("MEMBER",), grid=forest.MEMBERS))
    membership = next(a for a in model.graph.node[0].attribute if a.name == "membership_values")
    membership.t.CopyFrom(onnx.numpy_helper.from_array(np.array([1.0, 2.0, np.nan], np.float32), "sets"))
    with pytest.raises(InvalidModelError, match=r"membership_values hold 1 sets\b"):
        compile_model(model, TreeShap(np.zeros((2, 5))))


def chain(depth: int) -> onnx.ModelProto:
    """One tree that is a list of splits."""
    node: forest.Node = forest.Leaf((0.0,))
    for i in range(depth):
        node = forest.Split(i % 5, "LEQ", (float(i),), False, forest.Leaf((float(i),)), node)
    return forest.regressor([node])


def test_a_tree_that_is_deeper_than_onnx_runtime_survives() -> None:
    started = time.monotonic()
    with pytest.raises(InvalidModelError, match=r"\b20000\b.*\b2000\b"):
        compile_model(chain(20_000), TreeShap(np.zeros((2, 5))))
    assert time.monotonic() - started < 30


def test_a_split_at_the_largest_number_is_no_split_of_a_form() -> None:
    """LightGBM writes such a split for a column in which only missing values differ."""
    largest = float(np.finfo(np.float32).max)
    trees = [
        forest.Split(0, "LEQ", (bound,), False, forest.Leaf((1.0,)), forest.Leaf((2.0,)))
        for bound in (0.5, largest)
    ]
    compiled = compile_model(forest.regressor(trees), TreeShap(np.zeros((2, 5), np.float32)))
    assert compiled.manifest.splits == {"x[0]": (pytest.approx(0.5),)}


@pytest.mark.full
def test_a_forest_of_a_hundred_thousand_leaves() -> None:
    trees = [
        forest.Split(i % 5, "LEQ", (float(i),), False, forest.Leaf((1.0,)), forest.Leaf((2.0,)))
        for i in range(50_000)
    ]
    started = time.monotonic()
    with pytest.raises(UnsupportedModelError, match=r"\b50000 trees\b.*\b100000 leaves\b.*\b65536\b"):
        compile_model(forest.regressor(trees), TreeShap(np.zeros((2, 5))))
    assert time.monotonic() - started < 60


def near(numbers: Sequence[float], dtype: Any) -> np.ndarray:
    """Rows of these numbers, of those on both sides of each, and of what float32 makes of them; and NaN."""
    values = np.asarray(numbers, dtype)
    around = [
        values,
        np.nextafter(values, -np.inf),
        np.nextafter(values, np.inf),
        values.astype(np.float32),
        [np.nan],
    ]
    return np.repeat(np.concatenate(around).astype(dtype)[:, None], 5, axis=1)


THRESHOLDS = (0.1, 0.2, 0.3, 0.7, 1.1)  # none of which float32 has


@pytest.mark.parametrize("mode", forest.MODES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_thresholds_are_compared_in_the_precision_of_the_input(mode: str, dtype: Any) -> None:
    grid = tuple(float(dtype(t)) for t in THRESHOLDS)
    trees, x = forest.random_trees(2, (mode,), grid=grid), near(grid, dtype)
    ensemble = read_ensemble(forest.ensemble(trees, dtype=dtype).graph.node[0], 5, np.dtype(dtype))
    np.testing.assert_allclose(ensemble.scores(x), forest.scores(trees, x), rtol=1e-6)


def test_a_set_that_names_a_number_twice() -> None:
    tree = forest.Split(0, "MEMBER", (1.0, 2.0, 1.0), False, forest.Leaf((1.0,)), forest.Leaf((2.0,)))
    ensemble, x = read_ensemble(forest.ensemble([tree]).graph.node[0], 5), near((1, 2, 3), np.float32)
    np.testing.assert_array_equal(ensemble.scores(x), forest.scores([tree], x))


@pytest.mark.parametrize(
    "cover",
    [[1, 3, -2], [-1, -3, 2], [2, np.nan, 2], [np.inf, 1, np.inf], [4, 1, 2], [1, 1, 1], [0, 0, 0]],
    ids=str,
)
def test_what_are_no_covers(cover: list[float]) -> None:
    yes, no, split = np.array([1, 0, 0]), np.array([2, 0, 0]), np.array([True, False, False])
    assert passing_share(np.array(cover, float), yes, no, split) is None
    share = passing_share(np.array([4.0, 1.0, 3.0]), yes, no, split)
    assert share is not None
    np.testing.assert_array_equal(share, [0.25, np.nan, np.nan])


def test_leaves_on_too_many_features_get_no_tables() -> None:
    node: forest.Node = forest.Leaf((1.0,))
    for i in range(14):
        node = forest.Split(i, "LEQ", (0.0,), False, node, forest.Leaf((0.0,)))
    ensemble = read_ensemble(forest.regressor([node], 14).graph.node[0], 14)
    with pytest.raises(UnsupportedModelError, match=r"\b14 features\b.*2\^14"):
        build_tables(ensemble, ensemble.weights, np.zeros((2, 14)), None, np.arange(14))


def test_leaves_that_are_not_added_up() -> None:
    model = stump(aggregate_function="MAX")
    with pytest.raises(UnsupportedModelError, match=r"\bMAX\b.*AVERAGE"):
        compile_model(model, TreeShap(np.zeros((2, 5))))


def test_the_one_leaf_that_counts_is_of_both_classes() -> None:
    """One number of two classes is the second's score, and with its sign turned the first's."""
    attributes = {name: value for name, value in STUMP.items() if name.startswith("nodes_")}
    entry = {"treeids": [0], "nodeids": [2], "ids": [0], "weights": [-2.0]}
    attributes |= {f"class_{name}": value for name, value in entry.items()} | {"classlabels_int64s": [0, 1]}
    node = onnx.helper.make_node(
        "TreeEnsembleClassifier", ["x"], ["label", "p"], domain="ai.onnx.ml", **attributes
    )
    x = np.array([[-1.0] * 5, [1.0] * 5], np.float32)
    answered = Runner(forest.model_of(node, 5, {"p": 2}))({"x": x})["p"]
    np.testing.assert_array_equal(answered[1], [2, -2])
    np.testing.assert_array_equal(read_ensemble(node, 5).scores(x), answered)


def test_equals_in_a_row_are_one_split() -> None:
    """Sets are written as comparisons in a row with one node behind all of them."""
    model = stump(
        nodes_treeids=[0] * 4,
        nodes_nodeids=[0, 1, 2, 3],
        nodes_featureids=[0] * 4,
        nodes_modes=["BRANCH_EQ", "BRANCH_EQ", "LEAF", "LEAF"],
        nodes_values=[1.0, 2.0, 0.0, 0.0],
        nodes_truenodeids=[2, 2, 0, 0],
        nodes_falsenodeids=[1, 3, 0, 0],
        nodes_missing_value_tracks_true=[0, 1, 0, 0],
        target_nodeids=[2, 3],
    )
    ensemble = read_ensemble(model.graph.node[0], 5)
    x = np.zeros((5, 5), np.float32)
    x[:, 0] = [1, 2, 3, 1.5, np.nan]
    np.testing.assert_array_equal(ensemble.scores(x)[:, 0], [1, 1, 2, 2, 1])
    assert ensemble.leaves_below()[0] == 2
