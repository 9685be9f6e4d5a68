"""Shapley values of random tree ensembles against the enumeration of every coalition."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from rationale import TreeShap, compile_model
from rationale.trees import emit
from rationale.trees.leaves import leaf_interactions, leaf_values
from rationale.trees.read import read_ensemble
from rationale.trees.tables import trees_of
from tests.references import trees as forest
from tests.tolerances import COMPLETE_32, COMPLETE_64, PARITY_32

K, N = 7, 9
PLAIN = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")


def assert_exact(
    model: onnx.ModelProto,
    trees: list[forest.Node],
    name: str,
    columns: list[int],
    grid: Sequence[float] = forest.GRID,
    **more: Any,
) -> None:
    """Attributions of some columns of the trees' scores, and what they add up to."""
    references, x = forest.rows(1, K, grid=grid), forest.rows(2, N, grid=grid)
    answer = compile_model(model, TreeShap(references), **more).explain(x)
    expected = forest.shapley(lambda z: forest.scores(trees, z), x, references)[:, columns]
    assert np.abs(answer["x_attributions"] - expected).max() <= PARITY_32 * np.abs(expected).max()
    difference = answer["explained_value"] - answer["base_value"]
    scores = forest.scores(trees, x) - forest.scores(trees, references).mean(axis=0)
    assert np.abs(difference - scores[:, columns]).max() <= PARITY_32 * np.abs(scores).max()
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32 * np.abs(difference).max()
    session = onnxruntime.InferenceSession(model.SerializeToString())
    np.testing.assert_array_equal(answer[name], session.run([name], {"x": x})[0])


@pytest.mark.parametrize("modes", [*((mode,) for mode in PLAIN), PLAIN], ids="-".join)
def test_every_mode_with_ties_and_missing_values(modes: tuple[str, ...]) -> None:
    trees = forest.random_trees(len(modes[0]), modes)
    assert_exact(forest.regressor(trees, base_values=[0.3]), trees, "y", [0])


def test_leaves_on_the_same_features_share_a_table() -> None:
    sides = [
        forest.Split(1, "LEQ", (0.0,), False, forest.Leaf((i,)), forest.Leaf((i + 1.0,))) for i in (1.0, 3.0)
    ]
    ensemble = read_ensemble(
        forest.regressor([forest.Split(0, "LEQ", (0.0,), False, *sides)]).graph.node[0], 5
    )
    (tree,) = trees_of(ensemble, ensemble.weights)
    assert [(group.rows, len(group.leaves)) for group in tree.groups] == [(4, 4)]


def test_leaves_of_value_0_are_in_no_table() -> None:
    root = forest.Split(0, "LEQ", (0.0,), False, forest.Leaf((0.0,)), forest.Leaf((2.0,)))
    ensemble = read_ensemble(forest.regressor([root]).graph.node[0], 5)
    (tree,) = trees_of(ensemble, ensemble.weights)
    assert sum(len(group.leaves) for group in tree.groups) == 1


@pytest.mark.parametrize(
    "modes", [("MEMBER",), ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")], ids="-".join
)
def test_sets(modes: tuple[str, ...]) -> None:
    trees = forest.random_trees(3, modes, grid=forest.MEMBERS)
    assert_exact(forest.ensemble(trees), trees, "y", [0], forest.MEMBERS)


def test_in_float64() -> None:
    trees = forest.random_trees(4, PLAIN)
    references, x = (forest.rows(seed, count).astype(np.float64) for seed, count in ((1, K), (2, N)))
    weights = np.arange(1, K + 1)
    compiled = compile_model(forest.ensemble(trees, dtype=np.float64), TreeShap(references, weights=weights))
    expected = forest.shapley(lambda z: forest.scores(trees, z), x, references, weights)
    answer = compiled.explain(x)
    assert answer["x_attributions"].dtype == np.float64
    assert np.abs(answer["x_attributions"] - expected).max() <= COMPLETE_64
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_64


def test_weights_of_references_count() -> None:
    trees, references, x = forest.random_trees(5, ("LEQ",)), forest.rows(1, K), forest.rows(2, N)
    weights = np.random.default_rng(0).random(K)
    answer = compile_model(forest.regressor(trees), TreeShap(references, weights=weights)).explain(x)
    expected = forest.shapley(lambda z: forest.scores(trees, z), x, references, weights)
    assert np.abs(answer["x_attributions"] - expected).max() <= PARITY_32 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("targets", "columns"), [("all", [0, 1, 2]), ([2], [2]), ([1, 0], [1, 0])], ids=["all", "one", "two"]
)
def test_columns(targets: object, columns: list[int]) -> None:
    trees = forest.random_trees(6, ("LEQ", "GT"), columns=3)
    model = forest.regressor(trees, base_values=[0.1, 0.2, 0.3])
    assert_exact(model, trees, "y", columns, targets=targets)


def test_groups_of_few_bits_and_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit, "_SHELF", 0)
    trees = forest.random_trees(10, PLAIN, columns=3)
    assert_exact(forest.regressor(trees), trees, "y", [0, 1, 2], targets="all")
    equal = forest.Split(
        0, "EQ", (0.5,), False, forest.Leaf((1.0,)), forest.Leaf((-2.0,))
    )  # a step on, and one back
    assert_exact(forest.regressor([equal]), [equal], "y", [0])


def test_contrasts_are_differences() -> None:
    trees, references, x = forest.random_trees(6, ("LT",), columns=3), forest.rows(1, K), forest.rows(2, N)
    every, contrast = (
        compile_model(forest.regressor(trees), TreeShap(references), targets=targets).explain(x)[
            "x_attributions"
        ]
        for targets in ("all", ["2-0"])
    )
    assert np.abs(contrast[:, 0] - (every[:, 2] - every[:, 0])).max() <= PARITY_32 * np.abs(every).max()


def test_the_predicted_class_of_each_row() -> None:
    trees, references, x = forest.random_trees(7, ("LEQ",), columns=3), forest.rows(1, K), forest.rows(2, 40)
    model = forest.classifier(trees, 3)
    answer, every = (
        compile_model(model, TreeShap(references), targets=targets).explain(x)
        for targets in ("predicted", "all")
    )
    winner = forest.scores(trees, x).argmax(axis=1)
    assert len(set(winner)) == 3
    np.testing.assert_array_equal(answer["x_attributions"][:, 0], every["x_attributions"][range(40), winner])
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32


@pytest.mark.parametrize(("model", "average"), [(forest.regressor, "AVERAGE"), (forest.ensemble, 0)])
def test_an_average_of_trees(model: Callable[..., onnx.ModelProto], average: str | int) -> None:
    trees, references, x = forest.random_trees(8, ("LEQ",)), forest.rows(1, K), forest.rows(2, N)
    answer = compile_model(model(trees, aggregate_function=average), TreeShap(references)).explain(x)
    expected = forest.shapley(lambda z: forest.scores(trees, z) / len(trees), x, references)
    assert np.abs(answer["x_attributions"] - expected).max() <= PARITY_32 * np.abs(expected).max()


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("signed", [True, False], ids=["signed", "positive"])
def test_one_score_for_two_classes(transform: str, signed: bool) -> None:
    trees = forest.random_trees(9, ("LEQ",))
    if not signed:
        trees = [_positive(tree) for tree in trees]
    references, x = forest.rows(1, K), forest.rows(2, N)
    model = forest.classifier(trees, 2, only=0, post_transform=transform, base_values=[0.25])
    compiled = compile_model(model, TreeShap(references), targets="all")
    answer = compiled.explain(x)
    expected = forest.shapley(lambda z: forest.scores(trees, z), x, references)[:, 0]
    assert np.abs(answer["x_attributions"][:, 1] - expected).max() <= PARITY_32 * np.abs(expected).max()
    assert np.abs(answer["x_attributions"][:, 0] + expected).max() <= PARITY_32 * np.abs(expected).max()
    if transform == "LOGISTIC":
        assert compiled.manifest.explained_output == "p_margin"
        np.testing.assert_allclose(answer["p"], 1 / (1 + np.exp(-answer["explained_value"])), atol=1e-6)
        assert any("margin" in warning for warning in compiled.manifest.warnings)
    else:
        np.testing.assert_array_equal(answer["p"], answer["explained_value"])


def _positive(node: forest.Node) -> forest.Node:
    if isinstance(node, forest.Leaf):
        return forest.Leaf(tuple(abs(w) for w in node.weights))
    return forest.Split(
        node.feature, node.mode, node.numbers, node.missing, _positive(node.yes), _positive(node.no)
    )


@pytest.mark.parametrize("transform", ["SOFTMAX", "SOFTMAX_ZERO"])
def test_the_margin_of_a_softmax(transform: str) -> None:
    trees, references, x = forest.random_trees(10, ("LEQ",), columns=3), forest.rows(1, K), forest.rows(2, N)
    model = forest.classifier(trees, 3, post_transform=transform, base_values=[0.1, 0.2, 0.3])
    answer = compile_model(model, TreeShap(references), targets="all").explain(x)
    expected = forest.shapley(lambda z: forest.scores(trees, z), x, references)
    assert np.abs(answer["x_attributions"] - expected).max() <= PARITY_32 * np.abs(expected).max()
    powers = np.exp(answer["explained_value"])
    np.testing.assert_allclose(answer["p"], powers / powers.sum(axis=1, keepdims=True), atol=1e-6)


def test_a_margin_that_is_nearly_what_is_made_of_it() -> None:
    """LOGISTIC of 0.659 is 0.659, and of scores around it about 0.01 away: Shapley values are the scores'."""
    trees: list[forest.Node] = [
        forest.Split(0, "LEQ", (0.0,), False, forest.Leaf((0.645,)), forest.Leaf((0.675,)))
    ]
    model = forest.classifier(trees, 2, only=0, post_transform="LOGISTIC")
    answer = compile_model(model, TreeShap(forest.rows(1, K)), targets=[1]).explain(forest.rows(2, N))
    np.testing.assert_allclose(answer["explained_value"], forest.scores(trees, forest.rows(2, N)), rtol=1e-6)


def seven_stumps_of_each_feature() -> list[forest.Node]:
    leaves = [forest.Leaf((float(w),)) for w in np.random.default_rng(0).standard_normal(70)]
    pairs = zip(leaves[::2], leaves[1::2], strict=True)
    return [forest.Split(i % 5, "LEQ", (0.0,), False, *pair) for i, pair in enumerate(pairs)]


@pytest.mark.parametrize(
    ("trees", "features"),
    [
        (forest.random_trees(11, PLAIN, features=20, trees=60, depth=5), 20),
        (seven_stumps_of_each_feature(), 5),
    ],
    ids=["deep", "stumps"],
)
def test_batches_and_threads_answer_the_same_bits(trees: list[forest.Node], features: int) -> None:
    """ONNX Runtime's own tree operator does not: its threads share the trees out by the batch. Nor does a sum
    of seven numbers: where in memory they begin decides in which order they are added.
    """
    references, x = forest.rows(1, 30, features), forest.rows(2, 64, features)
    compiled = compile_model(forest.regressor(trees, features), TreeShap(references))
    answers = []
    for threads, batch in ((1, 64), (2, 64), (1, 3), (2, 1)):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(compiled.model.SerializeToString(), options)
        parts = [session.run(["x_attributions"], {"x": x[i : i + batch]})[0] for i in range(0, 64, batch)]
        answers.append(np.concatenate(parts))
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer, answers[0])


def test_an_input_that_is_moved() -> None:
    """[N, 1, 5] in float64, reshaped and cast before the trees read it."""
    trees, references, x = forest.random_trees(12, ("LEQ",)), forest.rows(1, K), forest.rows(2, N)
    model = forest.regressor(trees)
    graph = model.graph
    shape = onnx.numpy_helper.from_array(np.array([-1, 5]), "shape")
    graph.initializer.append(shape)
    graph.node[0].input[0] = "flat"
    graph.node.insert(0, onnx.helper.make_node("Reshape", ["cast", "shape"], ["flat"]))
    graph.node.insert(0, onnx.helper.make_node("Cast", ["x"], ["cast"], to=onnx.TensorProto.FLOAT))
    graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.DOUBLE, ["N", 1, 5]))
    answer = compile_model(model, TreeShap(references[:, None].astype(np.float64))).explain(x[:, None])
    expected = forest.shapley(lambda z: forest.scores(trees, z), x, references)
    assert np.abs(answer["x_attributions"][:, :, 0] - expected).max() <= PARITY_32 * np.abs(expected).max()


@pytest.mark.parametrize("transform", [leaf_values, leaf_interactions])
def test_a_leaf_alone_has_the_values_that_it_has_among_others(
    transform: Callable[[np.ndarray], np.ndarray],
) -> None:
    """The transform gives equal bits for any grouping of leaves, so an entry's bytes do not depend on it."""
    patterns = np.random.default_rng(0).integers(0, 50, (9, 1 << 5)) / 1000
    together = transform(patterns)
    for i in range(len(patterns)):
        np.testing.assert_array_equal(transform(patterns[i : i + 1]), together[i : i + 1])
