"""A deadline around work that may wait, or not."""

import asyncio
import time

import pytest

from service.inference.until import until


async def instant() -> str:
    return "done"


async def waiting(seconds: float, seen: list[str]) -> str:
    try:
        await asyncio.sleep(0)
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        seen.append("cancelled")
        raise
    return "done"


def soon(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def failing(*, waits: bool) -> None:
    if waits:
        await asyncio.sleep(0)
    raise KeyError("its own")


@pytest.mark.parametrize("seconds", [None, -1, 60])
async def test_what_does_not_wait_needs_no_time(seconds: float | None) -> None:
    deadline_s = None if seconds is None else soon(seconds)
    assert await until(deadline_s, instant()) == "done"


@pytest.mark.parametrize("seconds", [None, 60])
async def test_what_is_in_time_is_answered(seconds: float | None) -> None:
    deadline_s = None if seconds is None else soon(seconds)
    assert await until(deadline_s, waiting(0.001, [])) == "done"


async def test_what_is_late_is_cancelled() -> None:
    seen: list[str] = []
    began_s = time.monotonic()
    with pytest.raises(TimeoutError):
        await until(soon(0.01), waiting(60, seen))
    assert seen == ["cancelled"]
    assert time.monotonic() - began_s < 30


@pytest.mark.parametrize("waits", [False, True])
async def test_errors_pass(waits: bool) -> None:
    with pytest.raises(KeyError, match="its own"):
        await until(soon(60), failing(waits=waits))


async def test_a_cancellation_reaches_the_work_and_is_no_timeout() -> None:
    seen: list[str] = []
    task = asyncio.create_task(until(soon(60), waiting(60, seen)))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


async def test_work_may_meet_the_cancellation() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return "too late"
        return "done"

    assert await until(soon(0.01), stubborn()) == "too late"  # as within asyncio.timeout_at


async def test_the_inner_of_two_deadlines_is_the_inner_ones() -> None:
    async def inner() -> str:
        with pytest.raises(TimeoutError):
            await until(soon(0.01), waiting(60, []))
        return "gone on"

    assert await until(soon(60), inner()) == "gone on"
