"""What SHAP and captum answer, in our order of axes."""

import warnings

import numpy as np
import torch
from torch import nn

from tests.peers.networks import without_chatter

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside what they import
    import captum.attr
    import shap


def shap_values(network: nn.Module, x: np.ndarray, references: np.ndarray) -> np.ndarray:
    """`shap.DeepExplainer`'s attributions [N, T, …]; its own additivity check is off, we compare instead."""
    with without_chatter():
        explainer = shap.DeepExplainer(network, torch.from_numpy(references))
        values = explainer.shap_values(torch.from_numpy(x), check_additivity=False)
    return np.moveaxis(values, -1, 1)


def captum_values(network: nn.Module, x: np.ndarray, references: np.ndarray) -> np.ndarray:
    """`captum.attr.DeepLiftShap`'s attributions [N, T, …]."""
    rows, baselines = torch.from_numpy(x), torch.from_numpy(references)
    outputs = network(rows).shape[1]
    with without_chatter():
        explainer = captum.attr.DeepLiftShap(network)
        values = [explainer.attribute(rows, baselines, target=target) for target in range(outputs)]
    return torch.stack(values, dim=1).detach().numpy()


def autograd(network: nn.Module, x: np.ndarray) -> np.ndarray:
    """The gradient of every output [N, T, …] in float64."""
    rows = torch.from_numpy(x).double().requires_grad_()
    outputs = network.double()(rows)
    columns = [
        torch.autograd.grad(outputs[:, target].sum(), rows, retain_graph=True)[0]
        for target in range(outputs.shape[1])
    ]
    return torch.stack(columns, dim=1).numpy()
