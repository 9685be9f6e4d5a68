"""Attributions of probabilities: each reference's of the margin, by every coalition, rescaled one by one."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from typer.testing import CliRunner

from rationale import InvalidOptionError, TreeShap, UnsupportedModelError, compile_model
from rationale.artifact.entry import open_entry
from rationale.cli.compile import app
from rationale.trees.probability import separate_slope, slope
from tests.compiler.models import parsed
from tests.references import trees as forest
from tests.tolerances import COMPLETE_32

K, N = 7, 9
TREES = forest.random_trees(9, ("LEQ", "GT"), trees=8)
REFERENCES, X = forest.rows(1, K), forest.rows(2, N)
WEIGHTS = np.arange(1, K + 1) / np.arange(1, K + 1).sum()
ABSOLUTE = 1e-6  # of probabilities, in float32


def model(transform: str = "LOGISTIC") -> onnx.ModelProto:
    return forest.classifier(TREES, 2, only=0, post_transform=transform, base_values=[0.25])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def margin(x: np.ndarray) -> np.ndarray:
    return forest.scores(TREES, x)[:, 0] + 0.25


def expected_values(
    x: np.ndarray = X,
    references: np.ndarray = REFERENCES,
    margin: Callable[[np.ndarray], np.ndarray] = margin,
    player_of: Sequence[int] = range(5),
) -> np.ndarray:
    """[N, players]"""
    total = np.zeros((N, max(player_of) + 1))
    for r, w in zip(references, WEIGHTS, strict=True):
        attributions = forest.shapley(lambda z: margin(z)[:, None], x, r[None], player_of=player_of)[:, 0]
        rise, run = sigmoid(margin(x)) - sigmoid(margin(r[None])), margin(x) - margin(r[None])
        total += w * attributions * np.divide(rise, run, out=np.zeros(N), where=run != 0)[:, None]
    return total


@pytest.mark.parametrize(
    ("targets", "signs"), [(None, [1]), ("all", [-1, 1]), (["1-0", 1], [2, 1]), ("predicted", None)]
)
def test_each_reference_is_rescaled(targets: object, signs: list[int] | None) -> None:
    compiled = compile_model(
        model(), TreeShap(REFERENCES, weights=WEIGHTS, space="probability"), targets=targets
    )
    answer = compiled.explain(X)
    factors = np.sign(margin(X))[:, None] if signs is None else np.broadcast_to(signs, (N, len(signs)))
    assert (
        np.abs(answer["x_attributions"] - factors[:, :, None] * expected_values()[:, None]).max() <= ABSOLUTE
    )
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32
    assert compiled.manifest.explained_output == "p"
    assert any("not its own Shapley values" in warning for warning in compiled.manifest.warnings)
    if targets is None:
        np.testing.assert_array_equal(answer["explained_value"], answer["p"][:, 1:])
        np.testing.assert_allclose(answer["base_value"], WEIGHTS @ sigmoid(margin(REFERENCES)), atol=ABSOLUTE)


def test_groups_of_raw_inputs() -> None:
    """Trees of five features that preprocessing makes of x [N, 3] and u [N, 1]."""
    order = np.array([2, 0, 3, 0, 1])
    text = "w = Concat <axis = 1> (x, u) v = Gather <axis = 1> (w, order) z = Add (v, v)"
    opsets = '"" : 21, "ai.onnx.ml" : 3'
    raw = parsed(
        f"g (float[N, 3] x, float[N, 1] u) => (float[N, 5] z) {{ {text} }}", {"order": order}, opsets=opsets
    )
    trees = model()
    trees.graph.node[0].input[0] = "z"
    raw.graph.node.extend(trees.graph.node)
    raw.graph.output[0].CopyFrom(trees.graph.output[0])
    x, references = (rows[:, :4] for rows in (X, REFERENCES))
    inputs, reference_inputs = ({"x": rows[:, :3], "u": rows[:, 3:]} for rows in (x, references))
    method = TreeShap(reference_inputs, weights=WEIGHTS, space="probability")
    answer = compile_model(raw, method, groups={"two": ["x[0]", "u[0]"]}).explain(inputs)
    expected = expected_values(x, references, lambda z: margin(2 * z[:, order]), [0, 1, 2, 0])
    assert np.abs(answer["group_attributions"][:, 0] - expected).max() <= ABSOLUTE
    assert np.abs(expected).max(axis=0).min() > 1000 * ABSOLUTE, "nothing to compare"
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32


def test_leaves_without_tables_are_refused() -> None:
    deep: forest.Node = forest.Leaf((1.0,))
    for feature in range(14):
        deep = forest.Split(feature, "LEQ", (0.0,), False, deep, forest.Leaf((-1.0,)))
    trees = forest.classifier([deep], 2, 14, only=0, post_transform="LOGISTIC")
    with pytest.raises(UnsupportedModelError, match=r"\b14 features\b"):
        compile_model(trees, TreeShap(forest.rows(1, K, 14), space="probability"))


@pytest.mark.parametrize("ends", [(-2.0, 1.0), (-12.0, 30.0), (-300.0, 300.0), (0.5, 0.5)], ids=str)
def test_the_slope_is_a_sum_of_few_products(ends: tuple[float, float]) -> None:
    random = np.random.default_rng(0)
    b, a = random.uniform(*ends, 5000), random.uniform(*ends, 400)
    terms = separate_slope(b, *ends)
    slopes = slope(a[:, None], terms.margins) @ terms.weights
    assert np.abs(slopes - slope(a[:, None], b)).max() <= ABSOLUTE / 10
    assert len(terms.margins) <= 20
    assert np.abs(terms.weights).max() <= 3


@pytest.mark.parametrize("base", [-800.0, -40.0, 40.0, 800.0])
def test_a_probability_that_is_flat_everywhere_is_explained_by_zeros(base: float) -> None:
    flat = forest.classifier(TREES, 2, only=0, post_transform="LOGISTIC", base_values=[base])
    answer = compile_model(flat, TreeShap(REFERENCES, space="probability")).explain(X)
    np.testing.assert_allclose(answer["x_attributions"], 0, atol=1e-15)


@pytest.mark.parametrize("base", [-12.0, -4.0, 4.0, 12.0])
def test_rows_far_from_all_references_behind_a_base_value(base: float) -> None:
    """One feature has the whole difference. More references than terms of the slope, all on one side."""
    stumps: list[forest.Node] = [
        forest.Split(0, "LEQ", (float(i),), False, forest.Leaf((0.0,)), forest.Leaf((-base / 20,)))
        for i in range(40)
    ]
    references, x = (np.zeros((count, 5), np.float32) for count in (200, 40))
    references[:, 0], x[:, 0] = np.linspace(25, 40, 200), np.linspace(0, 40, 40)
    shifted = forest.classifier(stumps, 2, only=0, post_transform="LOGISTIC", base_values=[base])
    answer = compile_model(shifted, TreeShap(references, space="probability")).explain(x)
    of_rows, of_references = (sigmoid(forest.scores(stumps, z)[:, 0] + base) for z in (x, references))
    assert np.abs(answer["x_attributions"][:, 0, 0] - (of_rows - of_references.mean())).max() <= ABSOLUTE


def test_what_makes_no_sense() -> None:
    for options in ({"space": "odds"}, {"interactions": True, "space": "probability"}):
        with pytest.raises(InvalidOptionError):
            TreeShap(REFERENCES, **options)
    with pytest.raises(InvalidOptionError, match="needs references"):
        TreeShap(space="probability")
    with pytest.raises(InvalidOptionError, match="post_transform LOGISTIC"):
        compile_model(model("SOFTMAX"), TreeShap(REFERENCES, space="probability"))
    with pytest.raises(InvalidOptionError, match="post_transform LOGISTIC"):
        compile_model(forest.regressor(TREES), TreeShap(REFERENCES, space="probability"))
    with pytest.raises(InvalidOptionError, match=r"logits.*'probability'"):
        compile_model(model(), TreeShap(REFERENCES, space="probability"), logits=True)


def test_the_command(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "m.onnx")
    np.save(tmp_path / "r.npy", REFERENCES)
    arguments = ["compile", tmp_path / "m.onnx", "--name", "m", "--repository", tmp_path]
    arguments += ["--method", "treeshap", "--references", tmp_path / "r.npy", "--space", "probability"]
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    reopened, fresh = (
        open_entry(tmp_path, "m"),
        compile_model(model(), TreeShap(REFERENCES, space="probability")),
    )
    assert reopened.manifest.method.options == {"space": "probability"}
    assert reopened.manifest.digests == fresh.manifest.digests
    np.testing.assert_array_equal(reopened.explain(X)["x_attributions"], fresh.explain(X)["x_attributions"])


def test_batches_answer_the_same_bits() -> None:
    session = onnxruntime.InferenceSession(
        compile_model(model(), TreeShap(REFERENCES, space="probability")).model.SerializeToString()
    )
    margins, whole = session.run(["explained_value", "x_attributions"], {"x": X})
    parts = [session.run(["explained_value", "x_attributions"], {"x": X[i : i + 2]}) for i in range(0, N, 2)]
    same = np.concatenate([p[0] for p in parts]) == margins  # ONNX Runtime's own sums of trees
    np.testing.assert_array_equal(np.concatenate([p[1] for p in parts])[same[:, 0]], whole[same[:, 0]])
    assert same.any()
