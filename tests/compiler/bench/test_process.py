"""A process of its own: its answer, and its death."""

import os
import signal

import pytest

from rationale.bench.process import ProcessDiedError, in_a_process, memory_kept


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


KEPT = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=2147483647"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, f"{KEPT}:glibc.malloc.hugetlb=1"),
        ({"GLIBC_TUNABLES": "glibc.malloc.check=1"}, f"glibc.malloc.check=1:{KEPT}:glibc.malloc.hugetlb=1"),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, f"glibc.malloc.hugetlb=0:{KEPT}"),
    ],
)
def test_kept_memory_leaves_what_is_set(given: dict[str, str], expected: str) -> None:
    assert memory_kept(given) == {"GLIBC_TUNABLES": expected}


@pytest.mark.parametrize(("how", "said"), [("killed", "was ended"), ("raises", "ValueError: raises")])
def test_death(how: str, said: str) -> None:
    with pytest.raises(ProcessDiedError, match=said):
        in_a_process(dies, how)
