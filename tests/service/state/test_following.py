"""Two gateways on one folder: each knows when the other has taken up what it wrote."""

import asyncio
import math
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from rationale_service.models.explainers import replica_sync
from rationale_service.models.explainers.artifact_store import ArtifactStore
from rationale_service.models.explainers.records import Artifact, lease_of
from rationale_service.repository.entry import Entry
from tests.service import handmade
from tests.service.explaining import (
    DEEPSHAP,
    GRADIENT,
    PATH,
    SECONDS,
    Gate,
    Sets,
    administered,
    assert_answers,
    compiles,
    explain,
    explainers_of,
    made_ready,
    settled,
    until,
    write_plain,
)


async def ready_on_both(first: httpx.AsyncClient, second: httpx.AsyncClient) -> None:
    """Each knows that the other is there: by a state that is there, which each has looked at."""
    states = [explainers_of(client)._state for client in (first, second)]
    states[0].write(("note", "first", {}))
    await until(lambda: all(state.behind(sys.maxsize) for state in states))


def behind(client: httpx.AsyncClient) -> bool:
    state = explainers_of(client)._state
    return bool(state.behind(state.revision()))


@pytest.mark.usefixtures("quick")
async def test_each_writes_and_hears_that_the_other_has_it(
    folder: Path, sets: Sets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        replica_sync, "_FOLLOWED_S", math.inf
    )  # without hearing of it, a call is never answered
    async with administered(folder, sets) as first, administered(folder, sets) as second:
        await ready_on_both(first, second)
        await made_ready(first, f"{PATH}/first", DEEPSHAP)
        await until(lambda: not behind(first) and not behind(second))
        for turn in range(6):
            client, other = (first, second) if turn % 2 else (second, first)
            async with asyncio.timeout(SECONDS):
                assert (await client.put(f"{PATH}/own-{turn}", json=GRADIENT)).status_code in (200, 202)
            assert (await other.get(f"{PATH}/own-{turn}")).status_code == 200  # it knows already
            assert (await settled(other, f"{PATH}/own-{turn}"))["state"] == "ready"
        await until(lambda: not behind(first) and not behind(second))
        assert_answers(await explain(second, explainer="first"), "typical")
        assert compiles(first) + compiles(second) == 2


@pytest.mark.usefixtures("quick")
async def test_ready_is_said_by_who_answers_by_it(
    folder: Path, sets: Sets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is still reading the entry does not say that the explainer is ready."""
    reading, may_end = threading.Event(), threading.Event()

    def slow(store: ArtifactStore, artifact: Artifact) -> Entry:
        reading.set()
        assert may_end.wait(SECONDS)
        return read(store, artifact)

    async with administered(folder, sets) as first, administered(folder, sets) as second:
        await ready_on_both(first, second)
        read = ArtifactStore.read
        monkeypatch.setattr(ArtifactStore, "read", slow)
        assert (await first.put(f"{PATH}/own", json=GRADIENT)).status_code == 202
        await until(reading.is_set)
        assert (await second.get(f"{PATH}/own")).json().get("state") != "ready"
        may_end.set()
        await until(lambda: not behind(first))
        assert (await settled(second, f"{PATH}/own"))["state"] == "ready"
        await explain(second, explainer="own")


async def test_one_goes_on_with_what_another_left(folder: Path, sets: Sets, quick: Gate) -> None:
    quick.close()
    async with administered(folder, sets) as second:
        async with administered(folder, sets) as first:
            assert (await first.put(f"{PATH}/own", json=GRADIENT)).status_code == 202
            await until(lambda: quick.waiting == 1)
            await asyncio.sleep(0.6)  # the other one has looked, and left it to who is at it
            assert quick.waiting == 1
        await until(lambda: quick.waiting == 1)  # who was at it has stopped
        quick.open()
        assert (await settled(second, f"{PATH}/own"))["state"] == "ready"
        assert quick.cancelled == 1


@pytest.mark.usefixtures("quick")
async def test_what_is_put_on_both_at_once_is_compiled_once(folder: Path, sets: Sets) -> None:
    async with administered(folder, sets) as first, administered(folder, sets) as second:
        await ready_on_both(first, second)
        await asyncio.gather(*(client.put(f"{PATH}/own", json=DEEPSHAP) for client in (first, second) * 4))
        assert (await settled(first, f"{PATH}/own"))["state"] == "ready"
        await until(lambda: not behind(first) and not behind(second))
        assert_answers(await explain(first), "typical")
        assert_answers(await explain(second), "typical")
        assert compiles(first) + compiles(second) == 1


async def test_an_explainer_of_another_version_is_not_answered_by(
    folder: Path, sets: Sets, quick: Gate
) -> None:
    shared: dict[str, Any] = {"state": folder / "state", "artifacts": f"file://{folder}/artifacts"}
    write_plain(folder / "other" / "models", scale=2.0)
    own_settings = {**shared, "repository": folder / "other" / "models"}
    async with (
        administered(folder, sets, **shared) as first,
        administered(folder, sets, **own_settings) as second,
    ):
        await ready_on_both(first, second)
        await made_ready(first, f"{PATH}/first", DEEPSHAP)
        await until(lambda: not behind(first))
        assert (await second.get(f"{PATH}/first")).json()["serving"] is None
        refused = await second.post("/v1/models/score:explain", json={"instances": handmade.X.tolist()})
        assert refused.status_code == 404
        assert "no explainer" in refused.json()["detail"]
        assert_answers(await explain(first), "typical")
        # nor is one made by it that another version is waited for
        quick.close()
        assert (await first.put(f"{PATH}/second", json=GRADIENT)).status_code == 202
        await until(lambda: quick.waiting == 1 and not behind(first))
        await explainers_of(first).stop()
        await until(lambda: quick.waiting == 0)
        explainers_of(first)._state.close()
        await asyncio.sleep(1)
        assert quick.waiting == 0
        assert (await second.get(f"{PATH}/second")).json()["state"] == "queued"
        # until it has the same
        quick.open()
        shutil.rmtree(folder / "other" / "models" / "score")
        shutil.copytree(folder / "models" / "score", folder / "other" / "models" / "score")
        assert (await second.post("/v2/repository/models/score/load")).status_code == 200
        assert_answers(await explain(second, explainer="first"), "typical")
        assert (await settled(second, f"{PATH}/second"))["state"] == "ready"
        assert compiles(second) == 1


async def test_a_fault_while_following_ends_it_not(
    folder: Path, sets: Sets, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with administered(folder, sets) as first, administered(folder, sets) as second:
        await ready_on_both(first, second)
        refresh, faults = replica_sync.ReplicaSync.refresh, []

        async def torn(self: replica_sync.ReplicaSync, followed: Any) -> None:
            if self is explainers_of(second).sync and len(faults) < 2:
                faults.append(1)
                raise TypeError("torn")
            await refresh(self, followed)

        monkeypatch.setattr(replica_sync.ReplicaSync, "refresh", torn)
        await until(lambda: len(faults) == 2)
        await made_ready(first, f"{PATH}/own", GRADIENT)
        await until(lambda: not behind(first))
        assert (await settled(second, f"{PATH}/own"))["state"] == "ready"
    assert caplog.text.count("other processes are not followed") == 1


@pytest.mark.usefixtures("quick")
async def test_what_another_one_took_up_meanwhile_is_not_deleted(
    folder: Path, sets: Sets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look whether anybody uses an artifact and its deletion: at the lease, and behind it."""
    async with administered(folder, sets) as first, administered(folder, sets) as second:
        await ready_on_both(first, second)
        await made_ready(first, f"{PATH}/first", DEEPSHAP)
        digest = explainers_of(first).store.records["score", "first"].digest
        reached, go_on = asyncio.Event(), threading.Event()
        loop, take = asyncio.get_running_loop(), explainers_of(first)._state.take

        def slowly(lease: str) -> str | None:
            if lease == lease_of(digest):
                loop.call_soon_threadsafe(reached.set)
                go_on.wait(SECONDS)
            return take(lease)

        monkeypatch.setattr(explainers_of(first)._state, "take", slowly)
        explainers_of(first).grace_s = 0
        assert (await first.delete(f"{PATH}/first")).is_success
        await asyncio.wait_for(reached.wait(), SECONDS)
        await made_ready(second, f"{PATH}/second", DEEPSHAP)
        go_on.set()
        async with explainers_of(first)._builder.turn(digest):  # which it has left
            pass
        assert_answers(await explain(second), "typical")
        assert (folder / "models" / explainers_of(second).store.artifacts[digest].entry).is_dir()
        assert compiles(first) + compiles(second) == 1
