"""torch: a module, with an example of its rows."""

import inspect
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rationale.conversion.graphs import ConversionResult, tidy_graph
from rationale.conversion.rows import Features
from rationale.errors import InvalidOptionError, quoted
from rationale.tables.frames import columns_in_order, frame_of

# Without torchvision, each export says four times that its operators are skipped. Who uses them has it.
logging.getLogger("torch.onnx._internal.exporter._registration").addFilter(
    lambda record: not record.getMessage().startswith("torchvision is not installed")
)


def features(_: torch.nn.Module) -> Features:
    """Return empty features: a module knows neither names nor a count."""
    return Features(None, None)


def as_onnx(model: torch.nn.Module, example: Any) -> ConversionResult:
    """Export the module by tracing (`torch.export`), as it predicts: dropout is off, and statistics stay.

    Raises:
        InvalidOptionError: if there is no example, or it does not fit the arguments of `forward`.
    """
    feeds, names = _feeds(model, example)
    tensors = {name: _tensor(array, model) for name, array in feeds.items()}
    feeds = {name: tensor.numpy() for name, tensor in tensors.items()}
    trained, device = model.training, next((p.device for p in model.parameters()), torch.device("cpu"))
    try:
        model.eval().cpu()
        with torch.no_grad():
            answers = _flat(model(**tensors))
        program = torch.onnx.export(
            model,
            kwargs={name: _two(tensor) for name, tensor in tensors.items()},
            dynamo=True,
            dynamic_shapes={name: {0: torch.export.Dim.DYNAMIC} for name in tensors},
            input_names=list(tensors),
            output_names=["output"] if len(answers) == 1 else None,
            verbose=False,
        )
    finally:
        model.train(trained).to(device)
    assert program is not None
    proto = tidy_graph(program.model_proto, list(tensors))
    return ConversionResult(proto, feeds, tuple(answer.numpy() for answer in answers), names)


def _feeds(model: torch.nn.Module, example: Any) -> tuple[dict[str, np.ndarray], tuple[str, ...] | None]:
    """Return rows by argument of `forward`, and names of their columns."""
    parameters = inspect.signature(model.forward).parameters.values()
    arguments = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    needed = [p.name for p in parameters if p.name in arguments and p.default is p.empty]
    signature = f"torch.{type(model).__name__} takes {quoted(arguments)}"
    if example is None:
        raise InvalidOptionError(
            f"{signature}, and is exported with rows such as it takes: give references, or "
            "`convert(module, example)` an array [N, …] or a mapping from argument to array."
        )
    if not isinstance(example, Mapping):
        if len(needed or arguments) != 1:
            raise InvalidOptionError(f"{signature}: give a mapping from each of them to an array.")
        example = {(needed or arguments)[0]: example}
    if not set(needed) <= set(example) <= set(arguments):
        raise InvalidOptionError(f"{signature}, but the example has {quoted(list(map(str, example)))}.")
    frame = frame_of(next(iter(example.values()))) if len(example) == 1 else None
    feeds = {name: _array(example[name]) for name in arguments if name in example}
    return feeds, None if frame is None else tuple(map(str, frame.labels))


def _array(rows: Any) -> np.ndarray:
    if isinstance(rows, torch.Tensor):
        return rows.detach().cpu().numpy()
    frame = frame_of(rows)
    return np.asarray(rows) if frame is None else columns_in_order(frame, None, InvalidOptionError)


def _tensor(array: np.ndarray, model: torch.nn.Module) -> torch.Tensor:
    """Return a tensor, with floats in the type of the module's weights."""
    if array.ndim == 0 or array.dtype.kind not in "iufb":
        raise InvalidOptionError(f"the example holds {array.dtype} {list(array.shape)}, not rows of numbers.")
    floats = (p.dtype for p in model.parameters() if p.is_floating_point())
    tensor = torch.from_numpy(np.array(array))
    return tensor.to(next(floats, torch.float32)) if array.dtype.kind == "f" else tensor


def _two(rows: torch.Tensor) -> torch.Tensor:
    """Return at least two rows: the export would fix an axis of length 1."""
    return rows[:2] if len(rows) > 1 else rows.expand(2, *rows.shape[1:]).clone()


def _flat(answer: Any) -> list[torch.Tensor]:
    """Return an answer's tensors, in the order of the ONNX model's outputs."""
    if isinstance(answer, torch.Tensor):
        return [answer]
    parts = answer.values() if isinstance(answer, Mapping) else answer
    return [tensor for element in parts for tensor in _flat(element)]
