"""The library of kernels, built from this checkout's sources."""

import functools
import os
import subprocess
import tempfile
from pathlib import Path

from tests.needs import need

_SOURCES = Path(__file__).parents[1] / "kernels"


@functools.cache
def library() -> Path:
    """Build the library once for each process, and return its path; skip without a compiler."""
    need("C++"), need("CMake"), need("Make")
    folder = tempfile.mkdtemp(prefix="rationale-kernels-")
    environment = {k: v for k, v in os.environ.items() if k not in ("CFLAGS", "CXXFLAGS")}
    for command in (
        ["cmake", "-S", str(_SOURCES), "-B", folder, "-G", "Unix Makefiles"],
        ["cmake", "--build", folder],
    ):
        process = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert process.returncode == 0, process.stdout + process.stderr
    return Path(folder) / "librationale_kernels.so"
