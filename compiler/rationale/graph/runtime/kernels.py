"""Kernel libraries: shared objects that register custom operators with ONNX Runtime's sessions."""

import ctypes
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

import onnxruntime as ort

from rationale.errors import InvalidOptionError
from rationale.schema.machine import KERNELS


def load_kernels(options: ort.SessionOptions, library: Path) -> None:
    """Load a library for good: ONNX Runtime unloads it with its last session, which can crash it."""
    ctypes.CDLL(str(library))  # never closed
    options.register_custom_ops_library(str(library))


def installed_kernels(given: Sequence[Path] = ()) -> list[Path]:
    """Return the library of the package rationale-kernels, which computes the chains of a graph in one pass.

    The list is empty if the package is not installed, or RATIONALE_KERNELS is "off".

    Args:
        given: libraries that are loaded anyway; if that one is among them, it is not loaded twice.
    """
    library = None if os.environ.get(KERNELS, "").lower() == "off" else _installed()
    return [] if library is None or library.name in {path.name for path in given} else [library]


def kernels_version() -> str | None:
    """Return the version of rationale-kernels if sessions take its library."""
    return _version() if installed_kernels() else None


@functools.cache  # each decision records it
def _version() -> str:
    return importlib.metadata.version("rationale-kernels")


@functools.cache
def _installed() -> Path | None:
    if importlib.util.find_spec("rationale_kernels") is None:
        return None
    path: Path = importlib.import_module("rationale_kernels").LIBRARY
    return path


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
