"""What the compiler's tests share."""

import errno
from collections.abc import Iterator

import pytest

from tests.references.engine import computing_in_float64


@pytest.fixture
def float64_engine() -> Iterator[None]:
    """Constants are folded and checks are run by the interpreter: ONNX Runtime lacks float64 kernels."""
    with computing_in_float64():
        yield


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the file system have no locks."""

    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("rationale.artifact.repository.folder.fcntl.flock", refused)
