"""Models in float16, bfloat16 and float64: what each is explained in, and how exactly.

A half-precision model is explained in float32 (docs/adr/0011-precision.md), so its attributions are
compared with those of its rounded weights and rows in float64, within float32's own limits.
"""

import functools
import re
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import rationale
from rationale import DeepShap, compile_model
from rationale.artifact.entry import open_entry
from rationale.artifact.recheck import check_entry
from rationale.errors import InvalidReferencesError
from rationale.methods.engine import Method
from rationale.schema.machine import Deployment, Provider
from tests.compiler.models import mlp, parsed, rows, with_floats_in
from tests.models.transformers import BERT, LLAMA, BertLike, LlamaLike, drawn, exported
from tests.tolerances import COMPLETE_32, COMPLETE_64, PARITY_32

pytestmark = pytest.mark.full

TARGET = [1]
HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
DTYPES = {**HALVES, "float32": np.dtype(np.float32), "float64": np.dtype(np.float64)}


def normalised_cnn() -> onnx.ModelProto:
    """y [N, 3] from an image x [N, 2, 7, 9]: Conv, BatchNormalization, Relu, an overlapping MaxPool, Gemm."""
    text = """cnn (float[N, 2, 7, 9] x) => (float[N, 3] y) {
        [conv] c = Conv <pads = [1, 1, 1, 1]> (x, k, kb)
        [norm] n = BatchNormalization (c, scale, shift, mean, var)
        [relu] r = Relu (n)
        [pool] p = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (r)
        [mean] g = GlobalAveragePool (p)
        [flat] f = Flatten <axis = 1> (g)
        [head] y = Gemm (f, w, wb)
    }"""
    norm = {"scale": rows(4, seed=5), "shift": rows(4, seed=6), "mean": rows(4, seed=7)}
    weights = {"k": rows(4, 2, 3, 3, seed=3) / 4, "kb": rows(4, seed=4), "var": 1 + rows(4, seed=8) ** 2}
    return parsed(text, {**weights, **norm, "w": rows(4, 3, seed=9), "wb": rows(3, seed=10)})


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "perceptron": lambda: mlp(),
    "CNN": normalised_cnn,
    "BERT-like": lambda: exported(drawn(BertLike(blocks=1)), BERT, dynamo=False),
    "Llama-like": lambda: exported(drawn(LlamaLike(blocks=1)), LLAMA, dynamo=False),
}


@functools.cache
def halved(name: str) -> onnx.ModelProto:
    return MODELS[name]()


@functools.cache
def in_dtype(name: str, dtype: str, rounded_to: str = "float64") -> onnx.ModelProto:
    """A model with every float in `dtype`, its weights rounded first."""
    model = with_floats_in(halved(name), DTYPES[dtype], DTYPES[rounded_to])
    if dtype == "bfloat16":
        model.opset_import[0].version = 22  # the first in which convolutions and pools take it
    return model


def with_float32_edges(model: onnx.ModelProto) -> onnx.ModelProto:
    """Inputs and outputs in float32 with a Cast at each, as converters write it (keep_io_types)."""
    code = model.graph.input[0].type.tensor_type.elem_type
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for node in changed.graph.node:
        node.input[:] = ["x_half" if i == "x" else i for i in node.input]
        node.output[:] = ["y_half" if o == "y" else o for o in node.output]
    changed.graph.node.insert(0, helper.make_node("Cast", ["x"], ["x_half"], name="in", to=code))
    changed.graph.node.append(helper.make_node("Cast", ["y_half"], ["y"], name="out", to=TensorProto.FLOAT))
    for value in (*changed.graph.input, *changed.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    return changed


def sample(model: onnx.ModelProto, count: int, dtype: str) -> np.ndarray:
    """Rows [count, …] that the dtype can hold, in float32."""
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim[1:]]
    return rows(count, *shape, seed=11).astype(DTYPES[dtype]).astype(np.float32)


def spacing(dtype: str) -> float:
    return float(ml_dtypes.finfo(DTYPES[dtype]).eps)


METHODS: dict[str, Callable[[np.ndarray], Method]] = {
    "deepshap": DeepShap,
    "gradient": lambda _: rationale.Gradient(),
    "integrated gradients": lambda r: rationale.IntegratedGradients(r[:1], steps=5),
    "expected gradients": lambda r: rationale.ExpectedGradients(r, samples=5),
    "lrp": lambda _: rationale.Lrp("EpsilonPlus"),
    "attnlrp": lambda _: rationale.AttnLrp(),
}
SMALL = ("perceptron", "CNN")
# Of the transformers, the methods that were made for them always, the others with the slow tests.
SERVED = [
    pytest.param(m, n, marks=() if n in SMALL or m in ("deepshap", "attnlrp") else pytest.mark.slow)
    for m in METHODS
    for n in MODELS
    if m != "lrp" or n in SMALL
]


def largest(array: np.ndarray) -> float:
    return float(np.abs(array.astype(np.float64)).max())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("method", "name"), SERVED)
def test_a_half_precision_model_is_explained_to_float32(method: str, name: str, dtype: str) -> None:
    """All that is left is float32's rounding, and one rounding of the model's own output."""
    model, wide = in_dtype(name, dtype, dtype), in_dtype(name, "float64", dtype)
    data = sample(model, 5, dtype)
    explain = METHODS[method](data[:3])
    compiled = compile_model(model, explain, targets=TARGET)
    answer = compiled.explain(data[3:])
    exact = compile_model(wide, explain, targets=TARGET).explain(data[3:])
    assert set(answer) == set(exact)
    assert {k for k, v in answer.items() if v.dtype != np.float32} == {"y"}
    want = exact["x_attributions"]
    assert want.dtype == np.float64
    assert largest(answer["x_attributions"] - want) <= PARITY_32 * largest(want)
    assert largest(answer["explained_value"] - exact["explained_value"]) <= PARITY_32 * largest(exact["y"])
    assert answer["y"].dtype == DTYPES[dtype]
    rounded = spacing(dtype) / 2 * np.abs(exact["y"])
    assert (
        np.abs(answer["y"].astype(np.float64) - exact["y"]) <= rounded + PARITY_32 * largest(exact["y"])
    ).all()
    if explain.gap is not None:
        difference = largest(exact["explained_value"] - exact.get("base_value", 0))
        assert largest(answer["completeness_gap"] - exact["completeness_gap"]) <= COMPLETE_32 * difference


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_the_original_s(name: str, dtype: str) -> None:
    """ONNX Runtime computes float16 in float32 on a CPU; the reference evaluator rounds at every node."""
    model = in_dtype(name, dtype, dtype)
    x = sample(model, 4, dtype).astype(DTYPES[dtype])
    got = compile_model(model, DeepShap(x)).explain(x)["y"].astype(np.float64)
    if dtype == "float16":
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        want, roundings = session.run(["y"], {"x": x})[0], 2
    else:
        want, roundings = ReferenceEvaluator(model).run(["y"], {"x": x})[0], 16
    assert np.abs(got - want.astype(np.float64)).max() <= roundings * spacing(dtype) * largest(want)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", MODELS)
def test_float32_edges_stay(name: str, dtype: str) -> None:
    """A converted model takes float32, which it rounds at once; its explanation does not round it."""
    inner = in_dtype(name, dtype, dtype)
    data = sample(inner, 5, dtype)
    answer = compile_model(with_float32_edges(inner), DeepShap(data[:3]), targets=TARGET).explain(data[3:])
    same = compile_model(inner, DeepShap(data[:3]), targets=TARGET).explain(data[3:])
    assert {v.dtype for v in answer.values()} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(answer["x_attributions"], same["x_attributions"])
    np.testing.assert_array_equal(answer["y"].astype(DTYPES[dtype]), same["y"])


@pytest.mark.parametrize("name", MODELS)
def test_float64_stays_float64(name: str) -> None:
    model = in_dtype(name, "float64")
    data = sample(model, 5, "float64").astype(np.float64) + 1e-9  # beyond float32
    answer = compile_model(model, DeepShap(data[:3]), targets=TARGET).explain(data[3:])
    assert {v.dtype for v in answer.values()} == {np.dtype(np.float64)}
    assert largest(answer["completeness_gap"]) <= COMPLETE_64 * max(1, largest(answer["y"]))
    single = compile_model(in_dtype(name, "float32"), DeepShap(data[:3]), targets=TARGET).explain(data[3:])
    off = single["x_attributions"] - answer["x_attributions"]
    assert 0 < largest(off) <= PARITY_32 * largest(answer["x_attributions"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dynamo", [False, True])
def test_pytorch_s_own_exports(dtype: torch.dtype, dynamo: bool) -> None:
    model = exported(drawn(BertLike(blocks=1)), BERT, dynamo=dynamo, dtype=dtype)
    data = sample(model, 5, str(dtype).removeprefix("torch."))
    compiled = compile_model(model, DeepShap(data[:3]), targets="all")
    answer = compiled.explain(data[3:])
    assert largest(answer["completeness_gap"]) <= COMPLETE_32 * largest(
        answer["explained_value"] - answer["base_value"]
    )
    assert any("float32" in w for w in compiled.manifest.warnings)


def test_the_parts_of_an_answer_add_up_in_its_type() -> None:
    """From floats of one type to an answer in another."""
    model = parsed("g (float[N, 3] x) => (double[N, 3] y) { t = Tanh (x) y = Cast <to = 11> (t) }")
    got = compile_model(model, DeepShap(rows(4, 3, seed=1)), targets="all").explain(rows(2, 3, seed=2))
    assert got["explained_value"].dtype == np.float64
    assert got["x_attributions"].dtype == np.float32
    assert largest(got["completeness_gap"]) <= COMPLETE_32


def test_references_are_rounded_as_the_model_rounds_its_rows() -> None:
    model = in_dtype("perceptron", "bfloat16", "bfloat16")
    x = rows(3, 5) + np.float32(1e-4)
    rounded = x.astype(DTYPES["bfloat16"])
    answers = [compile_model(model, DeepShap(r), targets=TARGET).explain(x) for r in (x, rounded)]
    assert not np.array_equal(x, rounded.astype(np.float32))
    np.testing.assert_array_equal(answers[0]["x_attributions"], answers[1]["x_attributions"])
    assert largest(compile_model(model, DeepShap(x), targets=TARGET).explain(x)["base_value"]) > 0


def test_a_reference_too_large_for_float16_is_named() -> None:
    far = rows(3, 5)
    far[1, 2] = 7e4
    with pytest.raises(InvalidReferencesError, match=r"70000\.0 at \[1, 2\].*float16"):
        compile_model(in_dtype("perceptron", "float16", "float16"), DeepShap(far))


def test_what_no_float16_can_hold_inside_is_explained() -> None:
    """1e5 is beyond float16: a sum that only the middle of the model holds, as ONNX Runtime computes it."""
    model = parsed(
        "g (float16[N, 5] x) => (float16[N, 3] y) { z = MatMul (x, u) a = Relu (z) y = MatMul (a, v) }",
        {"u": np.full((5, 7), 6e4, np.float16), "v": np.full((7, 3), 6e-6, np.float16)},
    )
    x = np.abs(rows(4, 5)).astype(np.float16)
    answer = compile_model(model, DeepShap(x[:2] / 2), targets=TARGET).explain(x)
    assert np.isfinite(answer["x_attributions"]).all()
    assert largest(answer["completeness_gap"]) <= COMPLETE_32 * largest(answer["explained_value"])


def test_an_inner_tensor_of_half_precision_is_explained() -> None:
    model = in_dtype("CNN", "float16", "float16")
    data = sample(model, 5, "float16")
    answer = compile_model(model, DeepShap(data[:3]), output="f", targets=[2]).explain(data[3:])
    assert answer["y"].dtype == np.float16
    assert largest(answer["completeness_gap"]) <= COMPLETE_32 * largest(answer["explained_value"])


@pytest.mark.parametrize("dtype", HALVES)
def test_the_predicted_target_is_the_largest_answer(dtype: str) -> None:
    """y0 = y1 as answered, though y1 is larger before it is rounded; then y2 is the largest."""
    model = parsed(
        f"g ({dtype}[N, 2] x) => ({dtype}[N, 3] y) {{ y = MatMul (x, w) }}",
        {"w": np.asarray([[1, 1, 0.5], [0, 2**-12, 2]], DTYPES[dtype])},
    )
    x = np.asarray([[1, 0.125], [1, 2]], DTYPES[dtype])
    answer = compile_model(model, DeepShap(x[:1] / 2)).explain(x)
    assert answer["y"].argmax(axis=1).tolist() == [0, 2]
    np.testing.assert_array_equal(answer["explained_value"], [[1.0], [4.5]])
    np.testing.assert_array_equal(answer["x_attributions"][:, 0], [[0.5, 0], [0.25, 3.875]])


def test_a_branch_in_half_precision() -> None:
    """Graphs inside nodes are widened with the graph around them."""
    model = parsed(
        """g (float16[N, 5] x, bool c) => (float16[N, 5] y) {
            a = If (c) <
                then_branch = t () => (float16[1] p) {
                    h = Constant <value_floats = [0.5]> ()
                    p = Cast <to = 10> (h)
                },
                else_branch = e () => (float16[1] q) { q = Identity (w) }
            >
            z = Mul (x, a)
            y = Tanh (z)
        }""",
        {"w": np.asarray([2.0], np.float16)},
    )
    x = rows(3, 5).astype(np.float16)
    compiled = compile_model(model, DeepShap(x[:2]), targets=TARGET)
    for condition, scale in ((True, 0.5), (False, 2.0)):
        answer = compiled.explain({"x": x, "c": np.asarray(condition)})
        assert largest(answer["y"] - np.tanh(x * scale)) <= spacing("float16")


@pytest.mark.parametrize(("provider", "inside"), [("cpu", "float32"), ("cuda", "bfloat16")])
def test_a_plain_entry_runs_where_it_is_meant_to(tmp_path: Path, provider: Provider, inside: str) -> None:
    model, x = in_dtype("perceptron", "bfloat16", "bfloat16"), rows(2, 5)
    deployment = Deployment(provider=provider)
    compiled = compile_model(model, DeepShap(rows(3, 5)), targets=TARGET, deployment=deployment)
    plain, explain = compiled.write(tmp_path, "half").with_name("half"), tmp_path / "half_explain"
    types = [re.findall(r"data_type: (\w+)", (f / "config.pbtxt").read_text()) for f in (plain, explain)]
    assert set(types[0]) == {"TYPE_BF16"}
    assert set(types[1]) == {"TYPE_BF16", "TYPE_FP32"}
    weights = onnx.load(plain / "1" / "model.onnx").graph.initializer
    assert {numpy_helper.to_array(w).dtype for w in weights} == {DTYPES[inside]}
    answer = open_entry(tmp_path, "half").explain(x)
    np.testing.assert_array_equal(answer["x_attributions"], compiled.explain(x)["x_attributions"])
    assert check_entry(tmp_path, "half").measured.outputs_error <= spacing("bfloat16")


def test_entries_say_their_types() -> None:
    model = in_dtype("perceptron", "bfloat16", "bfloat16")
    manifest = compile_model(model, DeepShap(rows(3, 5)), targets=TARGET).manifest
    assert manifest.inputs[0].datatype == manifest.outputs[0].datatype == "BF16"
    assert manifest.references is not None
    assert np.isfinite(manifest.references.base_value).all()
    assert any("CPU" in w and "bfloat16" in w for w in manifest.warnings)
    assert any("gateway" in w and "bfloat16" in w for w in manifest.warnings)
