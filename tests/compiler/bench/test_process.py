"""A process of its own: its answer, and its death."""

import os
import signal

import pytest

from compiler.bench.process import ProcessDiedError, huge_pages, in_a_process, run_module


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


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}),
        (
            {"GLIBC_TUNABLES": "glibc.malloc.check=1"},
            {"GLIBC_TUNABLES": "glibc.malloc.check=1:glibc.malloc.hugetlb=1"},
        ),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, {}),
    ],
)
def test_huge_pages_leave_what_is_set(given: dict[str, str], expected: dict[str, str]) -> None:
    assert huge_pages(given) == expected


@pytest.mark.parametrize(("how", "said"), [("killed", "was ended"), ("raises", "ValueError: raises")])
def test_death(how: str, said: str) -> None:
    with pytest.raises(ProcessDiedError, match=said):
        in_a_process(dies, how)


def test_a_module_is_run_to_its_end() -> None:
    assert "usage:" in run_module("json.tool", "--help")


def test_a_module_that_fails_tells_why() -> None:
    with pytest.raises(ProcessDiedError, match=r"No such file or directory: '/nowhere'"):
        run_module("json.tool", "/nowhere")
