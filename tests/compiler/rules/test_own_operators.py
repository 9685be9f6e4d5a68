"""Operators of a user's own: functions of a model with rules by name, shapes that rules say."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

import rationale
from rationale import DeepShap, Gradient, InvalidModelError, Kind, Lrp, RationaleError, Trait, compile_model
from rationale.graph import shapes
from rationale.graph.runtime.session import as_ir
from rationale.lowering.inference import infer
from tests.compiler.models import parsed, rows
from tests.compiler.rules.packaged import DEFINITION, MODEL
from tests.kernels import own_rules
from tests.references.interpreter import run64


@pytest.fixture(autouse=True)
def _own_table() -> Iterator[None]:
    with own_rules():
        yield


def declare_snake() -> Any:
    """A rule whose value is the model's own function."""

    @rationale.rule("Snake", domain="example", kind=rationale.Kind.POINTWISE)
    def snake(op: Any, x: Any, *, alpha: float = 1.0) -> Any:
        def snake_pullback(m: Any) -> Any:
            return op.Mul(m, op.Add(op.Sin(op.Mul(x, 2 * alpha)), 1.0))

        return op.Snake(x, domain="example", alpha=alpha), snake_pullback

    return snake


def nothing(*_: Any) -> Any:
    raise AssertionError


def snake_model() -> onnx.ModelProto:
    model = onnx.parser.parse_model(MODEL)
    model.functions.append(onnx.parser.parse_function(DEFINITION))
    return model


def snake_slope(x: np.ndarray, alpha: float = 0.7) -> np.ndarray:
    return (1 + np.sin(2 * alpha * x)) * [0.4, -0.7, 1.1]


def test_a_rule_for_a_function_of_the_model_by_its_name(tmp_path: Any) -> None:
    declare_snake()
    x = rows(5, 3)
    compiled = compile_model(snake_model(), Gradient())
    np.testing.assert_allclose(
        compiled.explain(x)["x_attributions"][:, 0], snake_slope(x), rtol=1e-5, atol=1e-6
    )
    assert "Snake" in {node.op_type for node in compiled.model.graph.node}
    entry = compiled.write(tmp_path, "snake")
    assert "Snake" in {f.name for f in onnx.load(entry / "1" / "model.onnx").functions}


def test_without_a_rule_a_function_is_explained_through_its_nodes() -> None:
    x, references = rows(5, 3), rows(4, 3, seed=1)
    answer = compile_model(snake_model(), DeepShap(references)).explain(x)
    want = run64(snake_model(), {"x": x})["y"] - run64(snake_model(), {"x": references})["y"].mean()
    np.testing.assert_allclose(answer["x_attributions"].sum(-1), want, atol=1e-5)


def test_every_form_of_a_rule_can_be_a_users() -> None:
    """A module that an exporter left as a function: its LRP weights, its relevance and its secant."""

    @rationale.rule("Layer", domain="modules", kind=Kind.BILINEAR)
    def layer(op: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        def layer_pullback(m: Any) -> Any:
            return op.MatMul(m, op.Transpose(weight, perm=[1, 0]))

        y = op.MatMul(x, weight)
        return (y if bias is None else op.Add(y, bias)), (layer_pullback, None, None)

    @layer.layer
    def layer_weights(_: Any, weight: Any, bias: Any) -> Any:
        return rationale.Weights(weight, bias, 1, (weight.shape[0], 1), (1, weight.shape[1]))

    @rationale.rule("Bend", domain="modules", kind=Kind.POINTWISE, traits=[Trait.SMOOTH])
    def bend(op: Any, x: Any) -> Any:
        y = op.Tanh(x)
        return y, lambda m: op.Mul(m, op.Sub(1.0, op.Mul(y, y)))

    slopes = []

    @bend.secant
    def bend_secant(op: Any, x: Any, r: Any, y: Any, y_r: Any) -> Any:
        slopes.append(y.shape)
        difference = op.Sub(x, r)
        return op.Div(op.Sub(y, y_r), op.Where(op.Equal(difference, 0.0), 1.0, difference))

    function = """
        network (float[N, 3] x) => (float[N, 2] y)
        <float[3, 2] w = {0.4, -0.7, 1.1, 0.3, -0.2, 0.9}, float[2] b = {0.3, -0.1}> {
            z = modules.Layer (x, w, b)
            y = modules.Bend (z)
        }
        <domain: "modules", opset_import: ["": 17]> Layer (x, w, b) => (y) {
            z = MatMul (x, w)
            y = Add (z, b)
        }
        <domain: "modules", opset_import: ["": 17]> Bend (x) => (y) { y = Tanh (x) }
    """
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "modules": 1]> {function}')
    plain = parsed(
        "network (float[N, 3] x) => (float[N, 2] y) <float[3, 2] w = {0.4, -0.7, 1.1, 0.3, -0.2, 0.9}, "
        "float[2] b = {0.3, -0.1}> { h = MatMul (x, w) z = Add (h, b) y = Tanh (z) }"
    )
    x, references = rows(5, 3), rows(4, 3, seed=1)
    for method in (DeepShap(references), Gradient(), Lrp(rules=[("Layer", rationale.Gamma(0.2))])):
        method_of_plain = Lrp(rules=[("MatMul", rationale.Gamma(0.2))]) if isinstance(method, Lrp) else method
        got, want = (
            compile_model(m, how, targets="all").explain(x)["x_attributions"]
            for m, how in ((model, method), (plain, method_of_plain))
        )
        np.testing.assert_allclose(got, want, atol=1e-5)
    assert slopes


def test_the_shape_of_an_elementwise_operator_is_what_its_inputs_broadcast_to() -> None:
    declare_snake()

    rationale.rule("Both", domain="example", kind=Kind.LOCAL, traits=[Trait.ELEMENTWISE])(nothing)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "example": 1]> g (float[N, 3, 4] x, float[3, 1] c) '
        "=> (float[N, 3, 4] y) { s = example.Both (c, x) y = example.Snake (s) }"
    )
    assert infer(as_ir(model), 2)["s"][0] == (2, 3, 4)


def test_a_rule_says_the_shapes_of_its_values() -> None:
    halves = rationale.rule("Halves", domain="example", kind=Kind.BILINEAR)(nothing)

    @halves.shape
    def halves_shape(
        x: tuple[int, ...], limit: tuple[int, ...], more: None = None, *, axis: int = -1
    ) -> list[tuple[int, ...]]:
        assert (limit, more) == ((1,), None)
        size = list(x)
        size[axis] //= 2
        return [tuple(size), tuple(size)]

    text = (
        '<ir_version: 8, opset_import: ["": 17, "example": 1]> g (int64[1] k, double[N, 3, 4] x) '
        "=> (double[N, 3, 4] y) { a, b = example.Halves <axis = 2> (x, k) y = Relu (a) }"
    )
    actual = infer(as_ir(onnx.parser.parse_model(text)), 2)
    assert [(actual[n][0], actual[n][1].name) for n in "ab"] == [((2, 3, 2), "DOUBLE")] * 2
    assert "a" not in infer(as_ir(onnx.parser.parse_model(text.replace("[N,", "[M,"))), 2)

    @halves.shape  # the newest declaration wins
    def other(x: tuple[int, ...], *_: Any) -> tuple[int, ...]:
        return x[9]

    with pytest.raises(
        RationaleError,
        match=r"example\.Halves: .*\[\(2, 3, 4\), \(1,\)\]: .*IndexError: tuple index out of range",
    ):
        infer(as_ir(onnx.parser.parse_model(text)), 2)
    onnx.checker.check_model(onnx.parser.parse_model(text))  # which leaves the operator alone


def test_onnx_itself_is_left_alone() -> None:
    """A rule for an operator of ONNX's changes no shape of it."""

    rationale.rule("Softmax", kind=Kind.LOCAL, traits=[Trait.ELEMENTWISE])(nothing)
    assert onnx.defs.get_schema("Softmax", 21).since_version == 13
    assert ("", "Softmax") not in shapes._registered


def test_an_operator_that_nobody_computes() -> None:
    """A rule says how to explain it; nothing says what it is."""
    declare_snake()
    with pytest.raises(InvalidModelError, match=r"example:Snake\(-1\) is not a registered function/op"):
        compile_model(onnx.parser.parse_model(MODEL), Gradient())
