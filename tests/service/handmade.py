"""Entries made by hand with onnx.helper, so that the gateway's tests need no compiler.

`SCORE` is y = x·W + b and its explanation: attributions (x − r)·W, base value r·W + b.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf import text_format
from onnx import TensorProto, helper, numpy_helper
from tritonclient.grpc import model_config_pb2 as pb

from compiler.manifest import (
    Digests,
    ExplainedInput,
    Manifest,
    Measured,
    Method,
    References,
    TensorSpec,
)

FEATURES = ("income", "debt", "age_of_account", "late_payments")
W = np.array(
    [[0.5, -1.0, 0.25], [-0.5, 2.0, 1.0], [0.125, 0.0, -2.0], [-3.0, 1.0, 0.5]], np.float32
)  # [F, T]
B = np.array([1.0, -2.0, 0.5], np.float32)
R = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
X = np.array([[1, 2, 3, 4], [2, 2, 2, 2], [0, -1, 0.5, 8], [5, 6, 7, 8], [1, 0, 0, 0]], np.float32)  # [5, F]

ELEMENT = {
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "FP16": TensorProto.FLOAT16,
    "INT64": TensorProto.INT64,
    "BOOL": TensorProto.BOOL,
    "BYTES": TensorProto.STRING,
    "UINT8": TensorProto.UINT8,
}


def spec(name: str, datatype: str, *shape: int) -> TensorSpec:
    return TensorSpec(name=name, datatype=datatype, shape=shape)


def predict(x: np.ndarray) -> np.ndarray:
    return x @ W + B


def attribute(x: np.ndarray) -> np.ndarray:
    """[N, T, F]."""
    return (x - R)[:, None, :] * W.T[None]


def write_entry(
    repository: Path,
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    constants: Mapping[str, np.ndarray],
    manifest: Manifest | None = None,
    **config: Any,
) -> Path:
    """Writes one entry; `config` overrides fields of the model configuration, as text."""
    graph = helper.make_graph(
        nodes,
        name,
        [_value(item) for item in inputs],
        [_value(item) for item in outputs],
        [numpy_helper.from_array(array, key) for key, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    onnx.save(model, folder / "1" / "model.onnx")
    settings = pb.ModelConfig(
        name=name, backend="onnxruntime", max_batch_size=config.pop("max_batch_size", 4)
    )
    for item in inputs:
        settings.input.add(name=item.name, data_type=_config_type(item), dims=item.shape)
    for item in outputs:
        settings.output.add(name=item.name, data_type=_config_type(item), dims=item.shape)
    text = text_format.MessageToString(settings) + config.pop("extra", "dynamic_batching {}")
    assert not config, f"unknown: {config}"
    (folder / "config.pbtxt").write_text(text)
    if manifest is not None:
        (folder / "explanation.json").write_text(manifest.to_json())
    return folder


def _value(item: TensorSpec) -> onnx.ValueInfoProto:
    shape = ["N", *(f"{item.name}_{i}" if size == -1 else size for i, size in enumerate(item.shape))]
    return helper.make_tensor_value_info(item.name, ELEMENT[item.datatype], shape)


def _config_type(item: TensorSpec) -> int:
    return pb.DataType.Value("TYPE_STRING" if item.datatype == "BYTES" else f"TYPE_{item.datatype}")


def manifest_of(
    model: str,
    inputs: Sequence[TensorSpec],
    explained: Sequence[ExplainedInput],
    outputs: Sequence[TensorSpec],
    **over: Any,
) -> Manifest:
    fields: dict[str, Any] = {
        "model": model,
        "method": Method(name="deepshap"),
        "digests": Digests(model="m" * 64, references="r" * 64, options="o" * 64, explanation="e" * 64),
        "inputs": tuple(inputs),
        "explained": tuple(explained),
        "outputs": tuple(outputs),
        "explained_output": outputs[0].name,
        "targets": (0, 1, 2),
        "base_value": "base_value",
        "explained_value": "explained_value",
        "completeness_gap": "completeness_gap",
        "references": References(count=1, given=1, base_value=None),
        "opset": 21,
        "ir_version": 10,
        "least_onnxruntime": "1.20",
        "tools": {},
        "measured": Measured(
            rows=3, outputs_error=0, completeness_gap=0, rows_error=0, nodes=9, model_bytes=1, latency_ms=1
        ),
    }
    return Manifest(**{**fields, **over})


def write_score(repository: Path, name: str = "score", **config: Any) -> None:
    """The linear model with T = 3 targets and named features, and its explain twin."""
    node = helper.make_node
    inputs, outputs = [spec("x", "FP32", 4)], [spec("y", "FP32", 3)]
    plain = [node("MatMul", ["x", "W"], ["xW"]), node("Add", ["xW", "b"], ["y"])]
    write_entry(repository, name, plain, inputs, outputs, {"W": W, "b": B}, **config)
    explained = [
        *plain,
        node("Sub", ["x", "r"], ["d"]),
        node("Unsqueeze", ["d", "one"], ["d1"]),
        node("Mul", ["d1", "Wt"], ["x_attributions"]),
        node("Identity", ["y"], ["explained_value"]),
        node("Mul", ["y", "zero"], ["y0"]),
        node("Add", ["y0", "base"], ["base_value"]),
        node("ReduceSum", ["x_attributions", "last"], ["sum"], keepdims=0),
        node("Sub", ["y", "base"], ["moved"]),
        node("Sub", ["moved", "sum"], ["completeness_gap"]),
    ]
    constants = {
        "W": W,
        "b": B,
        "r": R,
        "Wt": np.ascontiguousarray(W.T),
        "base": predict(R),
        "zero": np.zeros(1, np.float32),
        "one": np.array([1]),
        "last": np.array([2]),
    }
    added = [spec("x_attributions", "FP32", 3, 4)]
    added += [spec(name, "FP32", 3) for name in ("base_value", "explained_value", "completeness_gap")]
    items = [ExplainedInput(tensor=inputs[0], attributions="x_attributions", feature_names=FEATURES)]
    manifest = manifest_of(name, inputs, items, outputs)
    config = {**config, "max_batch_size": 2}
    write_entry(
        repository, f"{name}_explain", explained, inputs, outputs + added, constants, manifest, **config
    )


def write_gradient(repository: Path) -> None:
    """One output [N, 1], one target, a gradient: no base value, no gap."""
    node = helper.make_node
    inputs, outputs = [spec("x", "FP32", 2)], [spec("p", "FP32", 1)]
    plain = [node("MatMul", ["x", "w"], ["p"])]
    w = np.array([[2.0], [-3.0]], np.float32)
    write_entry(repository, "slope", plain, inputs, outputs, {"w": w})
    explained = [
        *plain,
        node("Identity", ["p"], ["explained_value"]),
        node("Mul", ["x", "zero"], ["x0"]),
        node("Add", ["x0", "wt"], ["g"]),
        node("Unsqueeze", ["g", "one"], ["x_attributions"]),
    ]
    constants = {"w": w, "zero": np.zeros(1, np.float32), "wt": w.T.copy(), "one": np.array([1])}
    added = [spec("x_attributions", "FP32", 1, 2), spec("explained_value", "FP32", 1)]
    items = [ExplainedInput(tensor=inputs[0], attributions="x_attributions", feature_names=("u", "v"))]
    manifest = manifest_of(
        "slope",
        inputs,
        items,
        outputs,
        method=Method(name="gradient"),
        targets=(0,),
        base_value=None,
        completeness_gap=None,
    )
    write_entry(repository, "slope_explain", explained, inputs, outputs + added, constants, manifest)


def write_pair(repository: Path) -> None:
    """Two inputs; y = sum(a) + 10·sum(b) [N, 1]; attributions are a and 10·b. `a` has names, `b` has none."""
    node = helper.make_node
    inputs = [spec("a", "FP32", 2), spec("b", "FP32", 2, 2)]
    outputs = [spec("y", "FP32", 1), spec("a_sum", "FP32", 1)]
    plain = [
        node("ReduceSum", ["a", "axis"], ["a_sum"], keepdims=1),
        node("Mul", ["b", "ten"], ["b10"]),
        node("ReduceSum", ["b10", "axes"], ["s1"], keepdims=0),
        node("Unsqueeze", ["s1", "axis"], ["s2"]),
        node("Add", ["a_sum", "s2"], ["y"]),
    ]
    constants = {"axis": np.array([1]), "axes": np.array([1, 2]), "ten": np.array([10], np.float32)}
    write_entry(repository, "pair", plain, inputs, outputs, constants)
    explained = [
        *plain,
        node("Unsqueeze", ["a", "axis"], ["a_attributions"]),
        node("Unsqueeze", ["b10", "axis"], ["b_attributions"]),
        node("Identity", ["y"], ["explained_value"]),
    ]
    added = [
        spec("a_attributions", "FP32", 1, 2),
        spec("b_attributions", "FP32", 1, 2, 2),
        spec("explained_value", "FP32", 1),
    ]
    items = [
        ExplainedInput(tensor=inputs[0], attributions="a_attributions", feature_names=("left", "right")),
        ExplainedInput(tensor=inputs[1], attributions="b_attributions"),
    ]
    manifest = manifest_of(
        "pair", inputs, items, outputs, targets=(0,), base_value=None, completeness_gap=None
    )
    write_entry(repository, "pair_explain", explained, inputs, outputs + added, constants, manifest)


def write_image(repository: Path) -> None:
    """[N, 2, 3, 3] → the sum of each channel [N, 2]; explains each row's own argmax; no feature names."""
    node = helper.make_node
    inputs, outputs = [spec("image", "FP32", 2, 3, 3)], [spec("sums", "FP32", 2)]
    plain = [node("ReduceSum", ["image", "pixels"], ["sums"], keepdims=0)]
    constants = {"pixels": np.array([2, 3])}
    write_entry(repository, "image", plain, inputs, outputs, constants)
    explained = [
        *plain,
        node("ReduceMax", ["sums", "one"], ["explained_value"], keepdims=1),
        node("ArgMax", ["sums"], ["at"], axis=1, keepdims=0),
        node("OneHot", ["at", "depth", "offon"], ["hot"], axis=1),
        node("Unsqueeze", ["hot", "pixels"], ["hot4"]),
        node("Mul", ["image", "hot4"], ["part"]),
        node("Unsqueeze", ["part", "one"], ["image_attributions"]),
    ]
    constants |= {"one": np.array([1]), "depth": np.array(2), "offon": np.array([0, 1], np.float32)}
    added = [spec("image_attributions", "FP32", 1, 2, 3, 3), spec("explained_value", "FP32", 1)]
    items = [ExplainedInput(tensor=inputs[0], attributions="image_attributions")]
    manifest = manifest_of(
        "image", inputs, items, outputs, targets="predicted", base_value=None, completeness_gap=None
    )
    write_entry(repository, "image_explain", explained, inputs, outputs + added, constants, manifest)


def write_typed(repository: Path) -> None:
    """INT64 and BYTES in; INT64, BYTES, FP16, FP64, UINT8 and BOOL out. No explanation."""
    node = helper.make_node
    inputs = [spec("ids", "INT64", 2), spec("text", "BYTES", 1)]
    outputs = [
        spec("ids_out", "INT64", 2),
        spec("text_out", "BYTES", 1),
        spec("half", "FP16", 2),
        spec("double", "FP64", 2),
        spec("small", "UINT8", 2),
        spec("positive", "BOOL", 2),
    ]
    nodes = [
        node("Identity", ["ids"], ["ids_out"]),
        node("Identity", ["text"], ["text_out"]),
        node("Cast", ["ids"], ["half"], to=TensorProto.FLOAT16),
        node("Cast", ["ids"], ["double"], to=TensorProto.DOUBLE),
        node("Cast", ["ids"], ["small"], to=TensorProto.UINT8),
        node("Greater", ["ids", "zero"], ["positive"]),
    ]
    write_entry(repository, "typed", nodes, inputs, outputs, {"zero": np.array([0])})


def write_faulty(repository: Path) -> None:
    """Sound to load; what they do with some inputs is not."""
    node = helper.make_node
    x, y = [spec("x", "FP32", 1)], [spec("y", "FP32", 1)]
    write_entry(repository, "log", [node("Log", ["x"], ["y"])], x, y, {})
    write_entry(
        repository,
        "mixing",
        [node("Compress", ["x", "first"], ["y"], axis=0)],
        x,
        y,
        {"first": np.array([True])},
    )
    table = np.array([[10.0], [20.0], [30.0]], np.float32)
    nodes = [node("Reshape", ["ids", "flat"], ["i"]), node("Gather", ["table", "i"], ["y"], axis=0)]
    write_entry(
        repository, "table", nodes, [spec("ids", "INT64", 1)], y, {"table": table, "flat": np.array([-1])}
    )
    write_entry(
        repository,
        "open",
        [node("Add", ["x", "z"], ["y"])],
        [spec("x", "FP32", -1), spec("z", "FP32", -1)],
        [spec("y", "FP32", -1)],
        {},
    )


def write_vector(repository: Path) -> None:
    """The model takes [N] and gives [N], which Triton cannot say but by `reshape`: dims [1], y = 2x."""
    x, y = [spec("x", "FP32")], [spec("y", "FP32"), spec("grid", "FP32", 1, 2)]
    nodes = [
        helper.make_node("Add", ["x", "x"], ["y"]),
        helper.make_node("Unsqueeze", ["x", "axes"], ["x3"]),
        helper.make_node("Concat", ["x3", "x3"], ["grid"], axis=2),
    ]
    folder = write_entry(repository, "vector", nodes, x, y, {"axes": np.array([1, 2])})
    settings = text_format.Parse((folder / "config.pbtxt").read_text(), pb.ModelConfig())
    for tensor in (settings.input[0], settings.output[0]):
        tensor.dims[:] = [1]
        tensor.reshape.SetInParent()
    settings.output[1].dims[:] = [2]
    settings.output[1].reshape.shape[:] = [1, 2]
    (folder / "config.pbtxt").write_text(text_format.MessageToString(settings))


def write_all(repository: Path) -> None:
    for write in (
        write_score,
        write_gradient,
        write_pair,
        write_image,
        write_typed,
        write_faulty,
        write_vector,
    ):
        write(repository)
