"""What this process may use of the machine it runs on."""

import functools
import os
import platform
import re
from pathlib import Path

# ONNX Runtime's option to cut a node's work into blocks that begin with a large one for each core, which so
# goes on with what it has computed itself. Equal blocks, its default, go to whoever is next: where cores
# share no cache, half of what a core reads lies in another's (ADR 0023).
LARGE_BLOCKS = ("session.dynamic_block_base", "4")


def available_cores() -> int:
    """Return how many cores this process may run on: fewer than the machine has where it is confined."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@functools.cache
def processor() -> str:
    """Return the processor's name and the machine's architecture."""
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:  # not Linux
        found = None
    return f"{found[1] if found else platform.processor()} ({platform.machine()})"
