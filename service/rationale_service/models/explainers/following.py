"""The other replicas: what they have written is taken up here, and what is written here waits for them."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from rationale.errors import RationaleError
from rationale_service.engine.dataplane import DataPlane
from rationale_service.errors import ConflictError, ServiceError, UnknownModelError
from rationale_service.models.explainers.artifact_store import ArtifactStore
from rationale_service.models.explainers.records import (
    Artifact,
    Key,
    Known,
    Record,
    RecordStore,
    lease_of,
    to_its_end,
)
from rationale_service.models.explainers.spec import ExplainerSpec
from rationale_service.state.replica import Lease

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_S = 0.25  # between two looks at what other processes have written
_HEARD_S = 2.0  # between two signs of life for other machines
_FOLLOWED_S = 3.0  # a process that takes longer to take up a change does so by itself


async def nothing(_: object = None) -> None:
    """Change nothing, or report to nobody."""


class Tasks:
    """What this process does in the background.

    Attributes:
        making: tasks that make an explainer.
        ending: those of them that were cancelled, and still hold what may be deleted then.
        unshown: ready here, and not known to every other process yet.
    """

    def __init__(self) -> None:
        self.making: dict[Key, asyncio.Task[None]] = {}
        self.ending: set[asyncio.Task[None]] = set()
        self.unshown: set[Key] = set()
        self.stopping = False
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Begin a task that `stop` cancels."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def cancel(self, key: Key) -> None:
        """Cancel what makes an explainer that is not wanted any more."""
        task = self.making[key]
        task.cancel()
        self.ending.add(task)
        task.add_done_callback(self.ending.discard)

    async def stop(self) -> None:
        """Cancel all, and return when they have ended."""
        self.stopping = True
        while self._running:
            for task in self._running:
                task.cancel()
            await asyncio.wait(self._running)


class Following:
    """Follows the other processes, and reports to them how far it has followed.

    Attributes:
        elsewhere: what other processes are making.
    """

    def __init__(
        self,
        plane: DataPlane,
        artifacts: ArtifactStore,
        store: RecordStore,
        tasks: Tasks,
        begin: Callable[[Record], None],
        retire: Callable[[str], None],
    ) -> None:
        """Take what changes with what others write.

        Args:
            begin: makes what nobody is at.
            retire: deletes the artifact of a digest, when nobody uses it any more.
        """
        self.elsewhere: Mapping[str, Lease] = {}
        self._plane = plane
        self._artifacts = artifacts
        self._state = artifacts.state
        self._store = store
        self._tasks = tasks
        self._begin = begin
        self._retire = retire
        self._noted, self._heard_s = -1, 0.0  # what others know of this process
        self._news: Known | None = None  # that nobody else in this process has heard of yet

    async def published(self) -> None:
        """Return when every other process answers by what is recorded now, or has had the time for it."""
        end_s = time.monotonic() + _FOLLOWED_S
        with contextlib.suppress(ServiceError):
            revision = await asyncio.to_thread(self._state.revision)
            while await asyncio.to_thread(self._state.behind, revision) and time.monotonic() < end_s:
                await asyncio.sleep(LOOK_S / 5)

    async def exclusively(self, change: Callable[[], Awaitable[T]]) -> T:
        """Run a change alone, after what others have written was taken up: see `RecordStore.exclusively`."""
        return await self._store.exclusively(change, self._adopt)

    def show(self) -> None:
        """Answer requests from here on by what the records say."""
        before, now = self._plane.repository.made_by_others, self._store.registry()
        self._plane.repository = now
        if now.made_by_others not in ("", before):
            log.warning(now.made_by_others)

    async def follow(self, followed: Callable[[Known], Awaitable[None]]) -> None:
        """Look for what others write, for ever: see `refresh`."""
        is_lost = False
        while True:
            try:
                await self.refresh(followed)
                is_lost = False
            except ServiceError as error:
                if not is_lost:
                    log.error("other processes are not followed: %s", error)
                is_lost = True
            except Exception:  # a fault at one change: later ones are followed all the same
                if not is_lost:
                    log.exception("other processes are not followed")
                is_lost = True
            await asyncio.sleep(LOOK_S)

    async def refresh(self, followed: Callable[[Known], Awaitable[None]]) -> None:
        """Take up what other processes have written, and begin what nobody is at. Raises as `State.open`.

        Args:
            followed: called with what is recorded now, if others have written it.
        """
        if not (self._state.exists or self._state.is_shared):
            return
        await self.exclusively(nothing)
        if self._tasks.ending:  # they hold what may be deleted now
            await asyncio.wait(self._tasks.ending)
        news, self._news = self._news, None
        if news is not None:
            await followed(news)
        revision, now_s = self._store.revision, time.monotonic()
        if revision != self._noted or (self._state.is_remote and now_s > self._heard_s + _HEARD_S):
            await asyncio.to_thread(self._state.follow, revision)
            self._noted, self._heard_s = revision, now_s
        waiting = [one for one in self._store.unsettled() if one.key not in self._tasks.making]
        self.elsewhere = await asyncio.to_thread(self._state.leases) if waiting else {}
        for one in waiting:
            if lease_of(one.digest) not in self.elsewhere and await self._is_of_here(one):
                self._begin(one)

    async def _is_of_here(self, record: Record) -> bool:
        """Return whether what is wanted explains the model that is here, and not another version of it."""
        spec = ExplainerSpec.model_validate(record.spec)
        try:
            return await self._store.digest(record.model, spec, record.references) == record.digest
        except (UnknownModelError, ConflictError):  # not here, or not loaded as it is on the disk now
            return False
        except ServiceError:  # which its making meets, too, and reports
            return True

    async def _adopt(self, known: Known) -> None:
        """Go by what other processes have written; what is being made here goes on while it is wanted."""
        made = self._store.artifacts
        self._store.artifacts = {one.digest: one for one in known.artifacts}
        await self.open_entries(known.records)  # before anybody here hears that they are ready
        before, now = self._store.records, {one.key: self._merged(one) for one in known.records}
        self._store.records = now
        self._store.splits = {one.model: one for one in known.splits}
        self.show()
        self._plane.forget_answers()
        for key, one in before.items():
            same = now.get(key)
            is_over = same is None or same.generation != one.generation or same.settled
            if key in self._tasks.making and is_over and key not in self._tasks.unshown:
                self._tasks.cancel(key)
            if one.serving is not None and (same is None or same.serving != one.serving):
                self._retire(one.serving)
        for digest in made.keys() - self._store.artifacts.keys():
            self._tasks.spawn(self._let_go(made[digest]))
        self._news = known

    def _merged(self, one: Record) -> Record:
        """Return a record with what only this process knows of it: how far it is, and when it was used."""
        mine = self._store.records.get(one.key)
        if mine is None or mine.generation != one.generation:
            return one
        stage = mine.stage if one.key in self._tasks.making and not one.settled else one.stage
        return replace(one, stage=stage, updated_s=max(one.updated_s, mine.updated_s))

    async def open_entries(self, records: Iterable[Record]) -> None:
        """Have the entries by which records answer.

        Not served by this process are those that cannot be read, and those that explain another version of a
        model than it has.
        """
        for one in list(records):
            artifact = self._store.artifacts.get(one.serving or "")
            if artifact is None or artifact.digest in self._store.entries:
                continue
            if await asyncio.to_thread(self._store.models.digest, one.model) not in (
                None,
                artifact.model_digest,
            ):
                log.warning("%s explains another version of %s than is here", artifact.entry, one.model)
                continue
            try:
                entry = await asyncio.to_thread(self._artifacts.read, artifact)
            except RationaleError as error:
                log.error("explainer %s is not taken up: %s", artifact.entry, error)
                continue
            self._store.entries[artifact.digest] = entry
            self._plane.model_cache.admit(entry)

    async def _let_go(self, artifact: Artifact) -> None:
        """Free what another process has deleted, when those who use it are answered."""
        entry = self._store.entries.pop(artifact.digest, None)
        if entry is not None:
            await to_its_end(self._plane.model_cache.drop(entry))
        with contextlib.suppress(ServiceError):  # it is swept at the next start
            await to_its_end(asyncio.to_thread(self._artifacts.forget, artifact))
