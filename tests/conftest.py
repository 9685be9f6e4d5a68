"""What all tests run under."""

import gc
import os

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# torch's threads sleep where they wait for each other: on cores that others use too they take longer to wait
# than to compute. Read when torch is loaded, and by child processes.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


# The same examples in each run of a commit, and no measure of how long they take. A search that draws anew
# is one of the slow tests: else a change would be refused for what was there before it.
settings.register_profile(
    "same examples", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
settings.load_profile("same examples")
# Else hypothesis draws numbers that it finds in the source, and every change of the source is another search.
providers._get_local_constants = lambda: providers._local_constants


def pytest_collection_finish() -> None:
    """Libraries and tests stay until the end: the garbage collector need not look through them again."""
    gc.collect()
    gc.freeze()
