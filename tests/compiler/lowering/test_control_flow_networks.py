"""Control flow as PyTorch writes it: a scripted loop that appends to a list, and torch.cond; every opset."""

import io
import warnings

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from rationale import DeepShap, compile_model
from tests.compiler.models import parsed, rows
from tests.tolerances import COMPLETE_32, OUTPUTS_32

STEPS, WIDTH, N, K = 5, 3, 4, 3


class Scripted(nn.Module):
    """A cell of its own in a loop over the steps, with an if on their number and a list of states."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.of_x, self.of_h, self.head = nn.Linear(WIDTH, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.shape[0], 4)
        states: list[torch.Tensor] = []
        for t in range(x.shape[1]):
            h = torch.tanh(self.of_x(x[:, t]) + self.of_h(h))
            if t % 2 == 0:
                states.append(h)
            else:
                states.append(torch.relu(h))
        return self.head(torch.stack(states, 1).mean(1))


class Chooses(nn.Module):
    """Two branches by the row's own sum."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(WIDTH, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def bent(x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.tanh(self.first(x)))

        def straight(x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x)) + 1

        return torch.cond(x.sum() > 0, bent, straight, (x,))


def assert_explained(
    model: onnx.ModelProto, network: nn.Module, x: np.ndarray, references: np.ndarray
) -> None:
    compiled = compile_model(model, DeepShap(references), targets="all")
    assert not {"If", "Loop"} & {node.op_type for node in compiled.model.graph.node}
    answer = compiled.explain(x)
    with torch.no_grad():
        y = np.concatenate([network(torch.from_numpy(row[None])).numpy() for row in x])
    np.testing.assert_allclose(answer["explained_value"], y, atol=OUTPUTS_32 * np.abs(y).max(), rtol=0)
    change = np.abs(answer["explained_value"] - answer["base_value"]).max()
    assert change > 1e-2
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32 * change


def test_a_scripted_loop_that_fills_a_list() -> None:
    network, file = Scripted().eval(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about itself
        torch.onnx.export(
            torch.jit.script(network),
            (torch.randn(2, STEPS, WIDTH),),
            file,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {0: "N"}, "y": {0: "N"}},
            dynamo=False,
        )
    model = onnx.load_from_string(file.getvalue())
    assert {"Loop", "SequenceEmpty"} <= {node.op_type for node in model.graph.node}
    assert_explained(model, network, rows(N, STEPS, WIDTH, seed=1), rows(K, STEPS, WIDTH, seed=2))


@pytest.mark.full
def test_a_condition_on_each_row() -> None:
    """Some rows and references take either branch."""
    network = Chooses().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(network, (torch.randn(1, WIDTH),), dynamo=True, verbose=False)
    assert program is not None
    x, references = rows(N, WIDTH, seed=3), rows(K, WIDTH, seed=5)
    assert {True, False} == set(x.sum(1) > 0) == set(references.sum(1) > 0)
    assert_explained(program.model_proto, network, x, references)


OLD = """g (float[N, 1, 3] x, bool c) => (float[N, 3] y) <int64 m = {2}> {
    z = If (c) <then_branch = yes () => (float[N, 3] u) { t = Squeeze <axes = [1]> (x)  u = Tanh (t) },
                else_branch = no () => (float[N, 3] v) { v = ReduceSum <axes = [1], keepdims = 0> (x) }>
    y = Loop (m, , z) <body = b (int64 i, bool go, float[N, 3] h) => (bool on, float[N, 3] next) {
        on = Identity (go)  s = Unsqueeze <axes = [1]> (h)
        next = ReduceMean <axes = [1], keepdims = 0> (s) }>
}"""


@pytest.mark.parametrize("opset", [7, 9, 11, 12])
@pytest.mark.parametrize("flag", [True, False])
def test_branches_and_bodies_are_brought_to_the_emitted_opset(opset: int, flag: bool) -> None:
    """Axes were attributes there."""
    model = parsed(OLD, opsets=f'"" : {opset}')
    x, references = rows(N, 1, 3, seed=6), rows(K, 1, 3, seed=7)
    compiled = compile_model(model, DeepShap({"x": references}), inputs=["x"], targets=[1])
    answer = compiled.explain({"x": x, "c": np.asarray(flag)})
    want = np.tanh(x[:, 0]) if flag else x[:, 0]
    np.testing.assert_allclose(answer["explained_value"][:, 0], want[:, 1], atol=OUTPUTS_32, rtol=0)
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32
