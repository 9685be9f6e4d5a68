"""Operators that ONNX defines by others, and values that only some of their outputs need."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rationale import DeepShap, Gradient, compile_model
from rationale.graph.ops import Ops
from rationale.graph.tensor import Tensor
from rationale.rules import rule
from tests.compiler.models import parsed, rows
from tests.tolerances import COMPLETE_32

ROWS, K = 3, 4


def one_node(
    op_type: str, inputs: dict[str, tuple[int, ...]], outputs: list[str], opset: int, **attributes: Any
) -> onnx.ModelProto:
    """Every output with a name is the model's."""
    kind = TensorProto.FLOAT
    node = helper.make_node(op_type, list(inputs), outputs, "the_node", **attributes)
    graph = helper.make_graph(
        [node],
        "body",
        [helper.make_tensor_value_info(name, kind, ["N", *shape]) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs if name],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)
    return onnx.shape_inference.infer_shapes(model)


Q, GROUPED = {"q": (2, 3, 4), "k": (2, 5, 4), "v": (2, 5, 4)}, {"q": (3, 8), "k": (5, 4), "v": (5, 4)}
CASES: dict[str, tuple[dict[str, tuple[int, ...]], list[str], dict[str, Any]]] = {
    "attention": (Q, ["y"], {}),
    "causal, capped": (Q, ["y"], {"is_causal": 1, "softcap": 2.0}),
    "grouped queries": (GROUPED, ["y"], {"q_num_heads": 4, "kv_num_heads": 2}),
    "a mask of floats, weights": ({**Q, "m": (2, 3, 5)}, ["y", "", "", "w"], {"qk_matmul_output_mode": 3}),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_is_explained_by_its_definition(name: str) -> None:
    inputs, outputs, attributes = CASES[name]
    model = one_node("Attention", inputs, outputs, 23, **attributes)
    x, references = (
        {n: rows(count, *shape, seed=i + 10 * count) for i, (n, shape) in enumerate(inputs.items())}
        for count in (ROWS, K)
    )
    answer = compile_model(model, DeepShap(references), targets=[0, 7]).explain(x)
    difference = np.abs(answer["explained_value"] - answer["base_value"]).max()
    assert difference > 0.1
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32 * difference
    assert all(np.abs(answer[f"{n}_attributions"]).max() > 1e-4 for n in inputs)


def test_a_body_without_a_rule_has_the_gradient_of_its_definition() -> None:
    """RotaryEmbedding turns pairs of channels; the part that it lets alone is empty here."""
    model = one_node("RotaryEmbedding", {"x": (2, 3, 4), "c": (3, 2), "s": (3, 2)}, ["y"], 23)
    x, c, s = rows(ROWS, 2, 3, 4, seed=1), rows(ROWS, 3, 2, seed=2), rows(ROWS, 3, 2, seed=3)
    answer = compile_model(model, Gradient(), targets=[0, 2]).explain({"x": x, "c": c, "s": s})
    want = np.zeros((ROWS, 2, 2, 3, 4))
    want[:, 0, 0, 0, 0], want[:, 0, 0, 0, 2] = c[:, 0, 0], -s[:, 0, 0]
    want[:, 1, 0, 0, 0], want[:, 1, 0, 0, 2] = s[:, 0, 0], c[:, 0, 0]
    np.testing.assert_allclose(answer["x_attributions"], want, atol=1e-6)


def test_the_statistics_of_a_normalisation_are_outputs_of_their_own() -> None:
    body = "z, m, d = LayerNormalization (x, s) a = Mul (z, m) y = Mul (a, d)"
    model = parsed(f"g (float[N, 5] x) => (float[N, 5] y) {{ {body} }}", {"s": rows(5, seed=1)})
    x = rows(ROWS, 5, seed=2)
    compiled = compile_model(model, DeepShap(rows(K, 5, seed=3)), targets=[1, 4])
    answer = compiled.explain(x)
    difference = answer["explained_value"] - answer["base_value"]
    np.testing.assert_allclose(answer["x_attributions"].sum(-1), difference, atol=COMPLETE_32)


@pytest.mark.parametrize("node", ["LpPool <kernel_shape = [3], p = 3>", "LpPool <kernel_shape = [3], p = 2>"])
def test_a_norm_of_zeros_has_the_gradient_zero(node: str) -> None:
    """Not NaN, which the infinite slope of a root at 0 would make of it."""
    model = parsed(f"g (float[N, 2, 5] x) => (float[N, 2, 3] y) {{ y = {node} (x) }}")
    x = np.zeros((2, 2, 5), np.float32)
    x[1, 0, :] = 1.0
    answer = compile_model(model, Gradient(), targets="all").explain(x)["x_attributions"]
    assert np.isfinite(answer).all()
    assert not answer[0].any()
    assert answer[1, 0, 0, 0] > 0
    compiled = compile_model(model, DeepShap(np.stack([x[0], 2 * x[1]])), targets="all")
    explained = compiled.explain(x)
    assert np.isfinite(explained["x_attributions"]).all()
    assert np.abs(explained["completeness_gap"]).max() <= COMPLETE_32


def _own_cube(op: Ops, x: Tensor) -> rule.Evaluation:
    """Its pullback is not the body's: seven for the slope."""
    return op.Mul(op.Mul(x, x), x), lambda m: op.Mul(m, 7.0)


def _with_cubes() -> onnx.ModelProto:
    """y = Σ x³ + Σ z³ by a function."""
    model = parsed(
        """g (float[N, 3] x, float[N, 3] z) => (float[N, 1] y) {
        a = example.Cube (x)  b = example.Cube (z)  c = Add (a, b)  y = ReduceSum <keepdims = 1> (c, one)
    }""",
        {"one": np.asarray([1])},
    )
    text = '<domain: "example", opset_import: ["": 21]> Cube (x) => (y) { s = Mul (x, x) y = Mul (s, x) }'
    model.functions.append(onnx.parser.parse_function(text))
    model.opset_import.append(helper.make_opsetid("example", 1))
    return model


@pytest.mark.parametrize("inputs", [["x", "z"], ["x"]], ids=["every input", "beside the path"])
def test_a_function_with_a_rule_is_explained_by_it(
    inputs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = {"x": rows(ROWS, 3, seed=1), "z": rows(ROWS, 3, seed=2)}
    by_body = compile_model(_with_cubes(), Gradient(), inputs=inputs).explain(x)
    np.testing.assert_allclose(by_body["x_attributions"][:, 0], 3 * x["x"] ** 2, rtol=1e-5)
    monkeypatch.setattr(rule, "_RULES", dict(rule._RULES))
    rule.rule("Cube", domain="example", kind=rule.Kind.POINTWISE)(_own_cube)
    by_rule = compile_model(_with_cubes(), Gradient(), inputs=inputs).explain(x)
    assert np.array_equal(by_rule["x_attributions"], np.full((ROWS, 1, 3), 7.0))
    np.testing.assert_allclose(by_rule["y"], by_body["y"], rtol=1e-6)
