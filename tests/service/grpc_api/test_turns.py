"""Calls that are long to read leave the event loop to others."""

import asyncio
import time

import pytest

from rationale_service.protocols.grpc.turns import Turns
from tests.service.explaining import until
from tests.service.own_time import TICK_S

LONG_S = 0.05


async def read(turns: Turns, seen: list[str], name: str, seconds: float = 0.0) -> None:
    await turns.turn()
    seen.append(name)
    time.sleep(seconds)  # as gRPC, which inflates a message without a wait


async def test_short_ones_do_not_wait() -> None:
    turns, seen = Turns(), []
    began_s = time.monotonic()
    for number in range(100):
        await read(turns, seen, str(number))
    assert seen == [str(number) for number in range(100)]
    assert time.monotonic() - began_s < LONG_S * 10


async def test_a_long_one_is_followed_by_a_pause() -> None:
    turns, seen = Turns(), []
    await read(turns, seen, "long", LONG_S)
    began_s = time.monotonic()
    await read(turns, seen, "next")
    assert time.monotonic() - began_s > 2 * LONG_S - TICK_S


async def test_whoever_comes_last_or_first_does_not_wait_for_all() -> None:
    turns, seen = Turns(), []
    async with asyncio.TaskGroup() as group:
        for name in "abcdef":
            group.create_task(read(turns, seen, name, 0.02))
    assert "".join(seen) == "afbecd"


async def test_who_has_left_is_passed_over() -> None:
    turns, seen = Turns(), []
    tasks = [asyncio.create_task(read(turns, seen, name, 4 * LONG_S)) for name in "abc"]
    await until(lambda: seen == ["a"])
    tasks[2].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[2]
    await tasks[1]
    assert seen == ["a", "b"]


@pytest.mark.parametrize("ticks", range(4))
async def test_who_leaves_keeps_nobody_waiting(ticks: int) -> None:
    """In the turn in which it would be read, too: no later call has to come for the others."""
    turns, seen = Turns(), []

    async def first() -> None:
        await turns.turn()
        for _ in range(ticks):
            await asyncio.sleep(0)
        tasks[-1].cancel()

    beginning = asyncio.create_task(first())
    tasks = [asyncio.create_task(read(turns, seen, name)) for name in "abc"]
    async with asyncio.timeout(5):
        await beginning
        await asyncio.wait(tasks)
    assert sorted({*seen} | {"c"}) == ["a", "b", "c"]
