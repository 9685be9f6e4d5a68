"""Whole networks for the tests: real architectures whose weights keep the signal alive.

Default initialisation lets the signal of a deep network vanish or explode, and a gap divided by a
difference of zero says nothing. So every Conv, Gemm and MatMul is rescaled and recentred, front to back,
until its output varies by 1 over a few random rows, and BatchNormalization takes its statistics there.
"""

import collections
import contextlib
import io
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from benchmarks.networks import import_torchvision, scale_and_mean
from tests.references.interpreter import OPERATORS, run64

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
LIGHT_MODELS = sorted(p.stem.removeprefix("light_") for p in LIGHT.glob("light_*.onnx"))
LIGHT_SHAPE = (3, 224, 224)
ROWS = 2  # from which weights take their scale and biases their place


def light_model(name: str) -> onnx.ModelProto:
    """One of the architectures the onnx package carries, with weights in place of its constants.

    The files hold one constant everywhere, written as ConstantOfShape; batch 1 is baked in, and the shapes
    of the weights are listed as inputs. All but the constants is left as it is.
    """
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    rng = np.random.default_rng(0)
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    users = collections.defaultdict(list)
    for node in model.graph.node:
        for i, value in enumerate(node.input):
            users[value].append((node, i))
    nodes_kept = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            nodes_kept.append(node)
            continue
        shape = tuple(int(n) for n in constants[node.input[0]])
        array = (
            rng.standard_normal(shape)
            if len(shape) > 1
            else _vector(rng, shape, *users[node.output[0]][0], users)
        )
        weight = numpy_helper.from_array(array.astype(np.float32), node.output[0])
        model.graph.initializer.append(weight)
        model.graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, shape))
    del model.graph.node[:]
    model.graph.node.extend(nodes_kept)
    keep_signal(model, {data_input(model): rng.standard_normal((ROWS, *LIGHT_SHAPE))})
    return model


def _vector(
    rng: np.random.Generator, shape: tuple[int, ...], user: onnx.NodeProto, i: int, users: Any
) -> np.ndarray:
    """Scales are near 1, biases near 0."""
    while user.op_type == "Unsqueeze":
        user, i = users[user.output[0]][0]
    scale = user.op_type == "Mul" or (user.op_type == "BatchNormalization" and i in (1, 4))
    return rng.uniform(0.8, 1.2, shape) if scale else rng.uniform(-0.3, 0.3, shape)


def data_input(model: onnx.ModelProto) -> str:
    """The name of the only input that is no weight."""
    weights = {t.name for t in model.graph.initializer}
    (name,) = (v.name for v in model.graph.input if v.name not in weights)
    return name


def keep_signal(model: onnx.ModelProto, rows: dict[str, np.ndarray]) -> None:
    """Rescales weights in place; see the module."""
    initializers = {t.name: t for t in model.graph.initializer}

    producers = {name: node for node in model.graph.node for name in node.output}

    def rescale(node: onnx.NodeProto, values: dict[str, torch.Tensor]) -> None:
        name, y = node.input[1], values[node.output[0]]
        while name in producers and producers[name].op_type in ("Identity", "Reshape", "Transpose"):
            name = producers[name].input[0]
        if name not in initializers:
            return
        factor, mean = scale_and_mean(y, recentred=len(node.input) > 2)
        centred = y - mean.reshape([1, -1, *(1 for _ in y.shape[2:])])
        _set(initializers[name], values[name] * factor, values)
        if len(node.input) > 2:
            bias = (values[node.input[2]] - mean) * factor
            node.input[2] = _add_initializer(model, f"{node.output[0]}/bias", bias, values)
        values[node.output[0]] = centred * factor

    def standardise(node: onnx.NodeProto, values: dict[str, torch.Tensor]) -> None:
        x = values[node.input[0]]
        axes = [0, *range(2, x.ndim)]
        for i, statistic in ((3, x.mean(axes)), (4, x.var(axes, unbiased=False) + 1e-3)):
            node.input[i] = _add_initializer(model, f"{node.output[0]}/statistic_{i}", statistic, values)
        operands = [values[name] for name in node.input]
        values[node.output[0]] = OPERATORS["BatchNormalization"](*operands)

    actions = {"Conv": rescale, "Gemm": rescale, "MatMul": rescale, "BatchNormalization": standardise}

    def observe(node: onnx.NodeProto, values: dict[str, torch.Tensor]) -> None:
        if node.op_type in actions:
            actions[node.op_type](node, values)

    run64(model, rows, observe=observe, operators={"Reshape": _reshape_rows})


def _reshape_rows(x: torch.Tensor, shape: torch.Tensor, **_: int) -> torch.Tensor:
    """A Reshape into which batch 1 was baked, for several rows."""
    target = [int(n) for n in shape]
    if -1 not in target and 0 not in target and np.prod(target) != x.numel():
        target[0] = -1
    return OPERATORS["Reshape"](x, torch.tensor(target))


def _add_initializer(
    model: onnx.ModelProto, name: str, value: torch.Tensor, values: dict[str, torch.Tensor]
) -> str:
    """A new initializer, because exporters share equal ones between nodes."""
    _set(model.graph.initializer.add(name=name), value, values)
    if model.ir_version < 4:  # which wants every initializer among the inputs
        tensor_info = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, list(value.shape))
        model.graph.input.append(tensor_info)
    return name


def _set(weight: onnx.TensorProto, value: torch.Tensor, values: dict[str, torch.Tensor]) -> None:
    name = weight.name
    values[name] = value
    weight.CopyFrom(numpy_helper.from_array(value.numpy().astype(np.float32), name))


def vision_model(name: str, size: int, *, dynamo: bool) -> onnx.ModelProto:
    """A torchvision architecture with random weights through one of PyTorch's two exporters.

    The shapes of its input are [N, 3, size, size]; the batch is dynamic.
    """
    torch.manual_seed(0)
    network = getattr(import_torchvision().models, name)(weights=None).eval()
    model = exported(network, torch.randn(2, 3, size, size), dynamo=dynamo)
    keep_signal(model, {"x": np.random.default_rng(0).standard_normal((ROWS, 3, size, size))})
    return model


def exported(network: torch.nn.Module, rows: torch.Tensor, *, dynamo: bool) -> onnx.ModelProto:
    """A network by one of PyTorch's two exporters: torch.export (`dynamo`) or TorchScript.

    Its input is called x; the batch is dynamic.

    Args:
        rows: two rows of its input.
    """
    batch = {"dynamic_shapes": ({0: torch.export.Dim("batch")},), "external_data": False, "verbose": False}
    options: dict[str, Any] = batch if dynamo else {"dynamic_axes": {"x": {0: "batch"}}}
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore")  # both exporters warn about themselves
        network.requires_grad_(not dynamo)  # else PyTorch fuses attention, of which TorchScript has no export
        path = Path(folder) / "model.onnx"
        torch.onnx.export(network, (rows,), path, dynamo=dynamo, input_names=["x"], **options)
        return onnx.load(path)
