"""What waits for the event loop is known to have waited, and a turn that is over is forgotten."""

import asyncio
from pathlib import Path

import pytest

from service.errors import QueueFullError
from service.loop_turns import LoopTurns
from service.settings import Settings
from tests.service.conftest import gateway
from tests.service.own_time import standing_still

BUSY_S = 0.02


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
        plane = client._transport.app.state.plane  # type: ignore[attr-defined]
        entry = plane.repository.entry("score")
        with standing_still() as clock:
            plane.admit(entry, plane.deadline(0.1))
            clock.pass_by(0.08)
            with pytest.raises(QueueFullError, match=r"0\.08 s behind"):
                plane.admit(entry, plane.deadline(0.1))
            plane.admit(entry, plane.deadline(10))
