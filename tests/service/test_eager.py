"""A coroutine that begins at once is otherwise as one in a task."""

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any

import pytest

from service.eager import begin
from service.until import until

seen = contextvars.ContextVar("seen", default="nothing")


def begun(work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
    """`begin`, from outside of any task, as a transport calls."""
    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()
    found: list[asyncio.Task[None] | None] = []
    running = asyncio.current_task()
    assert running is not None
    asyncio.tasks._leave_task(loop, running)
    try:
        found.append(context.run(begin, loop, work))
    finally:
        asyncio.tasks._enter_task(loop, running)
    return found[0]


async def test_what_does_not_wait_is_over() -> None:
    done: list[str] = []

    async def work() -> None:
        seen.set("mine")
        done.append(seen.get())

    assert begun(work()) is None
    assert done == ["mine"]
    assert seen.get() == "nothing"


async def test_what_waits_goes_on_in_its_context() -> None:
    future = asyncio.get_running_loop().create_future()
    done: list[str] = []

    async def work() -> None:
        seen.set("mine")
        done.append(await future)
        await asyncio.sleep(0)
        done.append(seen.get())

    task = begun(work())
    assert task is not None
    future.set_result("waited")
    await task
    assert done == ["waited", "mine"]


async def test_within_a_task_it_is_a_task() -> None:
    done: list[str] = []

    async def work() -> None:
        done.append("done")

    task = begin(asyncio.get_running_loop(), work())
    assert task is not None
    assert not done
    await task
    assert done


async def test_a_fault_at_the_beginning_is_raised() -> None:
    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        begun(work())


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_cancelling(turns: int) -> None:
    """Before the task has taken a step, too: the work is told, and so is what it waits for."""
    future = asyncio.get_running_loop().create_future()
    told: list[str] = []

    async def work() -> None:
        try:
            await future
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    task = begun(work())
    assert task is not None
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == ["cancelled"]
    assert future.cancelled()


@pytest.mark.parametrize("delay_s", [0.0, 0.01])
async def test_timeouts_entered_at_the_beginning(delay_s: float) -> None:
    said: list[str] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        try:
            await until(loop.time() + delay_s, asyncio.sleep(60))
        except TimeoutError:
            said.append("until")
        try:
            async with asyncio.timeout(delay_s):
                await asyncio.sleep(60)
        except TimeoutError:
            said.append("timeout")

    task = begun(work())
    assert task is not None
    await task
    assert said == ["until", "timeout"]
    assert not task.cancelling()


async def test_a_timeout_that_is_kept() -> None:
    async def work() -> None:
        async with asyncio.timeout(60):
            await asyncio.sleep(0)

    task = begun(work())
    assert task is not None
    await task


async def test_two_that_wait_for_the_same() -> None:
    """The first has no task yet when the second awaits what it awaits, and a third is an ordinary task."""
    future = asyncio.get_running_loop().create_future()
    heard: list[str] = []

    async def work() -> None:
        heard.append(await future)

    tasks = [begun(work()), begun(work()), asyncio.create_task(work())]
    await asyncio.sleep(0)
    future.set_result("waited")
    for task in tasks:
        assert task is not None
        await task
    assert heard == ["waited"] * 3


async def test_what_is_cancelled_at_the_beginning_is_over() -> None:
    """By what it waits for: its beginner, who reads from a socket, goes on."""
    future = asyncio.get_running_loop().create_future()
    future.cancel()

    async def work() -> None:
        await future

    assert begun(work()) is None
