"""Work on large requests: where it is done, how many at a time, until when."""

import asyncio
import contextlib
import contextvars
import gc
import threading
import weakref
from collections.abc import AsyncIterator

import pytest

from rationale_service.engine.large_requests import LARGE, MEDIUM, OffLoop
from rationale_service.errors import DeadlineError, InvalidInputError
from tests.service.patient import SECONDS


@pytest.fixture
async def off_loop() -> AsyncIterator[OffLoop]:
    threads = OffLoop()
    yield threads
    threads.stop()


def here() -> bool:
    return threading.current_thread() is threading.main_thread()


@pytest.mark.parametrize(
    ("size", "at_once"), [(0, True), (MEDIUM, True), (MEDIUM + 1, False), (LARGE + 1, False)]
)
async def test_what_is_small_is_done_at_once(off_loop: OffLoop, size: int, at_once: bool) -> None:
    assert await off_loop.run(size, here) == at_once


@pytest.mark.parametrize(("size", "together"), [(LARGE, True), (LARGE + 1, False)])
async def test_of_what_is_very_large_one_is_done_at_a_time(
    off_loop: OffLoop, size: int, together: bool
) -> None:
    running, most, barrier = 0, 0, threading.Barrier(2)

    def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if together:
            barrier.wait(SECONDS)
        running -= 1

    await asyncio.gather(off_loop.run(size, work), off_loop.run(size, work))
    assert most == 1 + together


async def test_a_large_one_does_not_stand_before_a_medium_one(off_loop: OffLoop) -> None:
    release = threading.Event()
    waiting = asyncio.ensure_future(off_loop.run(LARGE + 1, lambda: release.wait(SECONDS)))
    assert await off_loop.run(LARGE, lambda: "done") == "done"
    release.set()
    assert await waiting


async def test_at_the_deadline_its_caller_is_told_and_what_waits_never_begins(off_loop: OffLoop) -> None:
    release, begun = threading.Event(), []
    now_s = asyncio.get_running_loop().time()
    running = asyncio.ensure_future(off_loop.run(LARGE + 1, lambda: release.wait(SECONDS)))
    await asyncio.sleep(0)
    waits = off_loop.run(LARGE + 2, lambda: begun.append(True), now_s + 0.05)
    with pytest.raises(DeadlineError, match=f"^{LARGE + 2} bytes"):
        await waits
    assert not running.done()
    release.set()
    assert await running
    assert await off_loop.run(LARGE + 1, lambda: "next") == "next"
    assert not begun


async def test_what_is_running_is_answered_for_at_its_deadline(off_loop: OffLoop) -> None:
    release = threading.Event()
    with pytest.raises(DeadlineError):
        await off_loop.run(LARGE + 1, lambda: release.wait(SECONDS), asyncio.get_running_loop().time() + 0.05)
    release.set()


async def test_it_knows_the_request_that_it_is_for(off_loop: OffLoop) -> None:
    of = contextvars.ContextVar("of", default="nobody")
    of.set("somebody")
    assert [await off_loop.run(size, of.get) for size in (0, LARGE, LARGE + 1)] == ["somebody"] * 3


class SlowBody:
    """Stands for a request's bytes."""


@pytest.mark.parametrize("size", [0, LARGE, LARGE + 1])
@pytest.mark.parametrize("fails", [False, True])
async def test_it_keeps_nothing_of_the_request(off_loop: OffLoop, size: int, fails: bool) -> None:
    async def ask() -> "weakref.ref[SlowBody]":
        body = SlowBody()

        def work(body: SlowBody = body) -> None:
            if fails:
                raise InvalidInputError(f"not {body}")

        gone = weakref.ref(body)
        del body
        with contextlib.suppress(InvalidInputError):
            await off_loop.run(size, work)
        return gone

    gc.disable()
    try:
        gone = await ask()
        end_s = asyncio.get_running_loop().time() + SECONDS
        while gone() is not None and asyncio.get_running_loop().time() < end_s:
            await asyncio.sleep(0.01)  # the thread drops its own
        assert gone() is None
    finally:
        gc.enable()
