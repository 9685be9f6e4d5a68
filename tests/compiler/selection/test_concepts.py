"""Concepts: the channels of a layer, and what the inputs contribute by way of the most relevant ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from rationale import Concepts, DeepShap, Deployment, Gradient, IntegratedGradients, Lrp, compile_model
from rationale.cli.compile import app
from rationale.errors import InvalidOptionError
from rationale.pictures.panels import Heat, panels_of
from rationale.pictures.words import NUMBERS
from rationale.schema.manifest import Manifest
from tests.compiler.models import cnn, mlp, parsed, rows, two_inputs
from tests.compiler.selection.test_layers import R, X, branched
from tests.tolerances import PARITY_32

METHODS: dict[str, Callable[[], Any]] = {
    "deepshap": lambda: DeepShap(R),
    "input x gradient": lambda: Gradient(times_input=True),
    "lrp": Lrp,
}


def explained(
    model: onnx.ModelProto, method: str, concepts: Concepts, targets: Any = (0, "2-1")
) -> dict[str, np.ndarray]:
    return dict(compile_model(model, METHODS[method](), concepts=concepts, targets=targets).explain(X))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["r", "n"])
def test_all_channels_together_are_the_explanation(name: str, method: str) -> None:
    """Of a layer that every way leads through."""
    answer = explained(cnn() if name == "r" else branched(), method, Concepts(name, 4))
    heatmaps, whole = answer["x_concept_attributions"], answer["x_attributions"]
    assert heatmaps.shape == (3, 2, 4, 2, 6, 8)
    np.testing.assert_allclose(heatmaps.sum(axis=2), whole, atol=PARITY_32 * np.abs(whole).max())


@pytest.mark.parametrize("method", METHODS)
def test_a_channel_is_what_a_network_without_the_others_says(method: str) -> None:
    """The head's weights of all other channels are 0, which leaves one way: a graph for each channel."""
    model = branched()
    answer = explained(model, method, Concepts("r", 2), targets=[0])
    shares, channels = answer["r_channel_attributions"], answer["r_channels"]
    np.testing.assert_array_equal(channels, np.argsort(-np.abs(shares), axis=2, kind="stable")[:, :, :2])
    for channel in range(4):
        alone = branched()
        (weight,) = (t for t in alone.graph.initializer if t.name == "w")
        mask = np.zeros((4, 1), np.float32)
        mask[channel] = 1
        weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * mask, "w"))
        alone_answer = compile_model(alone, METHODS[method](), layers=["r"], targets=[0]).explain(X)
        expected = alone_answer["r_attributions"][:, 0].sum(axis=(1, 2, 3))
        np.testing.assert_allclose(shares[:, 0, channel], expected, atol=PARITY_32 * np.abs(shares).max())
        for i, place in zip(*np.nonzero(channels[:, 0] == channel), strict=True):
            got, want = answer["x_concept_attributions"][i, 0, place], alone_answer["x_attributions"][i, 0]
            np.testing.assert_allclose(got, want, atol=PARITY_32 * np.abs(want).max())


def test_the_heatmap_adds_up_to_its_channel() -> None:
    """Under DeepSHAP, of one of two branches, too."""
    answer = explained(branched(), "deepshap", Concepts("d", 3))
    sums = answer["x_concept_attributions"].sum(axis=(3, 4, 5))
    expected = np.take_along_axis(answer["d_channel_attributions"], answer["d_channels"], axis=2)
    np.testing.assert_allclose(sums, expected, atol=PARITY_32 * np.abs(expected).max())


def test_tokens_have_their_channels_last() -> None:
    text = """g (float[N, 5, 4] x) => (float[N, 2] y) {
        h = MatMul (x, w)
        t = Tanh (h)
        m = ReduceMean <keepdims = 0> (t, one)
        y = MatMul (m, v)
    }"""
    model = parsed(text, {"w": rows(4, 6), "v": rows(6, 2, seed=1), "one": np.int64([1])})
    compiled = compile_model(model, DeepShap(rows(3, 5, 4)), concepts=Concepts("t", 2, axis=2), targets=[0])
    answer = compiled.explain(rows(2, 5, 4, seed=3))
    assert answer["t_channel_attributions"].shape == (2, 1, 6)
    sums = answer["x_concept_attributions"].sum(axis=(3, 4))
    expected = np.take_along_axis(answer["t_channel_attributions"], answer["t_channels"], axis=2)
    np.testing.assert_allclose(sums, expected, atol=1e-6)


@pytest.mark.parametrize(
    "deployment",
    [Deployment(one_shot=True), Deployment(memory_budget=300_000)],
    ids=["one shot", "in chunks"],
)
def test_other_graphs(deployment: Deployment) -> None:
    method = DeepShap(rows(40, *R.shape[1:]))
    plain, other = (
        compile_model(branched(), method, concepts=Concepts("r", 2), targets=[0], deployment=d).explain(X)
        for d in (Deployment(), deployment)
    )
    for name in ("r_channels", "r_channel_attributions", "x_concept_attributions"):
        np.testing.assert_allclose(other[name], plain[name], atol=PARITY_32 * np.abs(plain[name]).max())


def test_an_input_that_does_not_reach_the_layer_contributes_nothing() -> None:
    a, b = rows(3, 3, seed=4), rows(3, 4, seed=5)
    method = DeepShap({"a": rows(2, 3, seed=6), "b": rows(2, 4, seed=7)})
    compiled = compile_model(two_inputs(), method, concepts=Concepts("pt", 2), targets=[0])
    answer = compiled.explain({"a": a, "b": b})
    assert answer["b_concept_attributions"].shape == (3, 1, 2, 4)
    assert not answer["b_concept_attributions"].any()
    expected = np.take_along_axis(answer["pt_channel_attributions"], answer["pt_channels"], axis=2)
    np.testing.assert_allclose(answer["a_concept_attributions"].sum(axis=3), expected, atol=1e-6)


BAD: dict[str, tuple[Concepts, str]] = {
    "unknown": (Concepts("conv"), "are not on the path"),
    "an input": (Concepts("x"), "name a tensor after the inputs"),
    "no such axis": (Concepts("d", 2, 4), "an axis 4; .* the shape .4, 6, 8."),
    "none": (Concepts("d", 0), "4 channels on axis 1; give a count from 1 to that number, not 0"),
    "too many": (Concepts("d", 5), "give a count from 1 to that number, not 5"),
    "joined": (Concepts("c", 2), "layer 'c' has no separate attribution.* name 'n' instead"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_has_no_concepts(name: str) -> None:
    concepts, words = BAD[name]
    with pytest.raises(InvalidOptionError, match=words):
        compile_model(branched(), Lrp(), concepts=concepts, targets=[0])


@pytest.mark.parametrize("arguments", [{"count": "2"}, {"count": True}, {"axis": 1.0}, {"axis": -1}])
def test_counts_and_axes_are_whole_numbers(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError, match=f"concepts of 'd': {next(iter(arguments))} must be a whole"):
        Concepts("d", **arguments)
    assert Concepts("d", np.int64(2)) == Concepts("d", 2)


def test_a_method_on_paths_has_none() -> None:
    with pytest.raises(InvalidOptionError, match=r"integrated-gradients .*--input"):
        compile_model(branched(), IntegratedGradients(R[:1]), concepts=Concepts("d", 2))


def test_the_command_and_its_picture(tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    common = ["compile", str(tmp_path / "m.onnx"), "--name", "m", "--method", "lrp"]
    common += ["--repository", str(tmp_path / "r")]
    result = CliRunner().invoke(app, [*common, "--concepts", "h1=3", "--concept-axis", "1"])
    assert result.exit_code == 0, result.output
    assert "3 channels of h1" in result.output
    manifest = Manifest.read(tmp_path / "r" / "m_explain" / "explanation.json")
    assert manifest.concepts is not None
    assert manifest.concepts.heatmaps == {"x": "x_concept_attributions"}
    for wrong in (["--concepts", "h1"], ["--concepts", "h1=x"], ["--concept-axis", "1"]):
        result = CliRunner().invoke(app, [*common, *wrong])
        assert result.exit_code != 0
        assert "--concepts" in result.output


def test_a_heatmap_for_each_channel() -> None:
    compiled = compile_model(cnn(), Lrp(), concepts=Concepts("r", 2), targets=[1])
    drawn = list(panels_of(compiled.explain(X[:1]), 0, 0, 3, NUMBERS))
    assert len(drawn) == 3
    assert all(isinstance(panel, Heat) for panel in drawn)
    assert "channel" in drawn[1].title
    assert "of r, +" in drawn[1].title
