"""The compiler with constants folded and checks run by the interpreter, in float64."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from compiler.errors import InvalidModelError
from tests.references.interpreter import run64


class Runner64:
    """`compiler.runtime.Runner`'s interface on the interpreter."""

    def __init__(self, model: Any, **_: Any) -> None:
        self.model = model if isinstance(model, onnx.ModelProto) else ir.to_proto(model)

    def __call__(self, inputs: Any, outputs: Any = None) -> dict[str, np.ndarray]:
        try:
            return run64(self.model, inputs, outputs)
        except (RuntimeError, ValueError, IndexError) as error:  # so many rows, say, that it is not made for
            raise InvalidModelError(f"the interpreter cannot run the model: {error}") from error


def compute_in_float64(patch: pytest.MonkeyPatch) -> None:
    for module in ("fold", "scan", "check", "compile", "lowering.batch"):
        patch.setattr(f"compiler.{module}.Runner", Runner64)
