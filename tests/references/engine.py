"""The compiler with constants folded and checks run by the interpreter, in float64."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from compiler.errors import InvalidModelError
from compiler.runtime.session import ModelFile
from tests.references.interpreter import run64


class Runner64:
    """`compiler.runtime.session.Runner`'s interface on the interpreter."""

    def __init__(self, model: Any, **_: Any) -> None:
        held = model.load() if isinstance(model, ModelFile) else model
        self.model = held if isinstance(held, onnx.ModelProto) else ir.serde.serialize_model(held)

    def __call__(self, inputs: Any, outputs: Any = None) -> dict[str, np.ndarray]:
        try:
            return run64(self.model, inputs, outputs)
        except (RuntimeError, ValueError, IndexError) as error:  # so many rows, say, that it is not made for
            raise InvalidModelError(f"the interpreter cannot run the model: {error}") from error


def compute_in_float64(patch: pytest.MonkeyPatch) -> None:
    """Nothing is timed: the interpreter's seconds say nothing of a graph."""
    for module in ("graph.fold", "memory.scan", "checks.measure", "checks.check", "lowering.batch"):
        patch.setattr(f"compiler.{module}.Runner", Runner64)
    patch.setattr("compiler.checks.measure.LATENCY_SECONDS", 0.0)
    patch.setattr("compiler.checks.measure.BATCH_SECONDS", 0.0)
