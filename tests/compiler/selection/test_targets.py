"""Which elements of the output are explained where none are named."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from rationale import DeepShap, Gradient, Lrp, compile_model
from rationale.cli.compile import app
from rationale.evaluate.evaluate import EvaluationSettings, evaluate
from rationale.pictures.panels import LayerFlow
from tests.compiler.models import FEATURES, HIDDEN, mlp, parsed, rows

REFERENCES = rows(4, FEATURES)
SHAPES: dict[tuple[int, ...], Any] = {
    (1,): (0,),
    (2,): (1,),
    (3,): "predicted",
    (1, 2): "predicted",
    (2, 1): "predicted",
    (2, 3): "predicted",
    (1, 1): (0,),
}


def of_shape(*row: int) -> onnx.ModelProto:
    """y [N, *row] of x [N, 5]."""
    size = int(np.prod(row))
    text = f"""g (float[N, {FEATURES}] x) => (float[N, {", ".join(map(str, row))}] y) {{
        z = MatMul (x, w)
        y = Reshape (z, shape)
    }}"""
    shape = np.array([0, *row], np.int64)
    return parsed(text, {"w": rows(FEATURES, size, seed=1), "shape": shape})


@pytest.mark.parametrize("row", SHAPES)
def test_the_default_follows_the_shape(row: tuple[int, ...]) -> None:
    manifest = compile_model(of_shape(*row), DeepShap(REFERENCES)).manifest
    assert manifest.targets == SHAPES[row]
    assert manifest.explained_shape == row


@pytest.mark.parametrize("last", ["Softmax", "Identity"])
def test_class_1_of_two_is_explained_in_every_row(last: str) -> None:
    """Probabilities and logits: what raises one row's answer raises every other's."""
    model, x = mlp((FEATURES, HIDDEN, 2), last=last), rows(9, FEATURES, seed=3)
    compiled = compile_model(model, DeepShap(REFERENCES))
    answer = compiled.explain(x)
    assert set(answer["y"].argmax(axis=1)) == {0, 1}
    np.testing.assert_array_equal(answer["explained_value"], answer["y"][:, 1:])
    assert (
        compiled.manifest.digests == compile_model(model, DeepShap(REFERENCES), targets=[1]).manifest.digests
    )


def test_class_1_of_the_scores_that_a_method_prefers() -> None:
    manifest = compile_model(mlp((FEATURES, HIDDEN, 2)), Lrp()).manifest
    assert (manifest.explained_output, manifest.targets, manifest.explained_shape) == ("z2", (1,), (2,))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), r"y \(targets: 1, element 1 of two\) by x"),
        (("--targets", "0"), r"y \(targets: 0, element 0 of two\) by x"),
        (("--targets", "all"), r"y \(targets: 0, 1\) by x"),
        (("--targets", "predicted"), r"y \(targets: predicted\) by x"),
    ],
)
def test_compile_and_check_say_which_of_two_it_is(
    options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    onnx.save(mlp((FEATURES, HIDDEN, 2)), tmp_path / "m.onnx")
    np.save(tmp_path / "r.npy", REFERENCES)
    place = ("--repository", str(tmp_path / "entries"))
    arguments = (str(tmp_path / "m.onnx"), "--references", str(tmp_path / "r.npy"), "--name", "m", *place)
    for command in (("compile", *arguments, *options), ("check", "m", *place)):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        assert re.search(rf"^explains +{words}, deepshap *$", result.stdout, re.MULTILINE), result.stdout
        assert result.stderr == ""


CONTRASTS: dict[str, Callable[[], Any]] = {"deepshap": lambda: DeepShap(REFERENCES), "lrp": Lrp}


@pytest.mark.parametrize("method", CONTRASTS)
def test_a_contrast_is_the_difference_of_two_explanations(method: str) -> None:
    """Where the rules are linear in the seed, as all of them are."""
    x = rows(6, FEATURES, seed=2)
    compiled = compile_model(mlp(last="Identity"), CONTRASTS[method](), targets=["2-0", 0, 2])
    assert compiled.manifest.targets == ("2-0", 0, 2)
    answer = compiled.explain(x)
    for name in ("x_attributions", "explained_value"):
        value = answer[name]
        np.testing.assert_allclose(value[:, 0], value[:, 2] - value[:, 1], atol=1e-6)
    if method == "deepshap":
        total = answer["x_attributions"].sum(axis=2) + answer["base_value"]
        np.testing.assert_allclose(total, answer["explained_value"], atol=1e-5)


def test_contrasts_on_the_command_line(tmp_path: Path) -> None:
    onnx.save(mlp(last="Identity"), tmp_path / "m.onnx")
    common = ["compile", str(tmp_path / "m.onnx"), "--name", "m", "--method", "lrp"]
    common += ["--repository", str(tmp_path / "r"), "--targets"]
    result = CliRunner().invoke(app, [*common, "1, 2-0"])
    assert result.exit_code == 0, result.output
    assert "1, 2-0" in result.output
    for wrong in ("1-1", "5-0", "a-b", "1-2-3", "-1"):
        result = CliRunner().invoke(app, [*common, wrong])
        assert result.exit_code != 0
        assert "contrasts" in result.output


def test_a_contrast_is_evaluated(tmp_path: Path) -> None:
    """As a difference of the model's answers: deleting features lowers it."""
    np.save(tmp_path / "x.npy", rows(12, FEATURES, seed=2))
    compiled = compile_model(mlp(last="Identity"), Lrp(), targets=["2-0", 1], layers="all")
    compiled.write(tmp_path / "r", "m")
    (report,) = evaluate(tmp_path / "r", ["m"], tmp_path / "x.npy", settings=EvaluationSettings(rows=12))
    assert report.targets == 2
    assert report.randomised.stages
    assert any("y[2-0]" in panel.title for panel in report.panels)
    flows = [panel for panel in report.panels if isinstance(panel, LayerFlow)]
    assert flows
    for flow in flows:  # the bias of the last layer is kept there
        assert flow.labels == ("x", "z1", "y")
        np.testing.assert_allclose(flow.raising[-1] + flow.lowering[-1], flow.total, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "due"), [("float16", 0), ("float32", 1)])
def test_of_classes_that_tie_as_the_model_rounds_the_first_is_explained(dtype: str, due: int) -> None:
    """1.0002 is 1 in float16: both classes have the same score there, and not in float32."""
    kind = {"float16": "float16", "float32": "float"}[dtype]
    text = f"g ({kind}[N, 2] x) => ({kind}[N, 3] y) {{ z = MatMul (x, w) y = Add (z, b) }}"
    numbers = np.dtype(dtype)
    weights = {
        "w": np.array([[1, 0, 0], [0, 1, 0]], numbers),
        "b": np.array([0, 0.0002, 0], numbers),
    }
    model = parsed(text, weights)
    answer = compile_model(model, Gradient(times_input=True), targets="predicted").explain(
        np.ones((1, 2), numbers)
    )
    assert answer["y"].argmax(axis=1) == [due]
    np.testing.assert_array_equal(answer["x_attributions"][0, 0], np.eye(2)[due])
