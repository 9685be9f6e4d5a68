"""skorch and Keras on torch: the torch module that answers as a model predicts."""

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


class KerasModel(torch.nn.Module):
    """A Keras model on the torch backend, as it predicts; its one input is `x`."""

    __module__ = "keras"  # the name in its parity

    def __init__(self, model: Any) -> None:
        super().__init__()
        if len(model.inputs) != 1:
            raise InvalidModelError(
                f"the Keras model has {len(model.inputs)} inputs: write it by model.export('model.onnx', "
                "format='onnx'), and compile that file."
            )
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        return self.model(x, training=False)
