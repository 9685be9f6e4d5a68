"""What waits for the event loop is known to have waited, and a turn that is over is forgotten."""

import asyncio
from pathlib import Path
from typing import cast

import httpx
import pytest

from service.api.hot_routes import Gateway
from service.errors import QueueFullError
from service.inference.dataplane import DataPlane
from service.inference.loop_turns import LoopTurns
from service.settings import Settings
from tests.service.conftest import gateway
from tests.service.own_time import standing_still

BUSY_S = 0.02


def plane_behind(client: httpx.AsyncClient) -> DataPlane:
    """Of the app that the client calls in this process."""
    transport = client._transport
    assert isinstance(transport, httpx.ASGITransport)
    plane: DataPlane = cast(Gateway, transport.app).state.plane
    return plane


async def test_whoever_is_late_in_a_turn_is_behind_by_what_ran_before() -> None:
    turns = LoopTurns()

    async def ask_and_work() -> float:
        behind_s = turns.behind_s()
        clock.pass_by(BUSY_S)
        return behind_s

    async def ask_in_the_next_turn() -> float:
        await asyncio.sleep(0)
        return turns.behind_s()

    with standing_still() as clock:
        *seen, next_turn = await asyncio.gather(*(ask_and_work() for _ in range(4)), ask_in_the_next_turn())
        assert seen == pytest.approx([0, BUSY_S, 2 * BUSY_S, 3 * BUSY_S])
        assert next_turn == pytest.approx(4 * BUSY_S)  # it may have come while they ran
        for _ in range(5):
            await asyncio.sleep(0)
        assert turns.behind_s() == 0


async def test_a_loop_that_is_behind_refuses_the_hasty_and_not_the_patient(repository: Path) -> None:
    async with gateway(Settings(repository=repository)) as client:
        plane = plane_behind(client)
        entry = plane.repository.entry("score")
        with standing_still() as clock:
            plane.admit(entry, plane.deadline(0.1))
            clock.pass_by(0.08)
            with pytest.raises(QueueFullError, match=r"0\.08 s behind"):
                plane.admit(entry, plane.deadline(0.1))
            plane.admit(entry, plane.deadline(10))


async def test_what_answers_take_of_the_loop_bounds_how_many_are_under_way(repository: Path) -> None:
    async with gateway(Settings(repository=repository)) as client:
        plane = plane_behind(client)
        entry = plane.repository.entry("score")
        with standing_still() as clock:
            plane.admit(entry, plane.deadline(0.1), 1000)  # nothing is known yet
            for _ in range(20):
                plane._turns.behind_s()
                plane._turns.ended()
                clock.pass_by(0.002)
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert plane._turns.behind_s() == 0
            assert plane._turns.answer_s() == pytest.approx(0.002, rel=0.01)
            plane.admit(entry, plane.deadline(0.1), 10)
            with pytest.raises(QueueFullError, match=r"0\.12 s behind"):
                plane.admit(entry, plane.deadline(0.1), 30)
            plane.admit(entry, plane.deadline(10), 30)


async def test_one_long_turn_does_not_make_answers_dear() -> None:
    turns = LoopTurns()
    with standing_still() as clock:
        for taken_s in (*[0.001] * 50, 2.0):
            turns.behind_s()
            turns.ended()
            clock.pass_by(taken_s)
            await asyncio.sleep(0)
        assert turns.answer_s() < 0.005


async def test_a_few_answers_tell_nothing() -> None:
    turns = LoopTurns()
    with standing_still() as clock:
        turns.behind_s()
        turns.ended()
        clock.pass_by(1)
        await asyncio.sleep(0)
        assert turns.answer_s() == 0
