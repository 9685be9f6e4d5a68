"""Other explainers of a network's predicted output: a function of rows for each."""

import copy
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.cases import CAPTUM, KERNEL, SHAP, WALK
from benchmarks.exact import walk
from benchmarks.networks import pools_apart, separated
from benchmarks.timing import quietly

Explain = Callable[..., Any]  # rows [N, …] to attributions [N, …]


def shap_explainer(network: nn.Module, references: Tensor) -> Explain:
    """Return `shap.DeepExplainer` of the largest output alone, without its additivity check."""
    with quietly():
        import shap

        explainer = shap.DeepExplainer(separated(copy.deepcopy(network)).to(references.device), references)

    def explain(rows: Tensor, targets: Tensor | None = None) -> np.ndarray:
        del targets  # it finds the largest itself
        on_device = rows.to(references.device)
        with quietly():
            values, _ = explainer.shap_values(on_device, ranked_outputs=1, check_additivity=False)
        return np.asarray(values)[..., 0]

    return explain


def captum_explainer(network: nn.Module, references: Tensor) -> Explain:
    """Return `captum.attr.DeepLiftShap` with each row's predicted output as its target.

    Every max pool gets a tensor of its own: beside an activation captum would explain it wrongly.
    """
    with quietly():
        import captum.attr

        model = pools_apart(separated(copy.deepcopy(network))).to(references.device)
        explainer = captum.attr.DeepLiftShap(model)

    def explain(rows: Tensor, targets: Tensor | None = None) -> np.ndarray:
        on_device = rows.to(references.device)
        with quietly():
            if targets is None:
                with torch.no_grad():
                    targets = model(on_device).argmax(dim=1)
            attributions: Tensor = explainer.attribute(on_device, references, target=targets)
        return attributions.detach().cpu().numpy()

    return explain


def walk_explainer(network: nn.Module, references: Tensor) -> Explain:
    """Return the rules of `exact` in float32: eager autograd functions, 1 + K rows both ways."""
    explain = walk(copy.deepcopy(network).to(references.device), references)
    return lambda rows: explain(rows.to(references.device)).cpu().numpy()


def kernel_explainer(network: nn.Module, references: Tensor) -> Explain:
    """Return `shap.KernelExplainer` of a table's predicted output, with its own number of coalitions."""
    if references.ndim != 2:
        raise NotImplementedError("it explains tables alone")
    on_cpu = copy.deepcopy(network).cpu()

    @torch.inference_mode()
    def predict(x: np.ndarray) -> np.ndarray:
        y: Tensor = on_cpu(torch.from_numpy(x.astype(np.float32)))
        return y.numpy()

    with quietly():
        explainer = import_module("shap").KernelExplainer(predict, references.cpu().numpy())

    def explain(rows: Tensor) -> np.ndarray:
        x = rows.cpu().numpy()
        values = np.asarray(explainer.shap_values(x, silent=True))
        return values[np.arange(len(x)), :, predict(x).argmax(1)]

    return explain


LIBRARIES = {SHAP: shap_explainer, CAPTUM: captum_explainer}
EXPLAINERS = {WALK: walk_explainer, **LIBRARIES, KERNEL: kernel_explainer}


def misses(network: nn.Module) -> list[str]:
    """Return the rules that SHAP and captum lack for this network."""
    missing = []
    if any(isinstance(m, nn.SiLU) for m in network.modules()):
        missing.append("takes the plain gradient of SiLU, and of products")
    if any(isinstance(m, nn.LayerNorm) for m in network.modules()):
        missing.append("takes the plain gradient of GELU, LayerNorm and the products of attention")
    pools = [m for m in network.modules() if isinstance(m, nn.MaxPool2d)]
    if any(_first(m.kernel_size) > _first(m.stride) for m in pools):
        missing.append("loses what overlapping windows of a max pool share")
    return missing


def _first(value: int | tuple[int, ...]) -> int:
    return value if isinstance(value, int) else value[0]
