"""Our explanations under the metrics of other tools, Quantus and captum.

    explain = quantus_explain(compiled)
    quantus.FaithfulnessCorrelation()(
        torch_module(compiled), x, y, a_batch=None, explain_func=explain, device="cpu"
    )

    captum.metrics.sensitivity_max(captum_explain(compiled), inputs, target=1)

The graph answers the attributions; the plain model answers predictions. Metrics that randomise a network's
weights do not apply here: use `rationale evaluate`.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rationale.artifact.compiled import Compiled
from rationale.errors import InvalidOptionError
from rationale.evaluate.explained_model import plain_runner

if TYPE_CHECKING:
    import torch


def quantus_explain(compiled: Compiled) -> Callable[..., np.ndarray]:
    """Return an `explain_func` for Quantus: `explain(inputs=x, targets=y)` gives attributions [N, *row].

    The model that Quantus passes in addition is ignored; see `torch_module`.

    Raises:
        InvalidOptionError: if there are several inputs, or groups; in a call, if a target is not explained.
    """
    name = _only_input(compiled)
    predict = _predictions(compiled)

    def explain(inputs: Any, targets: Any, **_: object) -> np.ndarray:
        rows = {name: np.asarray(inputs)}
        answer = compiled.explain(rows)
        positions = _positions(compiled, np.asarray(targets).reshape(-1), lambda: predict(rows))
        attributions = answer[compiled.manifest.attributed[0].attributions]
        return np.asarray(attributions[np.arange(len(attributions)), positions])

    return explain


def captum_explain(compiled: Compiled) -> "Callable[..., tuple[torch.Tensor, ...]]":
    """Return an `explanation_func` for `captum.metrics.sensitivity_max`: `explain(inputs, target=1)`.

    The function takes a tensor [N, …] or a tuple of one, and returns a tuple of one. A `target` is a number,
    or one per row.

    Raises:
        InvalidOptionError: for the reasons of `quantus_explain`.
    """
    import torch

    explain = quantus_explain(compiled)

    def explain_tensors(inputs: Any, target: Any = 0, **_: object) -> tuple[torch.Tensor, ...]:
        x = inputs[0] if isinstance(inputs, tuple) else inputs
        targets = np.broadcast_to(np.asarray(target).reshape(-1), len(x))
        return (torch.from_numpy(explain(x.detach().cpu().numpy(), targets)),)

    return explain_tensors


def torch_module(compiled: Compiled) -> "torch.nn.Module":
    """Return the explained output as a module [N, elements] of the explained input, computed by ONNX Runtime.

    It has no parameters and no gradients: it is for metrics that need only predictions.

    Raises:
        InvalidOptionError: if there are several explained inputs.
    """
    import torch

    name, predict = _only_input(compiled), _predictions(compiled)

    class Predicting(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(predict({name: x.detach().cpu().numpy()}))

    return Predicting().eval()


def _only_input(compiled: Compiled) -> str:
    names = [spec.name for spec in compiled.manifest.inputs]
    if len(names) != 1 or [e.tensor.name for e in compiled.manifest.explained] != names:
        raise InvalidOptionError(
            f"metrics of other tools support one input, but the model has {names}: compile a model with "
            "one explained input."
        )
    if compiled.manifest.players:
        raise InvalidOptionError("metrics of other tools do not support groups: compile without groups.")
    return names[0]


def _predictions(compiled: Compiled) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    """Return a function that computes the explained output [N, elements] of rows by the plain model."""
    runner, dtypes = plain_runner(compiled), {n: a.dtype for n, a in compiled.sample.items()}

    def predict(rows: Mapping[str, np.ndarray]) -> np.ndarray:
        feeds = {name: np.ascontiguousarray(array, dtypes[name]) for name, array in rows.items()}
        output = runner(feeds)[compiled.manifest.explained_output]
        return np.asarray(output).reshape(len(output), -1)

    return predict


def _positions(compiled: Compiled, targets: np.ndarray, predictions: Callable[[], np.ndarray]) -> np.ndarray:
    """Return, for each row, the position of its target among the explained ones."""
    explained = compiled.manifest.targets
    if explained == "predicted":
        if not np.array_equal(predictions().argmax(axis=1), targets):
            raise InvalidOptionError(
                "the entry explains each row's predicted class, but the metric needs another: compile with "
                'targets="all".'
            )
        return np.zeros(len(targets), np.intp)
    missing = sorted({int(t) for t in targets} - {t for t in explained if isinstance(t, int)})
    if missing:
        raise InvalidOptionError(
            f"targets {missing} are not explained, only {explained}: compile with all of them."
        )
    return np.asarray([explained.index(int(t)) for t in targets], np.intp)
