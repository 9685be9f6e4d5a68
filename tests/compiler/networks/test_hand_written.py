"""Networks for tables, recommendation, signals and images as people write them, by both exporters.

Complete under DeepSHAP and row by row; AttnLRP starts at the network's own answer, or names what has no rule.
"""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # PyTorch's own abbreviation
from torch import Tensor, nn

from rationale import AttnLrp, DeepShap, compile_model
from rationale.errors import UnsupportedModelError
from tests.models.transformers_models import export
from tests.tolerances import COMPLETE_32

K, N = 2, 3
FIELDS, ROWS = 3, 10  # of a table of ids: how many, and rows for each


class Network(nn.Module):
    """Layers by name, and what is done with them."""

    def __init__(self, forward: Callable[..., Tensor], **layers: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.steps = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.steps(self, *inputs)


def dense(*sizes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, o in pairwise(sizes):
        layers += [nn.Linear(i, o), activation()]
    return nn.Sequential(*layers[:-1])


def table(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))


def block(i: int, o: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())


def encoder(width: int, **options: bool) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(width, 4, 24, dropout=0, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


# -- what each of them computes ------------------------------------------------------------------------------


def dlrm(net: Any, x: Tensor, ids: Tensor) -> Tensor:
    d = net.bottom(x)
    rows = torch.stack([d, *(w[ids[:, i]] for i, w in enumerate((net.a, net.b, net.c)))], 1)
    i, j = torch.tril_indices(4, 4, -1)
    return net.top(torch.cat([d, (rows @ rows.transpose(1, 2))[:, i, j]], 1))


def two_towers(net: Any, user: Tensor, item: Tensor) -> Tensor:
    return F.cosine_similarity(net.user(user), net.item(item), dim=1)[:, None]


def deep_fm(net: Any, ids: Tensor) -> Tensor:
    ids = ids + ROWS * torch.arange(FIELDS)
    e = net.factors(ids)
    pairs = 0.5 * (e.sum(1) ** 2 - (e**2).sum(1)).sum(1, keepdim=True)
    return net.first(ids).sum(1) + pairs + net.deep(e.flatten(1))


def wide_and_deep(net: Any, x: Tensor, ids: Tensor) -> Tensor:
    return torch.sigmoid(net.wide(x) + net.deep(torch.cat([x, net.embed(ids).flatten(1)], 1)))


def last_step(net: Any, x: Tensor) -> Tensor:
    return net.head(net.recurrent(x)[0][:, -1])


def steps_first(net: Any, ids: Tensor) -> Tensor:
    return net.head(net.recurrent(net.embed(ids.t()))[0][-1])


def causal(net: Any, x: Tensor) -> Tensor:
    x = x.transpose(1, 2)
    for i, conv in enumerate(net.convs):
        x = F.relu(conv(F.pad(x, (2 * 2**i, 0)))) + (net.skip(x) if i == 0 else x)
    return net.head(x[..., -1])


def u_net(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    up = F.interpolate(net.b(F.max_pool2d(a, 2)), scale_factor=2, mode="bilinear")
    return net.head(net.c(torch.cat([a, up], 1))).mean((2, 3))


def experts(net: Any, x: Tensor) -> Tensor:
    chosen, places = net.gate(x).topk(2, -1)
    shares = torch.full_like(net.gate(x), -1e9).scatter(1, places, chosen).softmax(-1)
    return (shares[..., None] * torch.stack([e(x) for e in net.experts], 1)).sum(1)


def reconstruction(net: Any, x: Tensor) -> Tensor:
    return ((net.layers(x) - x) ** 2).mean(1, keepdim=True)


def classify(net: Any, ids: Tensor, mask: Tensor) -> Tensor:
    return net.head(net.encoder(net.embed(ids) + net.places, src_key_padding_mask=mask == 0).mean(1))


def squeeze(net: Any, x: Tensor) -> Tensor:
    y = net.block(x)
    return net.head((y * torch.sigmoid(net.gate(y.mean((2, 3))))[..., None, None]).amax((2, 3)))


def siamese(net: Any, a: Tensor, b: Tensor) -> Tensor:
    return F.pairwise_distance(net.tower(a), net.tower(b))[:, None]


def graph(net: Any, x: Tensor) -> Tensor:
    return net.out(net.adjacency @ F.relu(net.hidden(net.adjacency @ x))).mean(1)


def tab_net(net: Any, x: Tensor) -> Tensor:
    z = F.glu(net.first(x))
    prior, answer = torch.ones_like(x), 0
    for attend, step in zip(net.attend, net.steps_, strict=True):
        mask = (attend(z[:, 4:]) * prior).softmax(-1)
        prior = prior * (1.3 - mask)
        z = F.glu(step(mask * x))
        answer = answer + F.relu(z[:, :4])
    return net.head(answer)


def ft_transformer(net: Any, x: Tensor) -> Tensor:
    tokens = x[..., None] * net.weight + net.bias
    return net.head(net.encoder(torch.cat([net.cls.expand(x.shape[0], -1, -1), tokens], 1))[:, 0])


def sentence(net: Any, ids: Tensor, mask: Tensor) -> Tensor:
    mask_column = mask[..., None].float()
    return F.normalize(
        (net.layer(net.embed(ids)) * mask_column).sum(1) / mask_column.sum(1).clamp(min=1e-9), dim=-1
    )


def larger_image(net: Any, x: Tensor) -> Tensor:
    return F.pixel_shuffle(net.b(torch.tanh(net.a(x))), 2)


def squashed(net: Any, x: Tensor) -> Tensor:
    u = torch.einsum("bni,njoi->bnjo", x.reshape(-1, 3, 2), net.w).sum(1)
    size = (u**2).sum(-1, keepdim=True)
    return (size / (1 + size) * u / (size + 1e-8).sqrt()).norm(dim=-1)


class Case(NamedTuple):
    """A network, its inputs by their names, and the operators for which AttnLRP has no rule."""

    network: Callable[[], nn.Module]
    inputs: dict[str, np.ndarray]
    refused: tuple[str, ...] = ()


RANDOM = np.random.default_rng(1)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal((K + N, *shape)).astype(np.float32)


def ids(count: int, *shape: int) -> np.ndarray:
    return RANDOM.integers(0, count, (K + N, *shape))


MASK = np.ones((K + N, 5), np.int64)
MASK[K + 1, 3:] = 0
CASES = {
    "DLRM": Case(
        lambda: Network(
            dlrm,
            bottom=dense(6, 8, 8),
            a=table(ROWS, 8),
            b=table(ROWS, 8),
            c=table(ROWS, 8),
            top=dense(14, 12, 1),
        ),
        {"x": floats(6), "ids": ids(ROWS, 3)},
    ),
    "two towers": Case(
        lambda: Network(two_towers, user=dense(6, 12, 8), item=dense(5, 12, 8)),
        {"user": floats(6), "item": floats(5)},
    ),
    "DeepFM": Case(
        lambda: Network(
            deep_fm, factors=nn.Embedding(30, 4), first=nn.Embedding(30, 1), deep=dense(12, 8, 1)
        ),
        {"ids": ids(ROWS, FIELDS)},
    ),
    "wide and deep": Case(
        lambda: Network(
            wide_and_deep, wide=nn.Linear(6, 1), embed=nn.Embedding(ROWS, 4), deep=dense(14, 8, 1)
        ),
        {"x": floats(6), "ids": ids(ROWS, 2)},
    ),
    "LSTM": Case(
        lambda: Network(last_step, recurrent=nn.LSTM(6, 8, 2, batch_first=True), head=nn.Linear(8, 2)),
        {"x": floats(5, 6)},
    ),
    "GRU, both ways": Case(
        lambda: Network(
            last_step, recurrent=nn.GRU(6, 8, batch_first=True, bidirectional=True), head=nn.Linear(16, 2)
        ),
        {"x": floats(5, 6)},
    ),
    "LSTM, steps first": Case(
        lambda: Network(
            steps_first, embed=nn.Embedding(ROWS, 8), recurrent=nn.LSTM(8, 8), head=nn.Linear(8, 2)
        ),
        {"ids": ids(ROWS, 5)},
    ),
    "temporal convolutions": Case(
        lambda: Network(
            causal,
            convs=nn.ModuleList([nn.Conv1d(8 if i else 6, 8, 3, dilation=2**i) for i in range(3)]),
            skip=nn.Conv1d(6, 8, 1),
            head=nn.Linear(8, 2),
        ),
        {"x": floats(9, 6)},
    ),
    "U-Net": Case(
        lambda: Network(u_net, a=block(3, 8), b=block(8, 16), c=block(24, 8), head=nn.Conv2d(8, 2, 1)),
        {"x": floats(3, 8, 8)},
    ),
    "mixture of experts": Case(
        lambda: Network(
            experts, gate=nn.Linear(6, 4), experts=nn.ModuleList([dense(6, 8, 2) for _ in range(4)])
        ),
        {"x": floats(6)},
    ),
    "autoencoder": Case(
        lambda: Network(reconstruction, layers=dense(6, 3, 6, activation=nn.Tanh)), {"x": floats(6)}
    ),
    "transformer encoder": Case(
        lambda: Network(
            classify,
            embed=nn.Embedding(ROWS, 16),
            places=table(1, 5, 16),
            encoder=encoder(16),
            head=nn.Linear(16, 2),
        ),
        {"ids": ids(ROWS, 5), "mask": MASK},
    ),
    "squeeze and excitation": Case(
        lambda: Network(squeeze, block=block(3, 8), gate=dense(8, 4, 8), head=nn.Linear(8, 3)),
        {"x": floats(3, 8, 8)},
    ),
    "siamese": Case(lambda: Network(siamese, tower=dense(6, 8, 4)), {"a": floats(6), "b": floats(6)}),
    "graph convolutions": Case(
        lambda: Network(
            graph, adjacency=nn.Parameter(torch.rand(5, 5)), hidden=nn.Linear(4, 8), out=nn.Linear(8, 2)
        ),
        {"x": floats(5, 4)},
    ),
    "TabNet": Case(
        lambda: Network(
            tab_net,
            first=nn.Linear(6, 16),
            attend=nn.ModuleList([nn.Linear(4, 6) for _ in range(2)]),
            steps_=nn.ModuleList([nn.Linear(6, 16) for _ in range(2)]),
            head=nn.Linear(4, 2),
        ),
        {"x": floats(6)},
    ),
    "FT-Transformer": Case(
        lambda: Network(
            ft_transformer,
            weight=table(6, 16),
            bias=table(6, 16),
            cls=table(1, 1, 16),
            encoder=encoder(16, norm_first=True),
            head=nn.Linear(16, 2),
        ),
        {"x": floats(6)},
    ),
    "sentence embedding": Case(
        lambda: Network(sentence, embed=nn.Embedding(ROWS, 8), layer=nn.Linear(8, 8)),
        {"ids": ids(ROWS, 5), "mask": MASK},
    ),
    "pixel shuffle": Case(
        lambda: Network(larger_image, a=nn.Conv2d(3, 8, 3, padding=1), b=nn.Conv2d(8, 12, 3, padding=1)),
        {"x": floats(3, 6, 6)},
    ),
    "capsules": Case(lambda: Network(squashed, w=table(3, 2, 4, 2)), {"x": floats(6)}, ("Div",)),
}


EXPORTERS = pytest.mark.parametrize("dynamo", [False, True], ids=["TorchScript", "torch.export"])
NAMES = pytest.mark.parametrize("name", CASES)


class Exported(NamedTuple):
    """A network's export, its references and rows by input, its answers and two targets among them."""

    model: onnx.ModelProto
    references: dict[str, np.ndarray]
    x: dict[str, np.ndarray]
    answers: np.ndarray
    targets: list[int]


def exported(name: str, dynamo: bool) -> Exported:
    torch.manual_seed(0)
    network, inputs = CASES[name].network(), CASES[name].inputs
    x = {n: a[K:] for n, a in inputs.items()}
    with torch.no_grad():
        for _ in range(20):  # until normalisations have statistics, else they do nothing
            network.train()(*map(torch.from_numpy, inputs.values()))
        answers = network.eval()(*map(torch.from_numpy, x.values())).numpy()
    references = {n: a[:K] for n, a in inputs.items() if n != "mask"}
    targets = sorted({0, answers[0].size - 1})
    return Exported(export(network, x, dynamo=dynamo), references, x, answers, targets)


@pytest.mark.slow
@EXPORTERS
@NAMES
def test_complete_row_by_row(name: str, dynamo: bool) -> None:
    network = exported(name, dynamo)
    compiled = compile_model(network.model, DeepShap(network.references), targets=network.targets)
    answer = compiled.explain(network.x)
    np.testing.assert_allclose(answer["logits"], network.answers, atol=1e-5 * np.abs(network.answers).max())
    difference = np.abs(answer["explained_value"] - answer["base_value"]).max()
    assert difference > 0.02 * np.abs(answer["explained_value"]).max(), "a test network must have a signal"
    gap = np.abs(answer["completeness_gap"]).max() / difference
    print(f"{name:24} gap {gap:.1e}, {len(compiled.model.graph.node)} nodes")
    assert gap <= COMPLETE_32
    alone = [compiled.explain({n: a[i : i + 1] for n, a in network.x.items()}) for i in range(N)]
    for key in (f"{n}_attributions" for n in network.references):
        joined = np.concatenate([a[key] for a in alone])
        np.testing.assert_allclose(joined, answer[key], atol=1e-5 * np.abs(joined).max())


@pytest.mark.slow
@EXPORTERS
@NAMES
def test_relevance(name: str, dynamo: bool) -> None:
    network, inputs = exported(name, dynamo), [n for n in CASES[name].inputs if n != "mask"]
    if CASES[name].refused:
        with pytest.raises(UnsupportedModelError, match=r"^AttnLRP ") as caught:
            compile_model(network.model, AttnLrp(), targets=network.targets, inputs=inputs)
        assert set(re.findall(r"^  (\w+) node", str(caught.value), re.MULTILINE)) == set(CASES[name].refused)
        return
    answer = compile_model(network.model, AttnLrp(), targets=network.targets, inputs=inputs).explain(
        network.x
    )
    parts = [answer[f"{n}_attributions"].reshape(N, len(network.targets), -1) for n in inputs]
    total = sum(relevance_of_input.sum(-1, dtype=np.float64) for relevance_of_input in parts)
    near = 1e-5 * max(np.abs(relevance_of_input).sum(-1).max() for relevance_of_input in parts)
    np.testing.assert_allclose(answer["completeness_gap"], answer["explained_value"] - total, atol=near)
