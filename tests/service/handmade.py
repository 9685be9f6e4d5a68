"""Entries made by hand in ONNX's text form, so that the gateway's tests need no compiler.

`SCORE` is y = x·W + b and its explanation: attributions (x − r)·W, base value r·W + b.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf import text_format
from onnx import helper
from tritonclient.grpc import model_config_pb2 as pb
from tritonclient.utils import np_to_triton_dtype

from rationale.schema.manifest import (
    ChosenVariants,
    Digests,
    EmbeddedProfile,
    ExplainedInput,
    Manifest,
    Measurements,
    Memory,
    MethodRecord,
    References,
    Spread,
    TensorSpec,
)
from rationale.schema.profile import as_profile
from rationale.schema.request import CompileRequest
from tests.compiler.models import parsed

FEATURES = ("income", "debt", "age_of_account", "late_payments")
W = np.array(
    [[0.5, -1.0, 0.25], [-0.5, 2.0, 1.0], [0.125, 0.0, -2.0], [-3.0, 1.0, 0.5]], np.float32
)  # [F, T]
B = np.array([1.0, -2.0, 0.5], np.float32)
R = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
SPREADS = (Spread(feature="income", quantiles=(1.0,) * 21, whole=True),)
X = np.array([[1, 2, 3, 4], [2, 2, 2, 2], [0, -1, 0.5, 8], [5, 6, 7, 8], [1, 0, 0, 0]], np.float32)  # [5, F]
PROFILE: dict[str, Any] = {
    "output": "y[0]",
    "threshold": -5,
    "adverse": "above",
    "features": {
        "income": {"reason": "R01"},
        "debt": {"reason": "R01"},
        "age_of_account": {"reason": "R01"},
        "late_payments": {"reason": "R02"},
    },
    "reasons": {"R01": "Income", "R02": "Recent late payments"},
}
LINEAR = "xW = MatMul (x, W)  y = Add (xW, b)"
SMALL = {"zero": np.zeros(1, np.float32), "one": np.array([1]), "two": np.array([2])}


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
    graph: str,
    constants: Mapping[str, np.ndarray] | None = None,
    *,
    max_batch_size: int = 4,
    extra: str = "dynamic_batching {}",
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Its inputs and outputs. `graph` is what follows its name; of `constants` it gets those that it names.

    Args:
        extra: of the model configuration, as text.
    """
    words = set(re.findall(r"\w+", graph))
    model = parsed(f"graph {graph}", {key: a for key, a in (constants or {}).items() if key in words})
    onnx.checker.check_model(model)
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    onnx.save(model, folder / "1" / "model.onnx")
    inputs, outputs = (tuple(map(_spec, end)) for end in (model.graph.input, model.graph.output))
    config = pb.ModelConfig(name=name, backend="onnxruntime", max_batch_size=max_batch_size)
    for listed, specs in ((config.input, inputs), (config.output, outputs)):
        for each in specs:
            kind = pb.DataType.Value("TYPE_" + each.datatype.replace("BYTES", "STRING"))
            listed.add(name=each.name, data_type=kind, dims=each.shape)
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config) + extra)
    return inputs, outputs


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    datatype = np_to_triton_dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return spec(value.name, datatype, *(size.dim_value or -1 for size in tensor.shape.dim[1:]))


def write_pair_of(
    repository: Path,
    name: str,
    plain: tuple[str, str, str],
    more: tuple[str, str],
    constants: Mapping[str, np.ndarray],
    features: Sequence[tuple[str, ...] | None],
    *,
    config: Mapping[str, Any] | None = None,
    twin_config: Mapping[str, Any] | None = None,
    **over: Any,
) -> None:
    """A model and its explain twin.

    Args:
        plain: the model's inputs, outputs and nodes; more: the twin's outputs and nodes beside them.
        features: the names of each input's.
        over: fields of the manifest.
    """
    inputs, outputs, nodes = plain
    graph = f"({inputs}) => ({outputs}) {{ {nodes} }}"
    feeds, answered = write_entry(repository, name, graph, constants, **(config or {}))
    graph = f"({inputs}) => ({outputs}, {more[0]}) {{ {nodes} {more[1]} }}"
    write_entry(repository, f"{name}_explain", graph, constants, **(twin_config or config or {}))
    explained = (
        ExplainedInput(tensor=each, attributions=f"{each.name}_attributions", feature_names=names)
        for each, names in zip(feeds, features, strict=True)
    )
    fields: dict[str, Any] = {
        "model": name,
        "method": MethodRecord(name="deepshap"),
        "digests": Digests(model="m" * 64, references="r" * 64, options="o" * 64, explanation="e" * 64),
        "inputs": feeds,
        "explained": tuple(explained),
        "outputs": answered,
        "explained_output": answered[0].name,
        "explained_shape": answered[0].shape,
        "targets": (0,),
        "base_value": None,
        "explained_value": "explained_value",
        "completeness_gap": None,
        "references": References(count=1, given=1, base_value=None, spreads=SPREADS),
        "opset": 21,
        "ir_version": 10,
        "least_onnxruntime": "1.20",
        "tools": {},
        "measured": Measurements(
            rows=3, outputs_error=0, completeness_gap=0, rows_error=0, nodes=9, model_bytes=1, latency_ms=1
        ),
        "variants": ChosenVariants(provider="cpu", threads=1, taken={}),
        "memory": Memory(budget=1 << 30, needed=1, weights=1, baked=0, work=0),
    }
    fields |= over
    request = CompileRequest(
        method=fields["method"].name,
        options=fields["method"].options,
        output=fields["explained_output"],
        targets=fields["targets"],
        inputs=[each.name for each in feeds],
        features={each.name: names for each, names in zip(feeds, features, strict=True) if names},
    )
    manifest = Manifest(**{"request": request, **fields})
    (repository / f"{name}_explain" / "explanation.json").write_text(manifest.to_json())


def write_score(
    repository: Path, name: str = "score", profile: Mapping[str, Any] = PROFILE, **config: Any
) -> None:
    """The linear model with T = 3 targets and named features, and its explain twin."""
    write_pair_of(
        repository,
        name,
        ("float[N, 4] x", "float[N, 3] y", LINEAR),
        (
            """float[N, 3, 4] x_attributions, float[N, 3] base_value, float[N, 3] explained_value,
               float[N, 3] completeness_gap""",
            """d = Sub (x, r)  d1 = Unsqueeze (d, one)  x_attributions = Mul (d1, Wt)
               explained_value = Identity (y)  y0 = Mul (y, zero)  base_value = Add (y0, base)
               sum = ReduceSum <keepdims = 0> (x_attributions, two)
               moved = Sub (y, base)  completeness_gap = Sub (moved, sum)""",
        ),
        {"W": W, "b": B, "r": R, "Wt": np.ascontiguousarray(W.T), "base": predict(R), **SMALL},
        [FEATURES],
        config=config,
        twin_config={**config, "max_batch_size": 2},
        targets=(0, 1, 2),
        base_value="base_value",
        completeness_gap="completeness_gap",
        decision=EmbeddedProfile(
            profile=as_profile(profile),
            digest=as_profile(profile).digest,
            output_range=(-100.0, 100.0),
            tolerance=0.02,
        ),
    )


def write_gradient(repository: Path) -> None:
    """One output [N, 1], one target, a gradient: no base value, no gap."""
    w = np.array([[2.0], [-3.0]], np.float32)
    write_pair_of(
        repository,
        "slope",
        ("float[N, 2] x", "float[N, 1] p", "p = MatMul (x, w)"),
        (
            "float[N, 1, 2] x_attributions, float[N, 1] explained_value",
            """explained_value = Identity (p)  x0 = Mul (x, zero)  g = Add (x0, wt)
               x_attributions = Unsqueeze (g, one)""",
        ),
        {"w": w, "wt": w.T.copy(), **SMALL},
        [("u", "v")],
        method=MethodRecord(name="gradient"),
    )


def write_pair(repository: Path) -> None:
    """Two inputs; y = sum(a) + 10·sum(b) [N, 1]; attributions are a and 10·b. `a` has names, `b` has none."""
    write_pair_of(
        repository,
        "pair",
        (
            "float[N, 2] a, float[N, 2, 2] b",
            "float[N, 1] y, float[N, 1] a_sum",
            """a_sum = ReduceSum <keepdims = 1> (a, one)  b10 = Mul (b, ten)
               s1 = ReduceSum <keepdims = 0> (b10, axes)  s2 = Unsqueeze (s1, one)  y = Add (a_sum, s2)""",
        ),
        (
            "float[N, 1, 2] a_attributions, float[N, 1, 2, 2] b_attributions, float[N, 1] explained_value",
            """a_attributions = Unsqueeze (a, one)  b_attributions = Unsqueeze (b10, one)
               explained_value = Identity (y)""",
        ),
        {"axes": np.array([1, 2]), "ten": np.array([10], np.float32), **SMALL},
        [("left", "right"), None],
    )


def write_image(repository: Path) -> None:
    """[N, 2, 3, 3] → the sum of each channel [N, 2]; explains each row's own argmax; no feature names."""
    write_pair_of(
        repository,
        "image",
        ("float[N, 2, 3, 3] image", "float[N, 2] sums", "sums = ReduceSum <keepdims = 0> (image, pixels)"),
        (
            "float[N, 1, 2, 3, 3] image_attributions, float[N, 1] explained_value",
            """explained_value = ReduceMax <keepdims = 1> (sums, one)
               at = ArgMax <axis = 1, keepdims = 0> (sums)  hot = OneHot <axis = 1> (at, depth, offon)
               hot4 = Unsqueeze (hot, pixels)  part = Mul (image, hot4)
               image_attributions = Unsqueeze (part, one)""",
        ),
        {"pixels": np.array([2, 3]), "depth": np.array(2), "offon": np.array([0, 1], np.float32), **SMALL},
        [None],
        targets="predicted",
    )


def write_typed(repository: Path) -> None:
    """INT64 and BYTES in; INT64, BYTES, FP16, FP64, UINT8 and BOOL out. No explanation."""
    graph = """(int64[N, 2] ids, string[N, 1] text) => (
        int64[N, 2] ids_out, string[N, 1] text_out, float16[N, 2] half, double[N, 2] double,
        uint8[N, 2] small, bool[N, 2] positive
    ) <int64[1] none = {0}> {
        ids_out = Identity (ids)  text_out = Identity (text)  positive = Greater (ids, none)
        half = Cast <to = 10> (ids)  double = Cast <to = 11> (ids)  small = Cast <to = 2> (ids)
    }"""
    write_entry(repository, "typed", graph)


def write_faulty(repository: Path) -> None:
    """Sound to load; what they do with some inputs is not."""
    write_entry(repository, "log", "(float[N, 1] x) => (float[N, 1] y) { y = Log (x) }")
    graph = "(float[N, 1] x) => (float[N, 1] y) { y = Compress <axis = 0> (x, first) }"
    write_entry(repository, "mixing", graph, {"first": np.array([True])})
    graph = """(int64[N, 1] ids) => (float[N, 1] y) <float[3, 1] rows = {10, 20, 30}, int64[1] flat = {-1}> {
        i = Reshape (ids, flat)  y = Gather <axis = 0> (rows, i)
    }"""
    write_entry(repository, "table", graph)
    graph = "(float[N, a] x, float[N, b] z) => (float[N, c] y) { y = Add (x, z) }"
    write_entry(repository, "open", graph)


def write_vector(repository: Path) -> None:
    """The model takes [N] and gives [N], which Triton cannot say but by `reshape`: dims [1], y = 2x."""
    graph = """(float[N] x) => (float[N] y, float[N, 1, 2] grid) <int64[2] axes = {1, 2}> {
        y = Add (x, x)  x3 = Unsqueeze (x, axes)  grid = Concat <axis = 2> (x3, x3)
    }"""
    write_entry(repository, "vector", graph)
    path = repository / "vector" / "config.pbtxt"
    settings = text_format.Parse(path.read_text(), pb.ModelConfig())
    for tensor in (settings.input[0], settings.output[0]):
        tensor.dims[:] = [1]
        tensor.reshape.SetInParent()
    settings.output[1].dims[:] = [2]
    settings.output[1].reshape.shape[:] = [1, 2]
    path.write_text(text_format.MessageToString(settings))


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
