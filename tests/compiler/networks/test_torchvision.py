"""Every classification family of torchvision, its smallest member on small images: complete, row by row."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.networks import import_torchvision, keep_signal
from rationale import DeepShap, compile_model
from tests.models.networks import exported
from tests.tolerances import COMPLETE_32

pytestmark = pytest.mark.full

K, N, SIZE = 2, 2, 64
# AlexNet's pool must divide what comes to it: TorchScript exports no other.
SIZES = {"inception_v3": 96, "alexnet": 224, "vit_b_16": 224, "vit_b_32": 224}
FAMILIES = (
    "alexnet",
    "convnext_tiny",
    "densenet121",
    "efficientnet_b0",
    "efficientnet_v2",
    "googlenet",
    "inception_v3",
    "maxvit",
    "mnasnet0_5",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "regnet_y_400mf",
    "resnet18",
    "resnext50_32x4d",
    "shufflenet_v2_x0_5",
    "squeezenet1_1",
    "swin_t",
    "swin_v2_t",
    "vgg11",
    "vit",
    "vit_b_16",
    "vit_b_32",
    "wide_resnet50_2",
)
QUICK = {("squeezenet1_1", False), ("vit", False), ("vit", True)}
CASES = [
    pytest.param(name, dynamo, marks=[] if (name, dynamo) in QUICK else pytest.mark.slow)
    for name in FAMILIES
    for dynamo in (False, True)
]


@pytest.mark.parametrize(("name", "dynamo"), CASES)
def test_family(name: str, dynamo: bool) -> None:
    size = SIZES.get(name, SIZE)
    torch.manual_seed(0)
    network = _network(name, size)
    rows = np.random.default_rng(1).standard_normal((K + N, 3, size, size)).astype(np.float32)
    compiled = compile_model(exported(network, torch.from_numpy(rows[:2]), dynamo=dynamo), DeepShap(rows[:K]))
    answer = compiled.explain(rows[K:])
    difference = np.abs(answer["explained_value"] - answer["base_value"]).max()
    assert difference > 0.02 * np.abs(answer["explained_value"]).max(), "a test network must have a signal"
    assert np.abs(answer["completeness_gap"]).max() <= COMPLETE_32 * difference
    attributions = answer["x_attributions"]
    for i in range(N):
        alone = compiled.explain(rows[K + i : K + i + 1])["x_attributions"]
        np.testing.assert_allclose(alone[0], attributions[i], atol=1e-4 * np.abs(attributions).max())


def _network(name: str, size: int) -> nn.Module:
    """Random weights that keep the signal alive."""
    models: Any = import_torchvision().models
    if name == "vit":
        network = models.VisionTransformer(
            image_size=size,
            patch_size=16,
            num_layers=3,
            num_heads=4,
            hidden_dim=48,
            mlp_dim=96,
            num_classes=10,
        )
        nn.init.normal_(network.heads.head.weight)
    elif name == "maxvit":
        network = models.MaxVit(
            input_size=(size, size),
            stem_channels=16,
            partition_size=2,
            block_channels=[16, 32],
            block_layers=[1, 2],
            head_dim=8,
            stochastic_depth_prob=0.0,
            num_classes=10,
        )
    elif name == "efficientnet_v2":  # of 40 blocks with random weights, attributions cancel 50,000-fold
        fused, plain = models.efficientnet.FusedMBConvConfig, models.efficientnet.MBConvConfig
        blocks = [
            fused(1, 3, 1, 24, 24, 1),
            fused(4, 3, 2, 24, 48, 2),
            plain(4, 3, 2, 48, 64, 2),
            plain(6, 3, 1, 64, 80, 1),
        ]
        network = models.EfficientNet(blocks, dropout=0.2, last_channel=128)
    elif name in ("googlenet", "inception_v3"):
        network = getattr(models, name)(weights=None, init_weights=False, aux_logits=False)
    else:
        network = getattr(models, name)(weights=None)
    if name in ("vit_b_16", "vit_b_32"):
        nn.init.normal_(network.heads.head.weight)
    if name == "vgg11":  # its pool would stretch what is left of a small image
        network.avgpool, network.classifier[0] = nn.Identity(), nn.Linear(512 * (size // 32) ** 2, 4096)
    for parameter_name, parameter in network.named_parameters():
        if parameter_name.endswith("layer_scale"):  # 1e-6 at first: the block would say nothing
            nn.init.constant_(parameter, 0.5)
    keep_signal(network, torch.randn(2, 3, size, size))
    module: nn.Module = network
    return module
