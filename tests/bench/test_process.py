"""A process of its own: its answer, what it says on the way, and its death."""

import os
import signal
from collections.abc import Callable

import pytest

from compiler.bench.process import ProcessDiedError, huge_pages, in_a_process, run_module


def adds(a: int, b: int, tell: Callable[..., None]) -> tuple[int, int]:
    tell("adding", 0, 1)
    tell("adding", 1, 1)
    return a + b, os.getpid()


def dies(how: str, _tell: Callable[..., None]) -> None:
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError(how)


def test_answer() -> None:
    said: list[tuple[str, int, int]] = []
    total, where = in_a_process(adds, 2, 3, tell=lambda *stage: said.append(stage))
    assert total == 5
    assert where != os.getpid()
    assert said == [("adding", 0, 1), ("adding", 1, 1)]


def looks(name: str, _tell: Callable[..., None]) -> str | None:
    return os.environ.get(name)


def test_variables_are_its_own() -> None:
    found = in_a_process(looks, "RATIONALE_LOOK", tell=lambda *_: None, variables={"RATIONALE_LOOK": "here"})
    assert found == "here"
    assert "RATIONALE_LOOK" not in os.environ


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


@pytest.mark.parametrize(("how", "code"), [("killed", -9), ("raises", 1)])
def test_death(how: str, code: int) -> None:
    with pytest.raises(ProcessDiedError, match=f"exit code {code}"):
        in_a_process(dies, how, tell=lambda *_: None)


def test_a_module_is_run_to_its_end() -> None:
    assert "usage:" in run_module("json.tool", "--help")


def test_a_module_that_fails_tells_why() -> None:
    with pytest.raises(ProcessDiedError, match=r"No such file or directory: '/nowhere'"):
        run_module("json.tool", "/nowhere")
