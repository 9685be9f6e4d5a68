"""Lengths that a model leaves open: said by the references, or by hand."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from rationale import DeepShap, Gradient, compile_model
from rationale.artifact.entry import open_entry
from rationale.errors import InvalidOptionError, InvalidReferencesError, UnsupportedModelError
from tests.compiler.cli.test_cli import assert_refused, call
from tests.compiler.models import parsed, rows

STEPS, FEATURES = 6, 4
OPEN = parsed(
    """g (float[N, steps, 4] x) => (float[N, 3] y) {
        a = MatMul (x, w)
        shape = Shape (a)
        flat = Reshape (a, shape)
        b = Tanh (flat)
        p = Softmax <axis = 1> (b)
        c = Mul (p, b)
        y = ReduceSum <keepdims = 0> (c, one)
    }""",
    {"w": rows(FEATURES, 3), "one": np.asarray([1])},
)
UNNAMED = parsed("g (float[N, ?, 4] x) => (float[N, ?, 4] y) { y = Tanh (x) }")


def test_references_say_the_length() -> None:
    compiled = compile_model(OPEN, DeepShap(rows(5, STEPS, FEATURES)), targets="all")
    answer = compiled.explain(rows(2, STEPS, FEATURES, seed=1))
    assert answer["x_attributions"].shape == (2, 3, STEPS, FEATURES)
    assert np.abs(answer["completeness_gap"]).max() < 1e-6
    assert any("only rows with steps = 6;" in warning for warning in compiled.manifest.warnings)


def test_so_does_the_caller() -> None:
    compiled = compile_model(OPEN, Gradient(), targets="all", sizes={"steps": STEPS})
    assert compiled.manifest.explained[0].tensor.shape == (STEPS, FEATURES)
    x, h = rows(1, STEPS, FEATURES, seed=1).astype(np.float64), 1e-2
    gradient = compiled.explain(x.astype(np.float32))["x_attributions"][0, 0, 2, 1]
    session = ort.InferenceSession(OPEN.SerializeToString())
    up, down = x.copy(), x.copy()
    up[0, 2, 1] += h
    down[0, 2, 1] -= h
    ends = [session.run(None, {"x": end.astype(np.float32)})[0][0, 0] for end in (up, down)]
    assert gradient == pytest.approx((ends[0] - ends[1]) / (2 * h), abs=1e-3)


def test_the_plain_entry_takes_any_length(tmp_path: Path) -> None:
    compile_model(OPEN, DeepShap(rows(5, STEPS, FEATURES)), targets="all").write(tmp_path, "m")
    plain = ort.InferenceSession(str(tmp_path / "m" / "1" / "model.onnx"))
    assert plain.run(None, {"x": rows(2, STEPS + 3, FEATURES)})[0].shape == (2, 3)
    answer = open_entry(tmp_path, "m").explain(rows(2, STEPS, FEATURES))
    assert answer["x_attributions"].shape == (2, 3, STEPS, FEATURES)


def test_an_axis_without_a_name() -> None:
    compiled = compile_model(UNNAMED, Gradient(), targets=[0], sizes={"x[1]": 3})
    assert compiled.explain(rows(2, 3, 4))["x_attributions"].shape == (2, 1, 3, 4)


def test_an_open_length_that_nobody_says() -> None:
    with pytest.raises(UnsupportedModelError, match=r"shape \[N, steps, 4\].*--size NAME=LENGTH"):
        compile_model(OPEN, Gradient(), targets="all")


def test_references_of_another_length_than_said() -> None:
    with pytest.raises(InvalidReferencesError, match=r"\[K, 7, 4\]|\[5, 6, 4\]"):
        compile_model(OPEN, DeepShap(rows(5, STEPS, FEATURES)), targets="all", sizes={"steps": 7})


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (
            {"sequence": 5},
            r"no input has an open length \['sequence'\]; the model's open lengths are \['steps'\]",
        ),
        ({"steps": 0}, "'steps' must be a whole number, 1 or more, not 0"),
        ({"steps": True}, "not True"),
        ({"steps": 2.5}, "not 2.5"),
    ],
)
def test_lengths_that_make_no_sense(sizes: dict[str, int], words: str) -> None:
    with pytest.raises(InvalidOptionError, match=words):
        compile_model(OPEN, Gradient(), targets="all", sizes=sizes)


def test_on_the_command_line(tmp_path: Path) -> None:
    onnx.save(OPEN, tmp_path / "m.onnx")
    common = ["compile", str(tmp_path / "m.onnx"), "--method", "gradient", "--name", "m"]
    common += ["--repository", str(tmp_path / "repository"), "--targets", "all"]
    assert_refused(call(*common, "--size", "steps"), "give a name and a whole number, such as sequence=128")
    result = call(*common, "--size", f"steps={STEPS}")
    assert result.exit_code == 0, result.output
    assert "only rows with steps = 6;" in " ".join(result.output.split())
