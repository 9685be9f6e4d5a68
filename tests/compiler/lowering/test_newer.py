"""Models of opsets and operators that ONNX Runtime does not know yet."""

import importlib
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rationale import Compiled, DeepShap, compile_model
from rationale.errors import InvalidModelError, UnsupportedModelError
from rationale.graph.runtime.session import Runner
from rationale.lowering.loading.load import load
from rationale.lowering.loading.newer import known_to_runtime
from tests.tolerances import COMPLETE_32

NEWEST = onnx.defs.onnx_opset_version()


def model_of(
    node: onnx.NodeProto, *, opset: int = NEWEST, kind: int = TensorProto.FLOAT, ir_version: int = 13
) -> onnx.ModelProto:
    """The node on rows of four numbers, `a` and `b`."""
    values = {n: helper.make_tensor_value_info(n, kind, ["N", 4]) for n in ("a", "b", "y")}
    inputs = [values[n] for n in ("a", "b") if n in node.input]
    graph = helper.make_graph([node], "newer", inputs, [values["y"]])
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.preview", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


NEWEST_RELEASED = 26  # opset


@pytest.fixture
def older_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models meet an ONNX Runtime that refuses what 1.31 did, in its words, whatever is installed."""

    class Older(Runner):
        def __init__(self, model: onnx.ModelProto, **options: Any) -> None:
            if max(e.version for e in model.opset_import if not e.domain) > NEWEST_RELEASED:
                raise InvalidModelError(
                    f"Current official support for domain ai.onnx is till opset {NEWEST_RELEASED}."
                )
            for node in model.graph.node:
                if node.op_type == "SwiGLU":
                    raise InvalidModelError(
                        f"Error No Op registered for SwiGLU with domain_version of {NEWEST_RELEASED}"
                    )
                if any(a.name == "left_window_size" for a in node.attribute):
                    raise InvalidModelError(
                        "Error Unrecognized attribute: left_window_size for operator Attention"
                    )
            super().__init__(model, **options)

    monkeypatch.setattr(importlib.import_module("rationale.lowering.loading.load"), "Runner", Older)


def rows(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)


@pytest.mark.usefixtures("older_runtime")
def test_an_opset_that_is_the_same_here_is_written_down_as_an_older_one() -> None:
    model = model_of(helper.make_node("Celu", ["a"], ["y"]))
    assert {e.domain: e.version for e in load(model).proto.opset_import} == {
        "": NEWEST_RELEASED,
        "ai.onnx.preview": 1,
    }
    compiled = compile_model(model, DeepShap(rows(0, 3)))
    assert any(f"opset {NEWEST}" in warning for warning in compiled.manifest.warnings)
    x = rows(1, 2)
    want = np.maximum(x, 0) + np.minimum(np.expm1(x), 0)
    np.testing.assert_allclose(compiled.explain(x)["y"], want, rtol=1e-6)


def explained_swiglu() -> Compiled:
    """Compiled, its answers held against the formula and for completeness."""
    swiglu = model_of(helper.make_node("SwiGLU", ["a", "b"], ["y"]))
    compiled = compile_model(swiglu, DeepShap({"a": rows(0, 3), "b": rows(1, 3)}))
    a, b = rows(2, 2), rows(3, 2)
    answer = compiled.explain({"a": a, "b": b})
    np.testing.assert_allclose(answer["y"], a / (1 + np.exp(-a)) * b, rtol=1e-5, atol=1e-6)
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32
    return compiled


@pytest.mark.usefixtures("older_runtime")
def test_an_operator_that_onnx_defines_by_others_is_served_as_its_definition() -> None:
    assert any("SwiGLU" in warning for warning in explained_swiglu().manifest.warnings)


@pytest.mark.usefixtures("older_runtime")
def test_an_attribute_that_is_newer_than_the_runtime() -> None:
    """Windows of Attention, with optional inputs left out before one that is given."""
    shapes = {"Q": [1, 1, 3, 4], "K": [1, 1, 3, 4], "V": [1, 1, 3, 4], "past": [1, 1, 2, 4]}
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    outputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 1, s, 4])
        for n, s in (("Y", 3), ("P", 5), ("R", 5))
    ]
    node = helper.make_node(
        "Attention", ["Q", "K", "V", "", "past", "past"], ["Y", "P", "R"], left_window_size=1
    )
    graph = helper.make_graph([node], "windows", values, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)
    loaded = load(model)
    assert any("Attention" in warning for warning in loaded.warnings)
    x = {n: np.random.default_rng(4).normal(size=s).astype(np.float32) for n, s in shapes.items()}
    want = onnx.reference.ReferenceEvaluator(model).run(None, x)
    for got, expected in zip(Runner(loaded.proto)(x).values(), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_a_newer_ir_version() -> None:
    model = model_of(helper.make_node("Relu", ["a"], ["y"]), opset=21, ir_version=onnx.IR_VERSION)
    assert load(model).proto.ir_version <= onnx.IR_VERSION


def test_an_operator_nobody_defines_is_named() -> None:
    node = helper.make_node("Det", ["a"], ["y"], domain="ai.onnx.preview")
    with pytest.raises((InvalidModelError, UnsupportedModelError), match="Det"):
        compile_model(model_of(node), DeepShap(rows(0, 3)))


def test_what_no_definition_helps_against_is_raised() -> None:
    fault = InvalidModelError("model.onnx is missing")
    with pytest.raises(InvalidModelError, match=r"model\.onnx"):
        known_to_runtime(model_of(helper.make_node("Relu", ["a"], ["y"])), fault, lambda _: None)


def test_an_operator_that_the_runtime_may_know_and_we_have_no_rule_for() -> None:
    explained_swiglu()
