"""`Auto` takes what is exact for the explained output, and says which and why."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser
from typer.testing import CliRunner

from rationale import (
    Auto,
    DeepShap,
    Deployment,
    InvalidOptionError,
    InvalidReferencesError,
    Manifest,
    RationaleError,
    compile_model,
)
from rationale.cli.compile import app
from tests.references import trees as forest

FOREST = forest.random_trees(3, ("LEQ", "GT"), features=5, columns=3)
NEAR = 1e-5


def network(body: str, features: int = 5) -> onnx.ModelProto:
    """Of h = x·w, and constants."""
    weights = ", ".join(str((-1) ** i * (i + 1) / 4) for i in range(features))
    return parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 21]>
        g (float[N, {features}] x) => (float[N, 1] y) {{
            w = Constant<value: tensor = float[{features}, 1] {{{weights}}}>()
            two = Constant<value: tensor = float {{2.0}}>()
            zero = Constant<value: tensor = float {{0.0}}>()
            one = Constant<value: tensor = int64[1] {{1}}>()
            h = MatMul(x, w)
            {body}
        }}""")


def rows(seed: int, count: int, features: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, features)).astype(np.float32)


LINEAR = {
    "a quotient": "a = Div(h, two) b = Sub(a, h) c = Sum(a, b, h) y = Add(c, two)",
    "in float64": "a = Cast<to=11>(h) b = Neg(a) y = Cast<to=1>(b)",
    "side by side": "a = Concat<axis=1>(h, h) y = ReduceSum(a, one)",
}
NOT_LINEAR = {
    "a square": "y = Mul(h, h)",
    "a quotient of two": "a = Abs(h) b = Add(a, two) y = Div(h, b)",
    "a gate": "g = Greater(h, zero) f = Cast<to=1>(g) y = Mul(h, f)",
    "a step": "a = Cast<to=7>(h) y = Cast<to=1>(a)",
    "a kink": "y = Relu(h)",
}


@pytest.mark.parametrize("body", [*LINEAR, *NOT_LINEAR])
def test_linear_or_enumerated(body: str) -> None:
    model = network((LINEAR | NOT_LINEAR)[body])
    references, x = rows(1, 4, 5), rows(2, 3, 5)
    compiled = compile_model(model, Auto(references, np.arange(1, 5)))
    assert compiled.manifest.method.name == ("deepshap" if body in LINEAR else "exactshap")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = forest.shapley(lambda z: session.run(["y"], {"x": z})[0], x, references, np.arange(1, 5))
    np.testing.assert_allclose(compiled.explain(x)["x_attributions"], expected, atol=NEAR)


CHOICES: dict[str, tuple[Callable[[], onnx.ModelProto], int, dict[str, Any], str, str]] = {
    "scores of trees": (lambda: forest.classifier(FOREST, 3, 13), 13, {}, "treeshap", "treeshap, exact: "),
    "a probability of trees": (
        lambda: forest.classifier(FOREST, 3, post_transform="SOFTMAX"),
        5,
        {},
        "exactshap",
        "exactshap, exact: the model is called for every coalition of 5 features",
    ),
    "a probability of trees with many features": (
        lambda: forest.classifier(FOREST, 3, 13, post_transform="SOFTMAX"),
        13,
        {},
        "permutationshap",
        "permutationshap, which estimates Shapley values: no exact method fits this model, nor deepshap; "
        "treeshap explains the score behind it exactly: logits=True (--logits)",
    ),
    "many features": (
        lambda: network("y = Relu(h)", 13),
        13,
        {},
        "deepshap",
        "deepshap, which approximates Shapley values: no exact method fits",
    ),
    "a layer too": (
        lambda: network("y = Relu(h)"),
        5,
        {"layers": ["h"]},
        "deepshap",
        "deepshap, which approximates Shapley values",
    ),
}


def test_treeshap_is_named_where_it_explains_the_logits() -> None:
    model = forest.classifier(FOREST, 3, 13, post_transform="SOFTMAX")
    compiled = compile_model(model, Auto(rows(1, 4, 13)), logits=True)
    assert compiled.manifest.method.name == "treeshap"
    assert compiled.manifest.explained_output.endswith("_margin")


@pytest.mark.parametrize("name", CHOICES)
def test_which_and_why(name: str) -> None:
    model, features, question, method, why = CHOICES[name]
    compiled = compile_model(model(), Auto(rows(1, 4, features)), **question)
    assert compiled.manifest.method.name == method
    manifest = compiled.manifest
    messages = manifest.notes if ", exact:" in why else manifest.warnings
    assert messages[0].startswith(f"auto takes {why}")
    assert sum("auto takes" in text for text in (*manifest.notes, *manifest.warnings)) == 1
    assert not compiled.manifest.explained_output.endswith("_margin")


def test_the_next_one_where_a_graph_cannot_be_made() -> None:
    """4,096 coalitions and 20,000 references are more calls than anybody waits for."""
    references = rows(1, 20_000, 12)
    compiled = compile_model(network("y = Relu(h)", 12), Auto(references))
    assert compiled.manifest.method.name == "deepshap"
    assert "exactshap" in compiled.manifest.warnings[0]


@pytest.mark.parametrize(("features", "method"), [(5, "exactshap"), (13, "deepshap")])
def test_the_one_that_takes_a_missing_reference(features: int, method: str) -> None:
    imputed = network("y = Relu(h)", features)
    imputing = [onnx.helper.make_node("IsNaN", ["x"], ["gone"])]
    imputing += [onnx.helper.make_node("Where", ["gone", "zero", "x"], ["whole"])]
    product = next(node for node in imputed.graph.node if node.op_type == "MatMul")
    product.input[0] = "whole"
    nodes = [n for n in imputed.graph.node if n.op_type == "Constant"] + imputing
    nodes += [n for n in imputed.graph.node if n.op_type != "Constant"]
    del imputed.graph.node[:]
    imputed.graph.node.extend(nodes)
    references = rows(1, 4, features)
    references[1, 2] = np.nan
    compiled = compile_model(imputed, Auto(references))
    assert compiled.manifest.method.name == method
    answer = compiled.explain(references)
    assert np.abs(answer["completeness_gap"]).max() < NEAR


def with_words(features: int) -> onnx.ModelProto:
    """Of floats, and of a column of words."""
    return parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 21, "ai.onnx.ml": 4]>
        g (float[N, {features}] x, string[N, 1] job) => (float[N, 1] y) {{
            pay = ai.onnx.ml.LabelEncoder<
                keys_strings = ["clerk", "smith"], values_floats = [1.0, 2.0], default_float = 0.0>(job)
            axes = Constant<value: tensor = int64[1] {{1}}>()
            h = ReduceSum(x, axes)
            y = Mul(h, pay)
        }}""")


@pytest.mark.parametrize(("features", "method"), [(5, "exactshap"), (13, "permutationshap")])
def test_words_are_not_left_out(features: int, method: str) -> None:
    """DeepSHAP walks to floats alone, so that the words would have no attributions."""
    jobs = np.array([["clerk"], ["smith"], ["none"]], object)
    references = {"x": rows(1, 3, features), "job": jobs}
    compiled = compile_model(with_words(features), Auto(references))
    assert compiled.manifest.method.name == method
    assert [e.tensor.name for e in compiled.manifest.explained] == ["x", "job"]


def test_a_walk_names_the_inputs_that_it_leaves_out() -> None:
    compiled = compile_model(with_words(5), DeepShap(rows(1, 3, 5)))
    text = "these inputs change the output and get no attributions: job. They hold no floats"
    assert compiled.manifest.warnings[0].startswith(text)
    named = compile_model(with_words(5), DeepShap(rows(1, 3, 5)), inputs=["x"])
    assert not any("no attributions" in warning for warning in named.manifest.warnings)


def test_the_command_says_it(tmp_path: Path) -> None:
    onnx.save(forest.regressor(FOREST), tmp_path / "m.onnx")
    np.save(tmp_path / "r.npy", rows(1, 4, 5))
    arguments = ["compile", tmp_path / "m.onnx", "--name", "m", "--method", "auto", "--targets", "all"]
    arguments += ["--references", tmp_path / "r.npy", "--repository", tmp_path / "repository"]
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    assert re.search(r"^note: auto\b.*treeshap, exact", result.stderr, re.MULTILINE)
    assert "warning: auto" not in result.stderr
    assert "by x, treeshap" in result.stdout
    manifest = Manifest.read(tmp_path / "repository" / "m_explain" / "explanation.json")
    assert manifest.method.name == "treeshap"


REFUSALS: dict[str, tuple[dict[str, Any], type[RationaleError], str]] = {
    "an output": ({"output": "z"}, InvalidOptionError, "no tensor 'z' depends on"),
    "targets": ({"targets": [7]}, InvalidOptionError, "has indices 0 to 0"),
    "a budget": ({"deployment": Deployment(memory_budget=10)}, InvalidOptionError, "memory budget"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_no_way(name: str) -> None:
    question, kind, text = REFUSALS[name]
    with pytest.raises(kind, match=text):
        compile_model(network("y = Relu(h)", 13), Auto(rows(1, 4, 13)), **question)


def test_references_that_do_not_fit() -> None:
    with pytest.raises(InvalidReferencesError, match=r"have shape \[4, 6\]"):
        compile_model(network("y = Relu(h)"), Auto(rows(1, 4, 6)))
