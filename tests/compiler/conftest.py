"""What the compiler's tests share."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.references.interpreter import run64


@pytest.fixture
def float64_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants are folded and checks are run by the interpreter: ONNX Runtime lacks float64 kernels."""

    class Runner64:
        def __init__(self, model: Any, **_: Any) -> None:
            self.model = model if isinstance(model, onnx.ModelProto) else ir.to_proto(model)

        def __call__(self, inputs: Any, outputs: Any = None) -> dict[str, np.ndarray]:
            return run64(self.model, inputs, outputs)

    monkeypatch.setattr("compiler.fold.run_model", lambda model, inputs, **_: Runner64(model)(inputs))
    monkeypatch.setattr("compiler.check.Runner", Runner64)
    monkeypatch.setattr("compiler.describe.Runner", Runner64)
