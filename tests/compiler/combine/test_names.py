"""Inner tensors whose names the explanation needs give way; inputs and outputs keep theirs."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from rationale import (
    Concepts,
    DeepShap,
    ExactShap,
    Gradient,
    InvalidOptionError,
    Lrp,
    OpenReferences,
    compile_model,
)
from rationale.graph.nodes import rename_inner_values, values_of
from rationale.graph.runtime.session import Runner
from rationale.methods.engine import Method
from tests.compiler.models import mlp, parsed, rows

R, X = rows(4, 5, seed=8), rows(6, 5, seed=9)
NEEDED = ["x_references", "base_value", "explained_value", "completeness_gap", "x_attributions"]
METHODS = [DeepShap(R), Gradient(), Lrp(), ExactShap(R), DeepShap(OpenReferences(4))]


def renamed(**names: str) -> onnx.ModelProto:
    model = mlp()
    for node in model.graph.node:
        node.input[:] = [names.get(i, i) for i in node.input]
        node.output[:] = [names.get(o, o) for o in node.output]
    named: tuple[Any, ...] = (*model.graph.input, *model.graph.output, *model.graph.initializer)
    for value in named:
        value.name = names.get(value.name, value.name)
    return model


@pytest.mark.parametrize("name", NEEDED)
@pytest.mark.parametrize("role", ["h1", "w1"])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_an_inner_tensor_gives_way(method: Method, role: str, name: str) -> None:
    same, renamed_model = compile_model(mlp(), method), compile_model(renamed(**{role: name}), method)
    inputs = {"x": X}
    if renamed_model.manifest.open_references is not None:
        inputs |= {"x_references": np.stack([R] * 6)}
        inputs |= {"reference_weights": np.full((6, 4), 0.25, np.float32)}
    want, got = same.explain(inputs), renamed_model.explain(inputs)
    assert want.keys() == got.keys()
    for key, value in want.items():
        np.testing.assert_array_equal(got[key], value)


def test_what_is_asked_for_keeps_its_name() -> None:
    """A layer, a channel's layer and the explained output are named as the model names them."""
    model = renamed(h1="base_value", z1="base_value_attributions")
    compiled = compile_model(model, DeepShap(R), layers=["base_value"], concepts=Concepts("base_value", 1))
    want = compile_model(mlp(), DeepShap(R), layers=["h1"], concepts=Concepts("h1", 1)).explain(X)
    got = compiled.explain(X)
    np.testing.assert_array_equal(got["base_value_attributions"], want["h1_attributions"])
    np.testing.assert_array_equal(got["base_value_channels"], want["h1_channels"])
    inner = compile_model(model, DeepShap(R), output="base_value", targets=[1])
    assert inner.manifest.explained_output == "base_value"
    same = compile_model(mlp(), DeepShap(R), output="h1", targets=[1]).explain(X)
    np.testing.assert_array_equal(inner.explain(X)["base_value"], same["base_value"])


def test_a_name_inside_of_a_branch_gives_way() -> None:
    model = ir.from_proto(
        parsed(
            """g (float[N, 5] x, bool c) => (float[N, 5] y) {
                y = If (c) <then_branch = t () => (float[N, 5] base_value) { base_value = Relu (x) },
                            else_branch = e () => (float[N, 5] y_) { y_ = Neg (x) }>
            }""",
            {},
        )
    )
    rename_inner_values(model, {"base_value", "y"}.__contains__)
    assert {v.name for v in values_of(model)} == {"x", "c", "y", "inner/base_value_0", "y_"}
    x = rows(2, 5, seed=3)
    answer = Runner(model)({"x": x, "c": np.asarray(True)})
    np.testing.assert_array_equal(answer["y"], np.maximum(x, 0))


@pytest.mark.parametrize("role", ["x", "y"])
def test_an_input_or_output_is_refused(role: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"\['base_value'\].*input_names"):
        compile_model(renamed(**{role: "base_value"}), DeepShap(R))
