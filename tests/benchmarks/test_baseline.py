"""The PyTorch baseline explains as the float64 reference does, and as we do."""

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.torch.baseline import baseline
from compiler import DeepShap, compile_model
from compiler.bench.networks import perceptron, pools_apart, separated
from tests.peers.agreement import OUTPUTS, TRUTH, TRUTH_DEEP, error
from tests.peers.networks import FEATURES, IMAGE, Case, build, case, export, mlp, resnet_like
from tests.references.deeplift import predict

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


def explained(given: Case, portable: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Outputs and attributions, by the baseline."""
    x, references = torch.from_numpy(given.x), torch.from_numpy(given.references)
    with torch.inference_mode():
        outputs, attributions = baseline(given.network, x, references, portable=portable)(x)
    return outputs.numpy(), attributions.numpy()


def predicted(attributions: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Those of each row's largest output: [N, …] of [N, T, …]."""
    return attributions[np.arange(len(outputs)), outputs.argmax(axis=1)]


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_is_the_truth(name: str, rows: int, portable: bool) -> None:
    whole = case(name)
    given = Case(whole.network, whole.x[:rows], whole.references)
    outputs, attributions = explained(given, portable)
    assert error(outputs, predict(given.network, given.x)) <= OUTPUTS
    # A pool's gain over a difference of activations, both rounded: 7e-6 on vgg_like's first row.
    assert error(attributions, predicted(given.truth(), outputs)) <= TRUTH_DEEP


@pytest.mark.parametrize("rows", [1, 4])
def test_overlapping_pools(rows: int) -> None:
    whole = build(lambda: resnet_like(nn.MaxPool2d(3, stride=2, padding=1)), IMAGE)
    given = Case(whole.network, whole.x[:rows], whole.references)
    outputs, attributions = explained(given)
    assert error(attributions, predicted(given.truth(), outputs)) <= TRUTH


@pytest.mark.parametrize("rows", [1, 4])
def test_agrees_with_ours_on_products(rows: int) -> None:
    whole = build(Excited, IMAGE)
    given = Case(whole.network, whole.x[:rows], whole.references)
    compiled = compile_model(export(given, "torchscript"), DeepShap(given.references), targets="predicted")
    ours = compiled.explain(given.x)["x_attributions"][:, 0]
    assert error(explained(given)[1], ours) <= TRUTH


def test_equal_rows_and_references() -> None:
    """Every x − r is 0, and so is every attribution."""
    whole = case("vgg_like")
    given = Case(whole.network, whole.x, whole.references)
    same = torch.from_numpy(given.x[:1])
    with torch.inference_mode():
        attributions = baseline(given.network, same, same.repeat(3, 1, 1, 1))(same)[1]
    assert torch.equal(attributions, torch.zeros_like(attributions))


def test_a_linear_network_keeps_one_multiplier() -> None:
    given = build(lambda: nn.Sequential(nn.Linear(FEATURES, 6), nn.Linear(6, 3)), FEATURES)
    outputs, attributions = explained(given)
    assert error(attributions, predicted(given.truth(), outputs)) <= TRUTH


def test_a_layer_without_a_rule() -> None:
    given = build(lambda: mlp(nn.Softplus, 3), FEATURES)
    with pytest.raises(NotImplementedError, match="no rule for Softplus"):
        explained(given)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled() -> None:
    """The same through torch.compile, which needs a C++ compiler."""
    given = case("resnet_like")
    x, references = torch.from_numpy(given.x), torch.from_numpy(given.references)
    with torch.no_grad():
        walk = baseline(given.network, x, references, portable=True).eval()
        fast = torch.compile(walk, fullgraph=True, dynamic=False, options={"freezing": True})
        outputs, attributions = fast(x)
    assert error(attributions.numpy(), predicted(given.truth(), outputs.numpy())) <= TRUTH


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
    given = network(x)
    apart = pools_apart(separated(network))
    assert torch.equal(apart(x), given)
    called = [str(n.target) for n in apart.graph.nodes if n.op == "call_module"]
    kinds = [type(apart.get_submodule(name)).__name__ for name in called]
    assert len(set(called)) == len(called)
    assert kinds == ["Conv2d", "ReLU", "Apart", "MaxPool2d", "Conv2d", "ReLU", "ReLU", "Linear"]
    assert not any(m.inplace for m in apart.modules() if isinstance(m, nn.ReLU))


def test_perceptron() -> None:
    kinds = [type(layer).__name__ for layer in perceptron([5, 4, 3])]
    assert kinds == ["Linear", "ReLU", "Linear"]
