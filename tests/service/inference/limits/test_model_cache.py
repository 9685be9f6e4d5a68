"""Which explainers are loaded, with a backend that takes its time."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rationale.errors import RepositoryError
from rationale_service.engine.model_cache import ModelCache
from rationale_service.errors import NotReadyError
from rationale_service.observability.metrics import Metrics
from rationale_service.repository.entry import Entry
from rationale_service.repository.registry import read_repository


class SlowBackend:
    """Loads when it is let; remembers what is loaded and how much was at most."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.loads = self.most = 0
        self.broken = False
        self.let = asyncio.Event()
        self.let.set()

    async def load(self, entry: Entry) -> None:
        self.loads += 1
        await self.let.wait()
        if self.broken:
            raise RepositoryError("it is broken")
        self.loaded.append(entry.name)
        self.most = max(self.most, len(self.loaded))

    async def unload(self, entry: Entry) -> None:
        await asyncio.sleep(0)
        self.loaded.remove(entry.name)


@pytest.fixture
def backend() -> SlowBackend:
    return SlowBackend()


@pytest.fixture
def entries(repository: Path) -> list[Entry]:
    entry = read_repository(repository).entries["score_explain"]
    return [replace(entry, name=name) for name in "abcd"]


def residency_of(backend: Any, entries: list[Entry], capacity: int) -> ModelCache:
    model_cache = ModelCache(backend, capacity, Metrics())
    for entry in entries:
        model_cache.admit(entry)
    return model_cache


async def use(model_cache: ModelCache, entry: Entry, seconds: float = 0.0) -> None:
    async with model_cache.pinned(entry):
        assert model_cache.has(entry)
        await asyncio.sleep(seconds)
        assert model_cache.has(entry)


async def hold(model_cache: ModelCache, entry: Entry) -> None:
    async with model_cache.pinned(entry):
        await asyncio.sleep(60)


async def test_the_least_recently_used_leaves(backend: SlowBackend, entries: list[Entry]) -> None:
    model_cache = residency_of(backend, entries, 2)
    a, b, c, _ = entries
    for entry in (a, b, a, c):
        await use(model_cache, entry)
    assert backend.loaded == ["a", "c"]
    assert backend.loads == 3


async def test_those_who_wait_share_one_loading(backend: SlowBackend, entries: list[Entry]) -> None:
    model_cache = residency_of(backend, entries, 1)
    backend.let.clear()
    waiting = [asyncio.create_task(use(model_cache, entries[0])) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # the one who began it leaves
    await asyncio.sleep(0)
    backend.let.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError, *[type(None)] * 4]
    assert backend.loads == 1


async def test_never_more_than_may_be_and_nobody_starves(backend: SlowBackend, entries: list[Entry]) -> None:
    model_cache = residency_of(backend, entries, 2)
    async with asyncio.timeout(60):
        await asyncio.gather(*(use(model_cache, entries[i % 4], 0.001) for i in range(80)))
    assert backend.most == 2
    assert len(backend.loaded) == 2


async def test_one_in_use_does_not_leave(backend: SlowBackend, entries: list[Entry]) -> None:
    model_cache = residency_of(backend, entries, 1)
    a, b, *_ = entries
    async with model_cache.pinned(a):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await use(model_cache, b)
        assert backend.loaded == ["a"]
    async with asyncio.timeout(60):
        await use(model_cache, b)
    assert backend.loaded == ["b"]


async def test_a_new_one_is_loaded_beside_those_in_use(backend: SlowBackend, entries: list[Entry]) -> None:
    a, b, *_ = entries
    model_cache = residency_of(backend, [a], 1)
    async with model_cache.pinned(a):
        await model_cache.load(b)
        assert backend.loaded == ["a", "b"]
    async with asyncio.timeout(60):
        while backend.loaded != ["b"]:
            await asyncio.sleep(0.001)


async def test_what_cannot_be_loaded_is_told_and_tried_again(
    backend: SlowBackend, entries: list[Entry]
) -> None:
    model_cache = residency_of(backend, entries, 1)
    backend.broken = True
    with pytest.raises(NotReadyError, match=r"'a' .*be loaded"):
        await use(model_cache, entries[0])
    backend.broken = False
    await use(model_cache, entries[0])
    assert backend.loaded == ["a"]


async def test_dropping_waits_for_those_who_use_it(backend: SlowBackend, entries: list[Entry]) -> None:
    model_cache = residency_of(backend, entries, 2)
    a = entries[0]
    using = asyncio.create_task(hold(model_cache, a))
    while not model_cache.has(a):
        await asyncio.sleep(0.001)
    dropping = asyncio.create_task(model_cache.drop(a))
    await asyncio.sleep(0.01)
    assert backend.loaded == ["a"]
    using.cancel()
    await asyncio.gather(using, dropping, return_exceptions=True)
    assert backend.loaded == []
    assert a not in model_cache.residents
