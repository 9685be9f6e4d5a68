"""What the compiler's tests share."""

from collections.abc import Iterator

import pytest

from tests.references.engine import computing_in_float64


@pytest.fixture
def float64_engine() -> Iterator[None]:
    """Constants are folded and checks are run by the interpreter: ONNX Runtime lacks float64 kernels."""
    with computing_in_float64():
        yield
