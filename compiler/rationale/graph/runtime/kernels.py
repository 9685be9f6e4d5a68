"""Kernel libraries: shared objects that register custom operators with ONNX Runtime's sessions."""

import ctypes
import hashlib
from collections.abc import Sequence
from pathlib import Path

import onnxruntime as ort

from rationale.errors import InvalidOptionError


def load_kernels(options: ort.SessionOptions, library: Path) -> None:
    """Load a library for good: ONNX Runtime unloads it with its last session, which can crash it."""
    ctypes.CDLL(str(library))  # never closed
    options.register_custom_ops_library(str(library))


def library_paths(libraries: Sequence[str | Path]) -> tuple[Path, ...]:
    """Return absolute paths.

    Raises:
        InvalidOptionError: if `libraries` is no list, a file does not exist, or two files have one name.
    """
    if not isinstance(libraries, list | tuple) or not all(isinstance(f, str | Path) for f in libraries):
        raise InvalidOptionError(f"custom_ops {libraries!r}: give a list of the files of libraries.")
    paths = tuple(Path(library).absolute() for library in libraries)
    for path in paths:
        if not path.is_file():
            raise InvalidOptionError(f"--custom-ops {path}: there is no such file.")
    if len({path.name for path in paths}) < len(paths):
        raise InvalidOptionError(
            f"--custom-ops: two libraries have the same file name: {[*map(str, paths)]}."
        )
    return paths


def digest(library: Path) -> str:
    """Return the SHA-256 of the file."""
    return hashlib.sha256(library.read_bytes()).hexdigest()
