"""What all tests run under."""

import ctypes
import gc
import importlib.util
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from rationale.schema.machine import available_cores

MOST_WORKERS = 4  # each takes a gigabyte, and starts servers of its own
# One worker runs all files of such a folder: they share servers and browsers that take seconds to start.
TOGETHER = ("tests/compiler/export", "tests/service/console", "tests/service/decisions", "tests/triton")
# Whose files take long each: begun last, one of them would keep all workers but one waiting.
LONG = (
    "tests/conformance",
    *TOGETHER,
    "tests/compiler/networks",
    "tests/compiler/rules/test_rules",
    "tests/compiler/runtimes",
    "tests/docs/test_alerts",
    "tests/docs/test_pages",
    "tests/fuzz/test_graphs",
    "tests/loadtests",
    "tests/peers/lrp",
    "tests/service/server",
    "tests/service/state",
    "tests/examples/test_demo",
    "tests/examples/test_notebooks",
    "tests/examples/test_own_operator",
    "tests/project/test_wheel",
)
# Of a test with several marks, the first decides which command runs it.
COMMANDS = {"docker": "make test-docker", "slow": "make test-slow", "full": "make test-full"}
_LEFT_OUT: Counter[str] = Counter()  # the commands that run tests which this run deselects

# torch's threads sleep where they wait for each other: on cores that others use too they take longer to wait
# than to compute. Read when torch is loaded, and by child processes.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Where workers share the cores, each keeps to one.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# LightGBM wants an OpenMP, which a small system lacks: torch brings one, and is not always imported first.
for library in Path(importlib.util.find_spec("torch").origin).parent.glob("lib/libgomp.so.1"):
    ctypes.CDLL(str(library))


# The same examples in each run of a commit, and no measure of how long they take. A search that draws anew
# is one of the slow tests: else a change would be refused for what was there before it.
settings.register_profile(
    "same examples", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
settings.load_profile("same examples")
# Else hypothesis draws numbers that it finds in the source, and every change of the source is another search.
providers._get_local_constants = lambda: providers._local_constants


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one worker more than there are cores: tests of servers wait for them, and leave a core idle."""
    return min(available_cores() + 1, MOST_WORKERS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker whole files, and whole folders of TOGETHER."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((f for f in TOGETHER if nodeid.startswith(f"{f}/")), super()._split_scope(nodeid))

    return Scheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def _no_setting_of_ours() -> None:
    """Take the tests' own variable away once it is read: a gateway that they start would call it unknown."""
    os.environ.pop("RATIONALE_TEST_DATA", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first. Workers are told tests by their ids: of two with the same, one would not be run."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    twice = [name for name, times in Counter(item.nodeid for item in items).items() if times > 1]
    if twice:
        raise pytest.UsageError(f"several tests are called {', '.join(twice)}")


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count the tests that `-m` leaves out. `-k` leaves out tests without a mark too."""
    commands = [
        next((command for mark, command in COMMANDS.items() if item.get_closest_marker(mark)), None)
        for item in items
    ]
    if None not in commands:
        _LEFT_OUT.update(filter(None, commands))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave the garbage collector out: libraries and tests are many objects, and stay until the end."""
    gc.disable()
    collected = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    return collected


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What a test records as its `summary` stands at the end, whichever worker ran it."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, text in report.user_properties:
            if name == "summary":
                terminalreporter.write_line(text)
    skipped = terminalreporter.getreports("skipped")
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    reasons.update({f"{command} ARGS=… runs those": count for command, count in _LEFT_OUT.items()})
    for reason, count in reasons.items():
        left_out = "1 test was" if count == 1 else f"{count} tests were"
        terminalreporter.write_line(f"{left_out} left out: {reason}")
