"""What the compiler's tests share."""

import pytest

from tests.references.engine import compute_in_float64


@pytest.fixture
def float64_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants are folded and checks are run by the interpreter: ONNX Runtime lacks float64 kernels."""
    compute_in_float64(monkeypatch)
