"""What this process may use of the machine it runs on."""

import os


def available_cores() -> int:
    """Cores that this process may run on: fewer than the machine has where it is confined to some of them."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(affinity(0)) if affinity else os.cpu_count() or 1
