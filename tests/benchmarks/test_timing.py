"""Turns, blocks and ratios; memory; a process of its own, its answer and its death."""

import os
import signal
import subprocess
import sys
import time

import pytest

from benchmarks.timing import (
    BLOCK_S,
    MOST_CALLS,
    ProcessDiedError,
    System,
    alternate,
    as_benchmark,
    in_a_process,
    machine,
    memory_bytes,
    memory_kept,
    memory_watched,
    memory_with_children,
    quartiles,
    ratio,
)


def test_systems_take_turns() -> None:
    """Slow ones are called once a turn, and nobody always comes first."""
    order: list[str] = []

    def system(name: str) -> System:
        return System(name, lambda: time.sleep(2 * BLOCK_S), lambda: order.append(name))

    times = alternate([system(name) for name in "abc"], 3)
    assert order == [*"abc", *"abc", *"bca", *"cab"]  # the first three: how many calls a turn has
    assert [len(turn) for name in "abc" for turn in times[name]] == [1] * 9
    assert all(t >= 2 * BLOCK_S for turns in times.values() for turn in turns for t in turn)


def test_fast_systems_are_called_often() -> None:
    times = alternate([System("fast", lambda: None)], 2)
    assert [len(turn) for turn in times["fast"]] == [MOST_CALLS, MOST_CALLS]


def test_ratio_compares_rounds() -> None:
    """A round in which everything is slow counts as any other."""
    ours = [[1.0, 1.0, 9.0], [10.0, 11.0, 10.0], [2.0, 1.0, 2.0]]
    theirs = [[3.0], [30.0], [4.0]]
    actual = ratio(theirs, ours)
    assert (actual.low, actual.median, actual.high) == (2.5, 3.0, 3.0)
    assert actual.least == 3.0


@pytest.mark.parametrize(("values", "expected"), [([4.0], (4, 4, 4)), ([1.0, 2, 3, 4, 5], (2, 3, 4))])
def test_quartiles(values: list[float], expected: tuple[float, ...]) -> None:
    assert quartiles(values) == expected


def test_pyperf_reads_the_times() -> None:
    actual = as_benchmark("credit: ours", [[1.0, 3.0], [5.0]], {"k": 5, "error": None})
    assert actual.get_values() == (1.0, 3.0, 5.0)
    assert actual.get_metadata() == {"name": "credit: ours", "k": 5}


def test_nothing_names_the_machine() -> None:
    actual = machine()
    assert {"cpu_count", "python_version", "load_avg_1min"} <= set(actual)
    assert not [name for name in actual if "host" in name or "executable" in name]


def test_memory_is_that_of_the_process_with_its_children() -> None:
    own_bytes = memory_bytes()
    with memory_watched(every_s=0.001) as seen:
        held = bytearray(64 << 20)
        for i in range(0, len(held), 4096):
            held[i] = 1
        time.sleep(0.05)
        del held
    assert max(seen) - own_bytes > 50 << 20
    alone = memory_with_children(os.getpid())
    code = "x = bytearray(b'1' * (64 << 20)); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as child:
        child.stdout.readline()
        assert memory_with_children(os.getpid()) - alone > 50 << 20
        child.communicate(b"\n")


def adds(a: int, b: int) -> tuple[int, int]:
    return a + b, os.getpid()


def dies(how: str) -> None:
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError(how)


def test_answer() -> None:
    total, where = in_a_process(adds, 2, 3)
    assert total == 5
    assert where != os.getpid()


def test_variables_of_this_process_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATIONALE_LOOK", "here")
    assert in_a_process(os.getenv, "RATIONALE_LOOK") == "here"


STORED = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=2147483647"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, f"{STORED}:glibc.malloc.hugetlb=1"),
        ({"GLIBC_TUNABLES": "glibc.malloc.check=1"}, f"glibc.malloc.check=1:{STORED}:glibc.malloc.hugetlb=1"),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, f"glibc.malloc.hugetlb=0:{STORED}"),
    ],
)
def test_kept_memory_leaves_what_is_set(environment: dict[str, str], expected: str) -> None:
    assert memory_kept(environment) == {"GLIBC_TUNABLES": expected}


@pytest.mark.parametrize(("how", "message"), [("killed", "was ended"), ("raises", "ValueError: raises")])
def test_death(how: str, message: str) -> None:
    with pytest.raises(ProcessDiedError, match=message):
        in_a_process(dies, how)
