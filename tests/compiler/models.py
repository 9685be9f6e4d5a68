"""Small models for the tests, written in ONNX's text form or built from arrays.

Weights are drawn from a fixed seed; no two axes of a model have the same length.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

FEATURES, HIDDEN, CLASSES = 5, 7, 3
NAMES = ["age", "income", "debt", "years", "cards"]
OPSET, IR_VERSION = 21, 10


def rows(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    """Standard normal float32 rows [count, *shape]."""
    return np.random.default_rng(seed).standard_normal((count, *shape)).astype(np.float32)


def parsed(
    graph: str, weights: Mapping[str, np.ndarray] | None = None, *, opsets: str = ""
) -> onnx.ModelProto:
    """A model from the text form of its graph: `"g (float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }"`.

    Args:
        weights: initializers that the text names but does not hold.
        opsets: imports other than opset 21 of ai.onnx, such as '"" : 13, "ai.onnx.ml" : 4'.
    """
    imports = opsets or f'"" : {OPSET}'
    model = parser.parse_model(f"<ir_version: {IR_VERSION}, opset_import: [{imports}]> {graph}")
    for name, array in (weights or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def mlp(
    widths: Sequence[int] = (FEATURES, HIDDEN, CLASSES), *, last: str = "Softmax", seed: int = 0
) -> onnx.ModelProto:
    """x [N, widths[0]] through Gemm and Relu to y [N, widths[-1]]; `last` is the operator at the end."""
    random = np.random.default_rng(seed)
    nodes, weights, value = [], [], "x"
    for i, (a, b) in enumerate(pairwise(widths), start=1):
        weights += [
            numpy_helper.from_array(
                (random.standard_normal((a, b)) / np.sqrt(a)).astype(np.float32), f"w{i}"
            ),
            numpy_helper.from_array(random.standard_normal(b).astype(np.float32) * 0.1, f"b{i}"),
        ]
        nodes.append(helper.make_node("Gemm", [value, f"w{i}", f"b{i}"], [f"z{i}"], name=f"layer{i}"))
        activation, value = ("Relu", f"h{i}") if i < len(widths) - 1 else (last, "y")
        nodes.append(helper.make_node(activation, [f"z{i}"], [value], name=f"activation{i}"))
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", widths[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", widths[-1]])],
        weights,
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="tests"
    )


def two_inputs() -> onnx.ModelProto:
    """y [N, 2] = tanh(a·u) ⊙ σ(b·v) for a [N, 3] and b [N, 4]."""
    text = """two (float[N, 3] a, float[N, 4] b) => (float[N, 2] y) {
        [left] p = MatMul (a, u)
        [bend] pt = Tanh (p)
        [right] q = MatMul (b, v)
        [gate] qs = Sigmoid (q)
        [join] y = Mul (pt, qs)
    }"""
    return parsed(text, {"u": rows(3, 2, seed=1), "v": rows(4, 2, seed=2)})


def cnn() -> onnx.ModelProto:
    """y [N, 3] from an image x [N, 2, 6, 8]: Conv, Relu, MaxPool, Flatten, Gemm."""
    text = """cnn (float[N, 2, 6, 8] x) => (float[N, 3] y) {
        [conv] c = Conv <pads = [1, 1, 1, 1]> (x, k, kb)
        [relu] r = Relu (c)
        [pool] p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
        [flat] f = Flatten <axis = 1> (p)
        [head] y = Gemm (f, w, wb)
    }"""
    weights = {"k": rows(4, 2, 3, 3, seed=3) / 4, "kb": rows(4, seed=4)}
    return parsed(text, {**weights, "w": rows(48, 3, seed=5) / 7, "wb": rows(3, seed=6)})


def changed(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    """The perceptron with one thing wrong, or odd."""
    model = mlp()
    change(model)
    return model


def with_floats_in(
    model: onnx.ModelProto, dtype: npt.DTypeLike, rounded_to: npt.DTypeLike = np.float64
) -> onnx.ModelProto:
    """A copy with every float32 in `dtype`, its weights rounded first."""
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def convert(tensor: onnx.TensorProto) -> None:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(rounded_to).astype(dtype)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    for attribute in (a for node in copy.graph.node for a in node.attribute):
        if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
            attribute.i = code
        convert(attribute.t)
    for tensor in copy.graph.initializer:
        convert(tensor)
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = code
    return copy


def saved_apart(folder: Path) -> Path:
    """The perceptron with its weights in a file beside it."""
    path = folder / "model.onnx"
    onnx.save(mlp(), path, save_as_external_data=True, location="model.data", size_threshold=0)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below, hidden ones too."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
