"""What all tests run under."""

import gc
import os

# torch's threads sleep where they wait for each other: on cores that others use too they take longer to wait
# than to compute. Read when torch is loaded, and by child processes.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_collection_finish() -> None:
    """Libraries and tests stay until the end: the garbage collector need not look through them again."""
    gc.collect()
    gc.freeze()
