"""Whole networks: the issue's image models, by both of PyTorch's exporters, and the onnx package's own."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest

from rationale import Compiled, DeepShap, compile_model
from rationale.graph.runtime.session import Runner
from tests.models.networks import LIGHT_MODELS, data_input, light_model, vision_model
from tests.references.interpreter import run64
from tests.tolerances import COMPLETE_32, FLIPPED, FLIPPED_SHARE, NETWORK_L2, OUTPUTS_32

K, N = 5, 3

NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    f"light {n}": partial(light_model, n) for n in LIGHT_MODELS
}
for _name, _size in {"vgg19": 224, "resnet50": 64, "densenet201": 64, "efficientnet_b0": 64}.items():
    for _dynamo in (False, True):
        _label = f"{_name} {'torch.export' if _dynamo else 'TorchScript'}"
        NETWORKS[_label] = partial(vision_model, _name, _size, dynamo=_dynamo)


NETWORKS["vgg19 64² torch.export"] = partial(vision_model, "vgg19", 64, dynamo=True)

# the smallest in every run, one of each kind in `make test-full`, the others before a release
ALWAYS = {"light squeezenet"}
FULL = {
    "light shufflenet",
    "resnet50 torch.export",
    "densenet201 TorchScript",
    "efficientnet_b0 torch.export",
}


def marked(name: str) -> Any:
    mark = pytest.mark.full if name in FULL else pytest.mark.slow
    return pytest.param(name, marks=() if name in ALWAYS else mark)


@pytest.mark.full
@pytest.mark.parametrize("name", [marked(name) for name in NETWORKS])
def test_network(name: str) -> None:
    """Complete, unchanged, row by row, and what its nodes mean in float64; one compile serves all four."""
    model = NETWORKS[name]()
    x_name = data_input(model)
    rows = rows_of(model, K + N)
    compiled = compile_model(model, DeepShap(rows[:K]))
    assert "Scan" not in {n.op_type for n in compiled.model.graph.node}, "a row by itself is slow"
    x = rows[K:]
    answer = compiled.explain(x)

    difference = np.abs(answer["explained_value"] - answer["base_value"])
    signal = np.abs(answer["explained_value"]).max()
    assert difference.max() > 1e-3 * signal, "a test network must have a signal"
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32 * difference.max()
    total = answer[f"{x_name}_attributions"].reshape(N, 1, -1).sum(-1, dtype=np.float64)
    assert (
        np.abs(total - (answer["explained_value"] - answer["base_value"])).max()
        <= COMPLETE_32 * difference.max()
    )
    _assert_outputs_unchanged(compiled, x, answer)
    attributions = answer[f"{x_name}_attributions"]
    alone = compiled.explain(x[1:2])[f"{x_name}_attributions"]
    _assert_close(alone, attributions[1:2])
    _assert_close(
        attributions[:1],
        run64(compiled.model, {x_name: x[:1]}, [f"{x_name}_attributions"])[f"{x_name}_attributions"],
    )


def rows_of(model: onnx.ModelProto, count: int) -> np.ndarray:
    """Standard normal rows [count, …] for the model's only input."""
    (tensor,) = (v.type.tensor_type for v in model.graph.input if v.name == data_input(model))
    shape = [d.dim_value for d in tensor.shape.dim[1:]]
    return np.random.default_rng(1).standard_normal((count, *shape)).astype(np.float32)


def _assert_outputs_unchanged(compiled: Compiled, x: np.ndarray, answer: dict[str, np.ndarray]) -> None:
    """Within 1e-6, or within ONNX Runtime's own distance from float64, where that is larger.

    It fuses other nodes in the original than in the combined graph; a deep network without training
    turns such roundings into 1e-5 (DenseNet121, light: 9e-6 for either graph).
    """
    inputs = {compiled.manifest.inputs[0].name: x}
    for name, value in Runner(compiled.source)(inputs).items():
        scale = np.abs(value).max()
        error = np.abs(answer[name] - value).max()
        if error > OUTPUTS_32 * scale:
            exact = run64(compiled.source, inputs, [name])[name]
            assert error <= np.abs(value - exact).max()


def _assert_close(got: np.ndarray, want: np.ndarray) -> None:
    """Equal but for float32, which now and then lets another element of a window win."""
    error = np.abs(got - want)
    assert np.linalg.norm(error) <= NETWORK_L2 * np.linalg.norm(want)
    assert (error > FLIPPED * np.abs(want).max()).mean() <= FLIPPED_SHARE
