"""Architectures of `timm` with random weights, by both of PyTorch's exporters: complete, and row by row.

Inputs are small where an architecture allows it. An exporter that fails on a network says nothing of the
compiler: that case is skipped with the exporter's reason.
"""

from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from benchmarks.networks import import_torchvision
from rationale import AttnLrp, DeepShap, compile_model
from rationale.errors import CheckFailedError, UnsupportedModelError
from tests.models.networks import exported

K, N = 3, 2
COMPLETE = 1e-3  # of explained − base
SIGNAL = 0.02  # least explained − base, over the largest output
CLASSES = 10


class Case(NamedTuple):
    family: str
    size: int
    options: dict[str, Any]


def options_at(size: int) -> dict[str, Any]:
    """Of networks that are made for one size of image."""
    return {"img_size": size}


CASES = {
    "resnext50_32x4d": Case("convolutional", 64, {}),
    "convnext_atto": Case("convolutional", 64, {}),
    "efficientnet_b0": Case("convolutional", 64, {}),
    "mobilenetv3_small_050": Case("convolutional", 64, {}),
    "regnety_002": Case("convolutional", 64, {}),
    "densenet121": Case("convolutional", 64, {}),
    "repvgg_a0": Case("convolutional", 64, {}),
    "ghostnet_050": Case("convolutional", 64, {}),
    "vit_tiny_patch16_224": Case("transformer", 64, options_at(64)),
    "deit_tiny_distilled_patch16_224": Case("transformer", 64, options_at(64)),
    "cait_xxs24_224": Case("transformer", 64, options_at(64)),
    "swin_tiny_patch4_window7_224": Case("transformer", 64, options_at(64) | {"window_size": 4}),
    "xcit_nano_12_p16_224": Case("transformer", 64, options_at(64)),
    "pvt_v2_b0": Case("transformer", 64, {}),
    "eva02_tiny_patch14_224": Case("transformer", 56, options_at(56)),
    "volo_d1_224": Case("transformer", 64, options_at(64)),
    "mixer_s32_224": Case("mixer", 64, options_at(64)),
    "resmlp_12_224": Case("mixer", 64, options_at(64)),
    "gmlp_ti16_224": Case("mixer", 64, options_at(64)),
    "convmixer_768_32": Case("mixer", 56, {}),
    "poolformer_s12": Case("mixer", 64, {}),
    "coatnet_nano_rw_224": Case("hybrid", 64, options_at(64)),
    "maxvit_rmlp_pico_rw_256": Case("hybrid", 64, options_at(64)),
    "levit_128s": Case("hybrid", 64, options_at(64)),
    "edgenext_xx_small": Case("hybrid", 64, {}),
    "resnest14d": Case("convolutional", 64, {}),
    "skresnet18": Case("convolutional", 64, {}),
    "dpn48b": Case("convolutional", 64, {}),
    "dla46_c": Case("convolutional", 64, {}),
    "hrnet_w18_small": Case("convolutional", 64, {}),
    "inception_next_atto": Case("convolutional", 64, {}),
    "legacy_xception": Case("convolutional", 96, {}),
    "ese_vovnet19b_dw": Case("convolutional", 64, {}),
    "mambaout_femto": Case("convolutional", 64, {}),
    "rdnet_tiny": Case("convolutional", 64, {}),
    "rexnet_100": Case("convolutional", 64, {}),
    "starnet_s1": Case("convolutional", 64, {}),
    "nest_tiny": Case("transformer", 64, options_at(64)),
    "focalnet_tiny_srf": Case("transformer", 64, {}),
    "gcvit_xxtiny": Case("transformer", 64, options_at(64)),
    "coat_lite_tiny": Case("transformer", 64, options_at(64)),
    "convit_tiny": Case("transformer", 64, options_at(64)),
    "hiera_tiny_224": Case("transformer", 64, options_at(64)),
    "sequencer2d_s": Case("mixer", 64, options_at(64) | {"layers": [1, 1, 1, 1]}),
    "botnet26t_256": Case("hybrid", 64, options_at(64)),
    "lambda_resnet26t": Case("hybrid", 64, options_at(64)),
    "mobilevit_xxs": Case("hybrid", 64, {}),
    "fastvit_t8": Case("hybrid", 64, {}),
    "efficientvit_b0": Case("hybrid", 64, {}),
}
NEAR_ZERO = {"efficientvit_b0"}  # divides by sums of what Relus leave, which are 0 for some rows
QUOTIENTS = {"efficientvit_b0", "convit_tiny"}  # attention over its sum: AttnLRP has no rule


@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [False, True], ids=["TorchScript", "torch.export"])
@pytest.mark.parametrize("name", CASES)
def test_architecture(name: str, dynamo: bool) -> None:
    size = CASES[name].size
    rows = np.random.default_rng(1).standard_normal((K + N, 3, size, size)).astype(np.float32)
    model = exported_or_skipped(network(name), rows[:2], dynamo=dynamo)
    if name in NEAR_ZERO:
        with pytest.raises(CheckFailedError, match=r"near 0\b"):
            compile_model(model, DeepShap(rows[:K]))
        return
    compiled = compile_model(model, DeepShap(rows[:K]))
    answer = compiled.explain(rows[K:])
    difference = np.abs(answer["explained_value"] - answer["base_value"]).max()
    gap = np.abs(answer["completeness_gap"]).max() / difference
    print(f"{CASES[name].family:14} {name:32} gap {gap:.1e}, {len(compiled.model.graph.node)} nodes")
    assert difference > SIGNAL * np.abs(answer["explained_value"]).max(), "a test network must have a signal"
    assert gap <= COMPLETE
    attributions = answer["x_attributions"]
    alone = np.concatenate([compiled.explain(rows[i : i + 1])["x_attributions"] for i in range(K, K + N)])
    np.testing.assert_allclose(alone, attributions, atol=1e-4 * np.abs(attributions).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_relevance(name: str) -> None:
    """AttnLRP starts at the score that the network answers, or names the quotients without a rule."""
    size = CASES[name].size
    x = np.random.default_rng(1).standard_normal((N, 3, size, size)).astype(np.float32)
    source = network(name)
    model = exported_or_skipped(source, x, dynamo=False)
    if name in QUOTIENTS:
        with pytest.raises(UnsupportedModelError, match=r"^AttnLRP .*\d+ nodes?.*\n  Div node"):
            compile_model(model, AttnLrp())
        return
    answer = compile_model(model, AttnLrp()).explain(x)
    scores = source(torch.from_numpy(x)).detach().numpy()
    explained = answer["explained_value"][:, 0]
    np.testing.assert_allclose(explained, scores.max(1), atol=1e-4 * np.abs(scores).max())
    total = answer["x_attributions"].reshape(N, -1).sum(1, dtype=np.float64)
    absorbed = explained - total - answer["completeness_gap"][:, 0]
    assert np.abs(absorbed).max() <= 1e-4 * np.abs(answer["x_attributions"]).reshape(N, -1).sum(1).max()


def test_each_family_is_there() -> None:
    assert len(CASES) == 49
    assert {case.family for case in CASES.values()} == {"convolutional", "transformer", "mixer", "hybrid"}


def exported_or_skipped(network: nn.Module, rows: np.ndarray, *, dynamo: bool) -> onnx.ModelProto:
    try:
        return exported(network, torch.from_numpy(rows), dynamo=dynamo)
    except Exception as error:  # of many kinds
        pytest.skip(f"PyTorch cannot export it: {type(error).__name__}")


@torch.no_grad()
def network(name: str) -> nn.Module:
    """Random weights that keep the signal alive: `timm`'s own leave heads at 0 and blocks scaled by 1e-6."""
    import_torchvision()  # before timm imports it
    import timm

    torch.manual_seed(0)
    case = CASES[name]
    module: nn.Module = timm.create_model(name, pretrained=False, num_classes=CLASSES, **case.options)
    for parameter_name, parameter in module.named_parameters():
        if parameter.ndim > 1 and max(parameter.shape[:2]) > 1:
            nn.init.xavier_normal_(parameter)
        elif parameter.abs().max() < 0.01:
            bias = parameter_name.endswith("bias")
            nn.init.normal_(parameter, std=0.1) if bias else nn.init.constant_(parameter, 0.2)
    module.eval()
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:  # the mean over all that was seen
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    module(torch.randn(32, 3, case.size, case.size))
    return module.eval()
