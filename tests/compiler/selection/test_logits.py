"""`logits`: the tensor of which an output is the last Sigmoid, Softmax or LogSoftmax."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from skl2onnx import to_onnx
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

from rationale import DeepShap, ExactShap, Lrp, compile_model, convert
from rationale.cli.compile import app
from rationale.errors import InvalidOptionError
from rationale.methods.logits import is_probability
from rationale.schema.manifest import Manifest
from tests.compiler.models import mlp, parsed, rows

F, C, K, N = 4, 3, 6, 5
WEIGHTS = {
    "w": rows(F, C, seed=1),
    "one": np.float32(1),
    "sizes": np.array([1, 2]),
    "s": np.array([0, 3]),
}
ENDS = {
    "Softmax": "y = Softmax (z)",
    "LogSoftmax": "y = LogSoftmax (z)",
    "Sigmoid": "y = Sigmoid (z)",
    "behind an Identity": "i = Identity (z)  p = Sigmoid (i)  y = Identity (p)",
    "behind a Dropout": "i = Dropout (z)  y = Softmax (i)",
    "moved and rounded": "p = Softmax (z)  d = Cast <to = 11> (p)  f = Cast <to = 1> (d)  y = Reshape (f, s)",
    "one and the other class": "p = Sigmoid (z)  q = Sub (one, p)  y = Concat <axis = 1> (q, p)",
    "its logarithm": "p = Softmax (z)  y = Log (p)",
}


def ending(text: str, width: str = "C") -> onnx.ModelProto:
    body = f"g (float[N, {F}] x) => (float[N, {width}] y) {{ z = MatMul (x, w)  {text} }}"
    return parsed(body, {**WEIGHTS, "v": rows(C, 2, seed=2)})


@pytest.mark.parametrize("name", ENDS)
def test_the_tensor_before_the_last(name: str) -> None:
    references, x = rows(K, F, seed=3), rows(N, F, seed=4)
    compiled = compile_model(ending(ENDS[name]), DeepShap(references), logits=True, targets="all")
    answer = compiled.explain(x)
    z, r = x @ WEIGHTS["w"], references @ WEIGHTS["w"]
    np.testing.assert_allclose(answer["explained_value"], z, atol=1e-5)
    np.testing.assert_allclose(answer["base_value"], np.tile(r.mean(0), (N, 1)), atol=1e-5)
    want = np.einsum("nf,fc->ncf", x - references.mean(0), WEIGHTS["w"])
    np.testing.assert_allclose(answer["x_attributions"], want, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("y = Relu (z)", "'y' .*Relu.*--logits"),
        ("y = Identity (z)", "ends with MatMul"),
        ("p = Sigmoid (z)  y = Mul (p, z)", "ends with MatMul"),
        ("y = HardSigmoid (z)", "ends with HardSigmoid"),
        ("p = Sigmoid (z)  y = MatMul (p, v)", "ends with MatMul"),
        ("a, b = Split <axis = 1> (z, sizes)  p = Sigmoid (a)  q = Softmax (b)  y = Concat <axis = 1> (p, q)",
         r"\['a', 'b'\].*--output"),
        ("p = Sigmoid (x)  y = Sub (p, x)", "an input"),
    ],
)  # fmt: skip
def test_an_output_that_has_none(text: str, says: str) -> None:
    with pytest.raises(InvalidOptionError, match=says):
        compile_model(ending(text), DeepShap(rows(K, F)), logits=True)


def test_of_the_output_that_is_named() -> None:
    text = "a = Sigmoid (z)  u = MatMul (a, v)  y = Softmax (u)"
    method = DeepShap(rows(K, F))
    assert compile_model(ending(text), method, logits=True).manifest.explained_output == "u"
    compiled = compile_model(ending(text), method, output="a", logits=True)
    assert compiled.manifest.explained_output == "z"
    with pytest.raises(InvalidOptionError, match="no tensor 'b'"):
        compile_model(ending(text), method, output="b", logits=True)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("zipmap", [False, True])
def test_a_scikit_learn_pipeline(classes: int, zipmap: bool) -> None:
    """Two classes are 1 − p beside p of one logit; labels and dictionaries branch off."""
    x = rows(90, F, seed=5)
    labels = np.digitize(x[:, 0] + 0.3 * x[:, 1], [0.0, 0.6][: classes - 1])
    classifier = MLPClassifier((5,), random_state=0, max_iter=5, learning_rate_init=0.1)
    with pytest.warns(match="Maximum iterations"):
        pipeline = make_pipeline(StandardScaler(), classifier).fit(x, labels)
    model = to_onnx(pipeline, x[:1], options={"zipmap": zipmap}, target_opset=17)
    compiled = compile_model(model, DeepShap(x[:K]), logits=True, targets="all")
    answer = compiled.explain(x[:N])
    p = pipeline.predict_proba(x[:N])
    z = answer["explained_value"].astype(np.float64)
    got = 1 / (1 + np.exp(-z)) if classes == 2 else np.exp(z) / np.exp(z).sum(1, keepdims=True)
    np.testing.assert_allclose(got, p[:, 1:] if classes == 2 else p, atol=1e-5)
    difference = np.abs(answer["explained_value"] - answer["base_value"]).max()
    assert np.abs(answer["completeness_gap"]).max() <= 1e-5 * difference


def test_relevance_starts_from_them_too() -> None:
    """Of 1 − p beside p as well; where indices are of the probabilities, those are explained."""
    model = ending(ENDS["one and the other class"])
    assert compile_model(model, Lrp()).manifest.explained_output == "z"
    manifest = compile_model(model, Lrp(), targets=[4]).manifest
    assert manifest.explained_output == "y"
    assert "Explain 'z' instead (--logits)" in manifest.warnings[0]


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(mlp(), "m.onnx")
    onnx.save(mlp(last="Relu"), "relu.onnx")
    np.save("r.npy", rows(K, 5))
    command = ["--references", "r.npy", "--name", "m", "--logits"]
    result = CliRunner().invoke(app, ["compile", "m.onnx", *command])
    assert result.exit_code == 0, result.output
    assert "explains             z2 (targets: predicted) by x" in result.stdout
    assert Manifest.read(Path("model_repository/m_explain/explanation.json")).explained_output == "z2"
    refused = CliRunner().invoke(app, ["compile", "relu.onnx", *command])
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: --logits: output 'y' ends with Relu")


@pytest.mark.parametrize("operator", ["Concat <axis = 1>", "Max", "Mean", "Min"])
@pytest.mark.parametrize(
    ("first", "second", "due"),
    [
        ("p", "q", True),
        ("p", "z", False),  # one of them is no probability, in whichever place
        ("z", "p", False),
        ("p", "half", True),  # a constant within 0 and 1
        ("half", "p", True),
        ("p", "two", False),
        ("two", "p", False),
    ],
)
def test_numbers_between_0_and_1_are_made_of_such(operator: str, first: str, second: str, due: bool) -> None:
    constants = {"half": np.full((1, C), 0.5, np.float32), "two": np.full((1, C), 2, np.float32)}
    text = f"p = Sigmoid (z)  q = Softmax (z)  m = {operator} ({first}, {second})  y = Identity (m)"
    model = parsed(
        f"g (float[N, {F}] x) => (float[N, D] y) {{ z = MatMul (x, w)  {text} }}", {**WEIGHTS, **constants}
    )
    assert is_probability(model, "y") is due


def test_a_label_is_no_probability() -> None:
    """A classifier's label is none, as a number or a text. Its other output is one."""
    x, labels = rows(40, F), (rows(40, F)[:, 0] > 0).astype(int)
    for fitted in (
        GradientBoostingClassifier(n_estimators=2, random_state=0).fit(x, labels),
        LogisticRegression().fit(x, labels),
        LogisticRegression().fit(x, np.array(["no", "yes"])[labels]),
    ):
        model = convert(fitted, x).model
        assert [value.name for value in model.graph.output] == ["label", "probabilities"]
        manifest = compile_model(model, ExactShap(x[:3])).manifest
        assert manifest.probabilities == ("probabilities",)
