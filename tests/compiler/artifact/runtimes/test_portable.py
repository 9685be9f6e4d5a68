"""Graphs for other runtimes: the same answers, in shapes that those get right (docs/adr/0029)."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from rationale import DeepShap, Deployment, compile_model
from rationale.artifact.finishing.portable import MOST_AXES, merge_axes, merged_axes, separate_squares
from rationale.graph.batching import is_elementwise
from rationale.graph.runtime.session import Runner
from rationale.graph.shapes import set_symbolic_shapes
from rationale.schema.machine import Runtime
from tests.compiler.models import FEATURES, HIDDEN, cnn, mlp, parsed, rows


@pytest.mark.parametrize(
    ("output", "inputs", "groups"),
    [
        (["N", 3, 5, 1, 2, 4, 6], [["N", 1, 5, 1, 2, 4, 6], [3, 1, 1, 2, 4, 6]], [[0], [1], [2], [4, 5, 6]]),
        (["N", 3, 5, 1, 2, 4, 6], [["N", 3, 5, 1, 2, 4, 6], []], [[0, 1, 2, 4, 5, 6]]),
        ([2, 3, 5, 1, 2, 4, 6], [[2, 3, 5, 1, 2, 4, 1], [6]], [[0, 1, 2, 4, 5], [6]]),
        ([1, 1, 1, 1, 1, 1, 1], [[1, 1, 1, 1, 1, 1, 1]], [[0]]),
        (["N", 3, 5, 2, 4, 6], [["N", 3, 5, 2, 4, 6]], None),  # no more axes than are right
        (["N", 3, 5, 1, 2, 4, None], [["N", 3, 5, 1, 2, 4, None]], None),
        (["N", 3, 5, 1, 2, 4, "2·N"], [["N", 3, 5, 1, 2, 4, "2·N"]], None),
        (["N", 3, 5, 1, 2, 4, 6], [None], None),
    ],
)
def test_axes_that_are_merged(output: Any, inputs: Any, groups: Any) -> None:
    assert merged_axes(output, inputs) == groups


TEXTS = {
    "broadcast": "m = Mul (x, c)  y = Add (m, x)",
    "constant on every axis": "y = Mul (x, z)",
    "of one operand": "t = Tanh (x)  y = Relu (t)",
    "condition": "w = Greater (x, c)  y = Where (w, x, c)",
    "read by another": "m = Mul (x, c)  r = ReduceSum <keepdims = 1> (m, last)  y = Sub (m, r)",
    "repeated": "s = Shape (x)  e = Expand (c, s)  y = Add (e, x)",
    "repeated over targets": "s = Shape (x)  a = ReduceSum <keepdims = 1> (x, last)  y = Expand (a, s)",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_portable_graph_answers_the_same(text: str) -> None:
    dims = (3, 2, 1, 2, 4, 5)
    constants = {"c": rows(3, 1, 1, 2, 4, 5), "z": rows(3, 2, 1, 2, 4, 5, seed=1), "last": np.asarray([6])}
    shape = ", ".join(map(str, dims))
    used = {name: value for name, value in constants.items() if name in text}
    model = ir.from_proto(parsed(f"g (float[N, {shape}] x) => (float[N, {shape}] y) {{ {text} }}", used))
    x = {"x": rows(4, *dims, seed=2)}
    want = Runner(model, optimise=False)(x)["y"]
    set_symbolic_shapes(model)
    merge_axes(model)
    assert most_axes(ir.to_proto(model)) <= MOST_AXES
    np.testing.assert_array_equal(Runner(model, optimise=False)(x)["y"], want)


def most_axes(model: onnx.ModelProto) -> int:
    """Of what elementwise operators compute."""
    full = onnx.shape_inference.infer_shapes(model)
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in [*full.graph.value_info, *full.graph.output]}
    nodes = [n for n in model.graph.node if is_elementwise(n.op_type, n.domain) or n.op_type == "Expand"]
    return max(ranks.get(n.output[0], 0) for n in nodes)


@pytest.mark.parametrize("runtime", ["openvino", "tensorrt", "any"])
def test_a_graph_for_another_runtime(runtime: Runtime) -> None:
    """The default's answers; without a pool's own inverse, and with few axes."""
    references, x = rows(3, 2, 6, 8, seed=1), rows(4, 2, 6, 8, seed=5)
    default = compile_model(cnn(), DeepShap(references), targets="all")
    compiled = compile_model(
        cnn(), DeepShap(references), targets="all", deployment=Deployment(runtime=runtime)
    )
    assert "MaxUnpool" in {n.op_type for n in default.model.graph.node}
    assert "MaxUnpool" not in {n.op_type for n in compiled.model.graph.node}
    assert most_axes(default.model) > MOST_AXES >= most_axes(compiled.model)
    want = default.explain(x)
    for name, value in compiled.explain(x).items():
        np.testing.assert_allclose(value, want[name], atol=1e-6, err_msg=name)
    assert compiled.manifest.variants is not None
    assert compiled.manifest.variants.runtime == runtime


def test_a_graph_for_a_gpu_leaves_no_pool_to_the_cpu() -> None:
    """ONNX Runtime has MaxUnpool for the CPU only: on a GPU its values would go there and back."""
    references, x = rows(3, 2, 6, 8, seed=1), rows(4, 2, 6, 8, seed=5)
    default, compiled = (
        compile_model(cnn(), DeepShap(references), targets="all", deployment=Deployment(provider=provider))
        for provider in ("cpu", "cuda")
    )
    assert "MaxUnpool" in {n.op_type for n in default.model.graph.node}
    assert "MaxUnpool" not in {n.op_type for n in compiled.model.graph.node}
    want = default.explain(x)
    for name, value in compiled.explain(x).items():
        np.testing.assert_allclose(value, want[name], atol=1e-6, err_msg=name)


def test_the_default_is_made_for_onnx_runtime() -> None:
    compiled = compile_model(mlp(), DeepShap(rows(3, FEATURES)), targets=[0])
    assert compiled.manifest.variants is not None
    assert compiled.manifest.variants.runtime == "onnxruntime"


@pytest.mark.parametrize("runtime", ["tensorrt", "any"])
def test_where_nobody_has_measured_infinities_there_are_none(runtime: Runtime) -> None:
    deployment = Deployment(runtime=runtime)
    compiled = compile_model(mlp(), DeepShap(rows(3, FEATURES)), targets=[0], deployment=deployment)
    assert compiled.manifest.variants is not None
    assert set(compiled.manifest.variants.taken) == {"rescale rule of a ReLU: clipped quotient"}


@pytest.mark.parametrize(("width", "copies"), [(HIDDEN, 2), (HIDDEN + 1, 1)])
def test_a_square_weight_is_read_in_one_orientation(width: int, copies: int) -> None:
    weights = {"w": rows(width, HIDDEN, seed=1)}
    text = f"""g (float[N, {HIDDEN}] x, float[N, {width}] v) => (float[N, {width}] y, float[N, {HIDDEN}] z) {{
        y = Gemm <transB = 1> (x, w)  z = MatMul (v, w)
    }}"""
    model = ir.from_proto(parsed(text, weights))
    separate_squares(model)
    assert [v.shape for v in model.graph.initializers.values()] == [(width, HIDDEN)] * copies
    for value in model.graph.initializers.values():
        assert len(value.uses()) == 3 - copies
        np.testing.assert_array_equal(value.const_value.numpy(), weights["w"])
