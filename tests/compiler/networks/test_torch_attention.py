"""PyTorch's own attention layers, which turn the batch to axis 1 and back, by both of its exporters."""

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from rationale import DeepShap, compile_model
from rationale.errors import UnsupportedModelError
from tests.models.networks import exported
from tests.tolerances import COMPLETE_32

pytestmark = pytest.mark.full

K, N, TOKENS, WIDTH, HEADS = 4, 3, 5, 24, 4


class Classifier(nn.Module):
    """Three scores of rows [N, tokens, width], off the last token behind one of PyTorch's layers."""

    def __init__(self, layer: nn.Module, *, turned: bool) -> None:
        super().__init__()
        self.layer, self.turned, self.head = layer, turned, nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1) if self.turned else x
        attends = isinstance(self.layer, nn.MultiheadAttention)
        x = self.layer(x, x, x, need_weights=False)[0] if attends else self.layer(x)
        y: Tensor = self.head((x.transpose(0, 1) if self.turned else x)[:, -1])
        return y


def _attention(**options: Any) -> nn.Module:
    return nn.MultiheadAttention(WIDTH, HEADS, **options)


def _encoder(*, norm_first: bool = False, **options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0, norm_first=norm_first, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


NETWORKS = {
    "attention, batch first": lambda: Classifier(_attention(batch_first=True), turned=False),
    "attention, tokens first": lambda: Classifier(_attention(), turned=True),
    "encoder, batch first": lambda: Classifier(_encoder(batch_first=True), turned=False),
    "encoder, tokens first": lambda: Classifier(_encoder(), turned=True),
    "encoder, norm first": lambda: Classifier(_encoder(batch_first=True, norm_first=True), turned=False),
}
OVER_THE_BATCH = {
    "attention, tokens first": lambda: Classifier(_attention(), turned=False),
    "encoder, batch first": lambda: Classifier(_encoder(batch_first=True), turned=True),
}
EXPORTERS = pytest.mark.parametrize(
    "dynamo",
    [pytest.param(False, marks=pytest.mark.full, id="TorchScript"), pytest.param(True, id="torch.export")],
)


def _random(network: nn.Module) -> nn.Module:
    for parameter in network.parameters():
        if parameter.ndim > 1:
            nn.init.xavier_normal_(parameter)
        else:
            nn.init.normal_(parameter, 0.5, 0.2)
    return network.eval()


def _model(network: nn.Module, *, dynamo: bool) -> onnx.ModelProto:
    return exported(network, torch.randn(2, TOKENS, WIDTH), dynamo=dynamo)


@EXPORTERS
@pytest.mark.parametrize("name", NETWORKS)
def test_layer(name: str, dynamo: bool) -> None:
    torch.manual_seed(0)
    network = _random(NETWORKS[name]())
    rows = np.random.default_rng(1).standard_normal((K + N, TOKENS, WIDTH)).astype(np.float32)
    model = _model(network, dynamo=dynamo)
    compiled = compile_model(model, DeepShap(rows[:K]), targets="all")
    assert "Scan" not in {n.op_type for n in compiled.model.graph.node}, "a row by itself is slow"
    answer = compiled.explain(rows[K:])
    expected = network(torch.from_numpy(rows[K:])).detach().numpy()
    np.testing.assert_allclose(answer["explained_value"], expected, atol=1e-5)
    difference = np.abs(answer["explained_value"] - answer["base_value"]).max()
    assert difference > 0.1
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32 * difference
    for i in range(N):
        alone = compiled.explain(rows[K + i : K + i + 1])["x_attributions"]
        np.testing.assert_allclose(alone[0], answer["x_attributions"][i], atol=1e-6)


@EXPORTERS
@pytest.mark.parametrize("name", OVER_THE_BATCH)
def test_attention_over_the_batch_is_refused(name: str, dynamo: bool) -> None:
    torch.manual_seed(0)
    model = _model(_random(OVER_THE_BATCH[name]()), dynamo=dynamo)
    reason = "mixes the rows of a batch|does not run on batches of two rows and of one"  # sizes as exported
    with pytest.raises(UnsupportedModelError, match=reason):
        compile_model(model, DeepShap(np.ones((K, TOKENS, WIDTH), np.float32)))
