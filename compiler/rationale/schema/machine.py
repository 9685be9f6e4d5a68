"""The machine: the share that this process may use, and the machine that a graph is made for.

A `Deployment` decides a graph's speed and memory, and nothing of its answers.
"""

import functools
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from rationale.errors import InvalidOptionError

# ONNX Runtime's option to cut a node's work into blocks that begin with a large one for each core, which so
# goes on with what it has computed itself. Equal blocks, its default, go to whoever is next: where cores
# share no cache, half of what a core reads lies in another's (ADR 0023).
LARGE_BLOCKS = ("session.dynamic_block_base", "4")

Provider = Literal["cpu", "cuda"]
Storage = Literal["float32", "float16"]
Runtime = Literal["onnxruntime", "openvino", "tensorrt", "any"]

DEFAULT_BUDGET = 4 << 30
KERNELS = "RATIONALE_KERNELS"  # "off" in the environment leaves the package rationale-kernels alone
MAX_BATCH = 64  # rows of one request, even if more fit
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


@dataclass(frozen=True)
class Deployment:
    """The runtime and machine of the combined graph, and its limits there.

    Args:
        provider: ONNX Runtime's execution provider; operators are emitted in its fastest variants.
        threads: threads of one run; None for as many as this process has cores.
        memory_budget: bytes for precomputed references and working memory together, at one row. Above it the
            references are walked in chunks, and recomputed if they do not fit.
        storage: the type of stored reference activations; float16 halves them, at an error that the check
            measures.
        one_shot: one entry, in which a BOOL input `explain` decides whether the explanation is computed.
        runtime: the runtime that will load the graph. The graph avoids the faults and gaps of any runtime but
            ONNX Runtime; "any" avoids all of them (docs/runtimes.md).

    Raises:
        InvalidOptionError: if a value is none of these.
    """

    provider: Provider = "cpu"
    threads: int | None = None
    memory_budget: int = DEFAULT_BUDGET
    storage: Storage = "float32"
    one_shot: bool = False
    runtime: Runtime = "onnxruntime"

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("provider", self.provider, get_args(Provider)),
            ("storage", self.storage, get_args(Storage)),
            ("runtime", self.runtime, get_args(Runtime)),
        ):
            if value not in choices:
                raise InvalidOptionError(f"{name} must be one of {', '.join(choices)}, not {value!r}.")
        for name, number in (("threads", self.threads), ("memory_budget", self.memory_budget)):
            if number is not None and (isinstance(number, bool) or number != int(number) or number < 1):
                raise InvalidOptionError(f"{name} must be a whole number, 1 or more, not {number!r}.")

    @property
    def is_portable(self) -> bool:
        """True if other runtimes than ONNX Runtime may load the graph."""
        return self.runtime != "onnxruntime"

    @property
    def cores(self) -> int:
        """Threads of one run."""
        return self.threads or available_cores()


HERE = Deployment()  # this machine, its defaults


def parse_bytes(text: str) -> int:
    """Parse "2GB", "512 MiB" or "1500000" to bytes; K, M, G and T are powers of 1024.

    Raises:
        InvalidOptionError: if the text has another form.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B|bytes)?\s*", text, re.IGNORECASE)
    size = int(float(match[1]) * (1 << _UNITS[match[2].upper()])) if match else 0
    if size < 1:
        raise InvalidOptionError(
            f"{text!r} is not an amount of memory: write 2GB, 512MB or a number of bytes."
        )
    return size


def format_bytes(size: float) -> str:
    """Return bytes as "1.4 GB", which `parse_bytes` reads."""
    unit, *larger = ("bytes", "KB", "MB", "GB")
    while size >= 1024 and larger:
        size, unit = size / 1024, larger.pop(0)
    return f"{size:.3g} {unit}" if size < 999.5 else f"{size:.0f} {unit}"


def available_cores() -> int:
    """Return the number of cores that this process may use, which can be fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@functools.cache
def processor() -> str:
    """Return the processor's name and the machine's architecture."""
    try:
        match = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:  # not Linux
        match = None
    return f"{match[1] if match else platform.processor()} ({platform.machine()})"
