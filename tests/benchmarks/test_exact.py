"""The float64 values of the benchmark are those of the reference interpreter, and ours."""

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.exact import exact
from benchmarks.networks import perceptron, pools_apart, separated
from rationale import DeepShap, compile_model
from tests.peers.agreement import TRUTH, error
from tests.peers.networks import FEATURES, IMAGE, Case, build, case, export, mlp, resnet_like
from tests.references.deeplift import predict

EXACT = 1e-9  # both are float64; a quotient of small differences loses some digits
NAMES = ["relu_1", "relu_3", "sigmoid_3", "tanh_3", "plain", "vgg_like", "resnet_like", "densenet_like"]


class Excited(nn.Module):
    """EfficientNet's block: SiLU, and channels scaled by a sigmoid of their own means."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act = nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.SiLU()
        self.pool, self.squeeze, self.gate = nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 6, 1), nn.Sigmoid()
        self.depthwise = nn.Conv2d(6, 6, 5, stride=2, padding=2, groups=6)
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.act(self.first(x))
        y = y * self.gate(self.squeeze(self.pool(y)))
        return self.head(torch.flatten(self.pool(torch.relu(self.depthwise(y))), 1))


def explained(benchmark_case: Case) -> np.ndarray:
    return exact(
        benchmark_case.network,
        torch.from_numpy(benchmark_case.x),
        torch.from_numpy(benchmark_case.references),
    )


def predicted(benchmark_case: Case) -> np.ndarray:
    """What the reference interpreter gives for each row's largest output: [N, …] of [N, T, …]."""
    outputs = predict(benchmark_case.network, benchmark_case.x)
    return benchmark_case.truth()[np.arange(len(outputs)), outputs.argmax(axis=1)]


@pytest.mark.parametrize("name", NAMES)
def test_is_the_truth(name: str) -> None:
    benchmark_case = case(name)
    assert error(explained(benchmark_case), predicted(benchmark_case)) <= EXACT


def test_overlapping_pools() -> None:
    benchmark_case = build(lambda: resnet_like(nn.MaxPool2d(3, stride=2, padding=1)), IMAGE)
    assert error(explained(benchmark_case), predicted(benchmark_case)) <= EXACT


def test_agrees_with_ours_on_products() -> None:
    benchmark_case = build(Excited, IMAGE)
    compiled = compile_model(
        export(benchmark_case, "torchscript"), DeepShap(benchmark_case.references), targets="predicted"
    )
    ours = compiled.explain(benchmark_case.x)["x_attributions"][:, 0]
    assert error(ours, explained(benchmark_case)) <= TRUTH


def test_references_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark_case = case("relu_3")
    whole = explained(benchmark_case)
    monkeypatch.setattr("benchmarks.exact.AT_ONCE", 2 * FEATURES)
    assert error(explained(benchmark_case), whole) <= EXACT


def test_equal_rows_and_references() -> None:
    """Every x − r is 0, and so is every attribution."""
    benchmark_case = case("vgg_like")
    same = torch.from_numpy(benchmark_case.x[:1])
    assert not exact(benchmark_case.network, same, same.repeat(3, 1, 1, 1)).any()


def test_a_layer_without_a_rule() -> None:
    with pytest.raises(NotImplementedError, match="Softplus"):
        explained(build(lambda: mlp(nn.Softplus, 3), FEATURES))


# -- what peers are given --------------------------------------------------------------------------------


class Shared(nn.Module):
    """One activation in place and twice, as in torchvision's ResNet, and a functional one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.second = nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 1)
        self.pool, self.dropout, self.head = nn.MaxPool2d(2), nn.Dropout(), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.pool(self.relu(self.first(x)))
        z = self.second(y)
        z += y
        z = torch.relu(self.relu(z)).mean(dim=(2, 3))
        return self.head(self.dropout(z))


def test_separated_networks_have_a_module_for_each_activation() -> None:
    network = Shared().eval().requires_grad_(False)
    x = torch.randn(3, 3, 8, 10)
    outputs = network(x)
    apart = pools_apart(separated(network))
    assert torch.equal(apart(x), outputs)
    called = [str(n.target) for n in apart.graph.nodes if n.op == "call_module"]
    kinds = [type(apart.get_submodule(name)).__name__ for name in called]
    assert len(set(called)) == len(called)
    assert kinds == ["Conv2d", "ReLU", "Apart", "MaxPool2d", "Conv2d", "ReLU", "ReLU", "Linear"]
    assert not any(m.inplace for m in apart.modules() if isinstance(m, nn.ReLU))


def test_perceptron() -> None:
    kinds = [type(layer).__name__ for layer in perceptron([5, 4, 3])]
    assert kinds == ["Linear", "ReLU", "Linear"]
