"""Replays that wait: so many and no more, and each gives its place back, however it ends."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from rationale_service.decisions.audit.trail import RecordedDecision
from rationale_service.decisions.records import archive
from rationale_service.decisions.records.archive import Archive
from rationale_service.errors import QueueFullError, UnknownResourceError
from rationale_service.settings import Settings
from tests.service.decisions.audit.conftest import decision

MOST = archive._REPLAYS_WAITING


@pytest.mark.parametrize("ends", ["answered", "refused"])
async def test_a_replay_that_has_ended_gives_its_place_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    def replayed(_: Archive, recorded: RecordedDecision, __: object) -> Any:
        if ends == "refused":
            raise UnknownResourceError("gone")
        return recorded.id

    monkeypatch.setattr(Archive, "_replay", replayed)
    archive = Archive(Settings(state=tmp_path))
    deadline_s = asyncio.get_running_loop().time() + 60
    for i in range(2 * MOST + 1):
        if ends == "answered":
            assert await archive.replay(decision(i), deadline_s) == decision(i).id
        else:
            with pytest.raises(UnknownResourceError):
                await archive.replay(decision(i), deadline_s)
    await archive.stop()


async def test_one_replay_too_many_is_refused_until_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(Archive, "_replay", lambda *_: gate.wait())
    archive = Archive(Settings(state=tmp_path))
    deadline_s = asyncio.get_running_loop().time() + 60
    waiting = [asyncio.create_task(archive.replay(decision(i), deadline_s)) for i in range(MOST)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError, match="too many"):
        await archive.replay(decision(98), deadline_s)
    gate.set()
    await asyncio.gather(*waiting)
    assert await archive.replay(decision(99), deadline_s)
    await archive.stop()
