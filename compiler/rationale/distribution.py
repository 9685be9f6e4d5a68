"""The installed distribution: its version, and the packages of its extras."""

import functools
import shlex
from importlib import metadata

NAME = "rationale-onnx"


@functools.cache  # it reads a file
def version() -> str:
    return metadata.version(NAME)


def install(extra: str) -> str:
    """Return the command that installs an extra's packages, such as `pip install 'pyarrow>=18'`."""
    parts = [requirement.partition(";") for requirement in metadata.requires(NAME) or ()]
    packages = [package.strip() for package, _, marker in parts if marker.endswith(f"extra == '{extra}'")]
    return shlex.join(["pip", "install", *packages])
