"""Kernel libraries: shared objects that register operators of their own with ONNX Runtime's sessions."""

import ctypes
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import onnxruntime as ort

from compiler.errors import InvalidOptionError

_LIBRARIES: ContextVar[tuple[Path, ...]] = ContextVar("libraries", default=())


@contextmanager
def kernels_of(libraries: Sequence[Path]) -> Iterator[None]:
    """Sessions that are made within know the operators of these libraries."""
    token = _LIBRARIES.set(tuple(libraries))
    try:
        yield
    finally:
        _LIBRARIES.reset(token)


def register(options: ort.SessionOptions) -> None:
    """Raise InvalidOptionError for a library that ONNX Runtime cannot load."""
    for library in _LIBRARIES.get():
        try:
            load_kernels(options, library)
        except Exception as error:  # of several kinds
            reason = " ".join(str(error).split()).rstrip(".")
            raise InvalidOptionError(
                f"{library}: ONNX Runtime {ort.__version__} cannot load it as a library of kernels: {reason}"
                ". It must be a shared object for this machine that exports RegisterCustomOps."
            ) from error


def load_kernels(options: ort.SessionOptions, library: Path) -> None:
    """Load it for good: ONNX Runtime unloads it with its last session, which not every library survives."""
    ctypes.CDLL(str(library))  # never closed
    options.register_custom_ops_library(str(library))


def found(libraries: Sequence[str | Path]) -> tuple[Path, ...]:
    """Absolute paths; raises InvalidOptionError for no list, a file that is not there, or two of one name."""
    if not isinstance(libraries, list | tuple) or not all(isinstance(f, str | Path) for f in libraries):
        raise InvalidOptionError(f"custom_ops {libraries!r}: give a list of the files of libraries.")
    paths = tuple(Path(library).absolute() for library in libraries)
    for path in paths:
        if not path.is_file():
            raise InvalidOptionError(f"--custom-ops {path}: there is no such file.")
    if len({path.name for path in paths}) < len(paths):
        raise InvalidOptionError(
            f"--custom-ops: libraries that stand in one folder need names that differ: {[*map(str, paths)]}."
        )
    return paths


def digest(library: Path) -> str:
    """SHA-256 of the file."""
    return hashlib.sha256(library.read_bytes()).hexdigest()
