"""skorch: the torch module of a fitted net, with the nonlinearity that its predictions pass through."""

from typing import Any

import torch

from rationale.errors import InvalidModelError


def network_of(net: Any) -> torch.nn.Module:
    """Return the module that answers as the net does: a classifier's probabilities, else its predictions.

    Raises:
        InvalidModelError: if the net is not fitted.
    """
    if not getattr(net, "initialized_", False):
        raise InvalidModelError(f"skorch.{type(net).__name__} is not fitted.")
    return NeuralNet(net.module_, net._get_predict_nonlinearity())


class NeuralNet(torch.nn.Module):
    """A net's module, and skorch's function of its answer."""

    __module__ = "skorch"  # the name in its parity

    def __init__(self, module: torch.nn.Module, nonlinearity: Any) -> None:
        super().__init__()
        self.module, self.nonlinearity = module, nonlinearity

    def forward(self, x: torch.Tensor) -> Any:
        answer = self.module(x)
        first = answer[0] if isinstance(answer, tuple) else answer  # as skorch's predict_proba takes it
        return self.nonlinearity(first)
