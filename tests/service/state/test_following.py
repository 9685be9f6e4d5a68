"""Two gateways on one folder: each knows when the other has taken up what it wrote."""

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from tests.service.explaining import (
    DEEPSHAP,
    GRADIENT,
    PATH,
    Gate,
    Sets,
    administered,
    assert_answers,
    compiles,
    explain,
    explainers_of,
    folder,
    made_ready,
    quick,
    sets,
    settled,
    until,
)

__all__ = ["folder", "quick", "sets"]  # fixtures, found by their names


def behind(client: httpx.AsyncClient) -> bool:
    state = explainers_of(client)._state
    return bool(state.behind(state.revision()))


@pytest.mark.usefixtures("quick")
async def test_each_writes_and_nobody_waits_for_long(folder: Path, sets: Sets) -> None:
    async with administered(folder, sets) as one, administered(folder, sets) as two:
        await made_ready(one, f"{PATH}/first", DEEPSHAP)
        await until(lambda: not behind(one) and not behind(two))
        for turn in range(6):
            client, other = (one, two) if turn % 2 else (two, one)
            began_s = time.monotonic()
            assert (await client.put(f"{PATH}/own-{turn}", json=GRADIENT)).status_code in (200, 202)
            assert (await other.get(f"{PATH}/own-{turn}")).status_code == 200  # it knows already
            assert time.monotonic() - began_s < 2.5  # less than anybody is waited for
            assert (await settled(other, f"{PATH}/own-{turn}"))["state"] == "ready"
        await until(lambda: not behind(one) and not behind(two))
        assert_answers(await explain(two, explainer="first"), "typical")
        assert compiles(one) + compiles(two) == 2


async def test_one_goes_on_with_what_another_left(folder: Path, sets: Sets, quick: Gate) -> None:
    quick.close()
    async with administered(folder, sets) as two:
        async with administered(folder, sets) as one:
            assert (await one.put(f"{PATH}/own", json=GRADIENT)).status_code == 202
            await until(lambda: quick.waiting == 1)
            await asyncio.sleep(0.6)  # the other one has looked, and left it to who is at it
            assert quick.waiting == 1
        await until(lambda: quick.waiting == 1)  # who was at it has stopped
        quick.open()
        assert (await settled(two, f"{PATH}/own"))["state"] == "ready"
        assert quick.cancelled == 1


@pytest.mark.usefixtures("quick")
async def test_what_is_put_on_both_at_once_is_compiled_once(folder: Path, sets: Sets) -> None:
    async with administered(folder, sets) as one, administered(folder, sets) as two:
        await asyncio.gather(*(client.put(f"{PATH}/own", json=DEEPSHAP) for client in (one, two) * 4))
        assert (await settled(one, f"{PATH}/own"))["state"] == "ready"
        await until(lambda: not behind(one) and not behind(two))
        assert_answers(await explain(one), "typical")
        assert_answers(await explain(two), "typical")
        assert compiles(one) + compiles(two) == 1
