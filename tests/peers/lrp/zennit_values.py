"""What zennit answers, in our order of axes.

zennit is LGPL: it is called here, in tests, and nothing of it is copied.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from benchmarks.networks import import_torchvision
from tests.peers.networks import without_chatter

with without_chatter():
    import_torchvision()  # zennit imports it for its canonizers
    from zennit.attribution import Gradient
    from zennit.core import Composite


def zennit_values(network: nn.Module, composite: Composite, x: np.ndarray, targets: list[int]) -> np.ndarray:
    """Relevances [N, T, …] from the output's own value at each target."""
    return _values(network, composite, x, targets, lambda output: output)


def zennit_layers(
    network: nn.Module, composite: Composite, x: np.ndarray, targets: list[int]
) -> list[np.ndarray]:
    """Relevances [N, T, …] of the output of each layer with weights, from the input on."""
    seen: dict[nn.Module, list[torch.Tensor]] = {}

    def keep(module: nn.Module, _: object, output: torch.Tensor) -> None:
        output.retain_grad()
        seen.setdefault(module, []).append(output)

    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(keep)
    zennit_values(network, composite, x, targets)
    return [np.stack([y.grad.numpy() for y in ys if y.grad is not None], axis=1) for ys in seen.values()]


def zennit_gradients(
    network: nn.Module, composite: Composite, x: np.ndarray, targets: list[int]
) -> np.ndarray:
    """Modified gradients [N, T, …]: from 1 at each target."""
    return _values(network, composite, x, targets, torch.ones_like)


def _values(
    network: nn.Module,
    composite: Composite,
    x: np.ndarray,
    targets: list[int],
    seed: Callable[[torch.Tensor], torch.Tensor],
) -> np.ndarray:
    columns = []
    for target in targets:

        def start(output: torch.Tensor, target: int = target) -> torch.Tensor:
            chosen = torch.zeros_like(output)
            chosen[:, target] = seed(output)[:, target]
            return chosen

        with without_chatter(), Gradient(network, composite) as attributor:
            _, relevance = attributor(torch.from_numpy(x).clone(), start)
        columns.append(relevance.detach().numpy())
    return np.stack(columns, axis=1)
