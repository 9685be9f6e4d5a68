"""Entries of a model repository made by hand: small ONNX graphs and the config.pbtxt Triton reads.

`write_linear` makes a linear model and its explain twin, the smallest pair a gateway can be tested on:
their right answers are two lines of numpy (`Linear.predict`, `Linear.explain`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from google.protobuf import text_format
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tritonclient.grpc import model_config_pb2 as pb

from rationale.schema.manifest import (
    FILE_NAME,
    ChosenVariants,
    Digests,
    ExplainedInput,
    Manifest,
    Measurements,
    Memory,
    MethodRecord,
    References,
    TensorSpec,
)
from rationale.schema.request import CompileRequest

OPSET, IR_VERSION = 21, 10
Array = NDArray[np.float32]

DATA_TYPES: dict[int, int] = {
    TensorProto.BOOL: pb.TYPE_BOOL,
    TensorProto.UINT8: pb.TYPE_UINT8,
    TensorProto.UINT16: pb.TYPE_UINT16,
    TensorProto.UINT32: pb.TYPE_UINT32,
    TensorProto.UINT64: pb.TYPE_UINT64,
    TensorProto.INT8: pb.TYPE_INT8,
    TensorProto.INT16: pb.TYPE_INT16,
    TensorProto.INT32: pb.TYPE_INT32,
    TensorProto.INT64: pb.TYPE_INT64,
    TensorProto.FLOAT16: pb.TYPE_FP16,
    TensorProto.FLOAT: pb.TYPE_FP32,
    TensorProto.DOUBLE: pb.TYPE_FP64,
    TensorProto.STRING: pb.TYPE_STRING,
}


# --- any graph ----------------------------------------------------------------------------------------


def tensor(name: str, *shape: int | str, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """A graph input or output; a symbolic size is a string."""
    return helper.make_tensor_value_info(name, dtype, list(shape))


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Mapping[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "by_hand", list(inputs), list(outputs), initializers)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="tests"
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def dims_of(value: onnx.ValueInfoProto) -> list[int]:
    """The shape without its batch axis, −1 where a size is symbolic."""
    sizes = value.type.tensor_type.shape.dim[1:]
    return [size.dim_value if size.HasField("dim_value") else -1 for size in sizes]


def make_config(
    name: str,
    model: onnx.ModelProto,
    *,
    max_batch_size: int = 8,
    queue_delay_us: int = 0,
    parameters: Mapping[str, str] | None = None,
) -> pb.ModelConfig:
    """A full configuration, as `--disable-auto-complete-config` wants it."""
    config = pb.ModelConfig(
        name=name,
        backend="onnxruntime",
        max_batch_size=max_batch_size,
        dynamic_batching=pb.ModelDynamicBatching(max_queue_delay_microseconds=queue_delay_us),
        instance_group=[pb.ModelInstanceGroup(kind=pb.ModelInstanceGroup.KIND_CPU, count=1)],
    )
    for key, value in {"intra_op_thread_count": "1", **(parameters or {})}.items():
        config.parameters[key].string_value = value
    for end, tensors in ((config.input, model.graph.input), (config.output, model.graph.output)):
        for tensor in tensors:
            dtype = DATA_TYPES[tensor.type.tensor_type.elem_type]
            end.add(name=tensor.name, data_type=dtype, dims=dims_of(tensor))
    return config


def add_warmup(config: pb.ModelConfig, entry: Path, inputs: Mapping[str, np.ndarray]) -> None:
    """One sample, one row, its bytes in `warmup/`: `random_data` could hold NaN."""
    sample = config.model_warmup.add(name="one_row", batch_size=1, count=1)
    (entry / "warmup").mkdir(parents=True)
    for spec in config.input:
        file = f"{spec.name}.bin"
        (entry / "warmup" / file).write_bytes(inputs[spec.name].tobytes())
        sample.inputs[spec.name].CopyFrom(
            pb.ModelWarmup.Input(data_type=spec.data_type, dims=inputs[spec.name].shape, input_data_file=file)
        )


def write_entry(repository: Path, model: onnx.ModelProto, config: pb.ModelConfig) -> Path:
    """`NAME/config.pbtxt` and `NAME/1/model.onnx`."""
    entry = repository / config.name
    (entry / "1").mkdir(parents=True)
    (entry / "1" / "model.onnx").write_bytes(model.SerializeToString())
    (entry / "config.pbtxt").write_text(text_format.MessageToString(config))
    return entry


# --- a linear model and its explain twin --------------------------------------------------------------


@dataclass(frozen=True)
class Linear:
    """y = x·W + b, explained at all T outputs against K references."""

    name: str
    W: Array  # [F, T]
    b: Array  # [T]
    references: Array  # [K, F]

    def predict(self, x: Array) -> Array:
        """[N, F] → [N, T]."""
        return x @ self.W + self.b

    def explain(self, x: Array) -> dict[str, Array]:
        """What the explain twin answers for x [N, F]: a linear model's Shapley values are W·(x − mean r)."""
        y, base = self.predict(x), self.predict(self.references).mean(axis=0)
        attributions = self.W.T[None] * (x - self.references.mean(axis=0))[:, None]
        return {
            "y": y,
            "x_attributions": attributions,
            "base_value": np.broadcast_to(base, y.shape),
            "explained_value": y,
            "completeness_gap": y - base - attributions.sum(axis=2),
        }


def predict_model(linear: Linear) -> onnx.ModelProto:
    F, T = linear.W.shape
    node = helper.make_node("Gemm", ["x", "W", "b"], ["y"])
    return make_model([node], [tensor("x", "N", F)], [tensor("y", "N", T)], {"W": linear.W, "b": linear.b})


def explain_model(linear: Linear) -> onnx.ModelProto:
    F, T = linear.W.shape
    node = helper.make_node
    nodes = [
        node("Gemm", ["x", "W", "b"], ["y"]),
        node("Identity", ["y"], ["explained_value"]),
        node("Sub", ["x", "mean_r"], ["difference"]),
        node("Unsqueeze", ["difference", "one"], ["per_target"]),
        node("Mul", ["per_target", "W_t"], ["x_attributions"]),
        node("Shape", ["y"], ["shape"]),
        node("Expand", ["base", "shape"], ["base_value"]),
        node("Sub", ["y", "base_value"], ["to_explain"]),
        node("ReduceSum", ["x_attributions", "two"], ["explained"], keepdims=0),
        node("Sub", ["to_explain", "explained"], ["completeness_gap"]),
    ]
    weights = {
        "W": linear.W,
        "b": linear.b,
        "W_t": np.ascontiguousarray(linear.W.T),
        "mean_r": linear.references.mean(axis=0),
        "base": linear.predict(linear.references).mean(axis=0, keepdims=True),
        "one": np.array([1], np.int64),
        "two": np.array([2], np.int64),
    }
    per_target = [tensor(name, "N", T) for name in ("base_value", "explained_value", "completeness_gap")]
    outputs = [tensor("y", "N", T), tensor("x_attributions", "N", T, F), *per_target]
    return make_model(nodes, [tensor("x", "N", F)], outputs, weights)


def make_manifest(linear: Linear) -> Manifest:
    F, T = linear.W.shape
    K = len(linear.references)
    x, y = (
        TensorSpec(name="x", datatype="FP32", shape=(F,)),
        TensorSpec(name="y", datatype="FP32", shape=(T,)),
    )
    return Manifest(
        model=linear.name,
        method=MethodRecord(name="deepshap"),
        request=CompileRequest(),
        digests=Digests(model="0" * 64, references="1" * 64, options="2" * 64, explanation="3" * 64),
        inputs=(x,),
        explained=(
            ExplainedInput(
                tensor=x, attributions="x_attributions", feature_names=tuple(f"x[{i}]" for i in range(F))
            ),
        ),
        outputs=(y,),
        explained_output="y",
        explained_shape=y.shape,
        targets=tuple(range(T)),
        base_value="base_value",
        explained_value="explained_value",
        completeness_gap="completeness_gap",
        references=References(
            count=K, given=K, base_value=tuple(linear.predict(linear.references).mean(axis=0))
        ),
        opset=OPSET,
        ir_version=IR_VERSION,
        least_onnxruntime="1.18",
        tools={"onnx": onnx.__version__},
        measured=Measurements(
            rows=K, outputs_error=0, completeness_gap=0, rows_error=0, nodes=10, model_bytes=1, latency_ms=0.1
        ),
        variants=ChosenVariants(provider="cpu", threads=1, taken={}),
        memory=Memory(budget=1 << 30, needed=1, weights=1, baked=0, work=0),
    )


def write_linear(repository: Path, name: str = "linear", *, seed: int = 7, F: int = 3, T: int = 2) -> Linear:
    """Writes `NAME` (warmed up from a file) and `NAME_explain` with its manifest; says what they compute."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Array:
        return rng.normal(size=shape).astype(np.float32)

    linear = Linear(name, draw(F, T), draw(T), draw(5, F))
    model = predict_model(linear)
    config = make_config(name, model)
    entry = write_entry(repository, model, config)
    add_warmup(config, entry, {"x": linear.references[0]})
    (entry / "config.pbtxt").write_text(text_format.MessageToString(config))
    model = explain_model(linear)
    config = make_config(f"{name}_explain", model, max_batch_size=4)
    entry = write_entry(repository, model, config)
    (entry / FILE_NAME).write_text(make_manifest(linear).to_json())
    return linear
