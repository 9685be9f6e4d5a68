"""Follower of the other replicas: it adopts their changes and waits until they adopt this process's."""

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
    ExplainerRecord,
    Key,
    RecordStore,
    StateSnapshot,
    lease_of,
    to_its_end,
)
from rationale_service.models.explainers.spec import ExplainerSpec
from rationale_service.state.replica import Lease

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_S = 0.25  # between two looks at other processes' changes
_HEARD_S = 2.0  # between two signs of life for other machines
_FOLLOWED_S = 3.0  # longest wait for other processes to adopt a change


async def _no_change() -> None:
    """Do nothing."""


class ExplainerTasks:
    """The background tasks of this process.

    Attributes:
        making: tasks that make an explainer, by its key.
        ending: cancelled tasks that still hold files to be deleted after them.
        unshown: explainers that are ready here, but that not every other process knows yet.
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
        """Cancel the making of an explainer that is no longer wanted."""
        task = self.making[key]
        task.cancel()
        self.ending.add(task)
        task.add_done_callback(self.ending.discard)

    async def stop(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        self.stopping = True
        while self._running:
            for task in self._running:
                task.cancel()
            await asyncio.wait(self._running)


class ReplicaSync:
    """Follower of the other processes, which reports the adopted revision to them.

    Attributes:
        elsewhere: leases of other processes, with their progress.
    """

    def __init__(
        self,
        plane: DataPlane,
        artifacts: ArtifactStore,
        store: RecordStore,
        tasks: ExplainerTasks,
        begin: Callable[[ExplainerRecord], None],
        retire: Callable[[str], None],
    ) -> None:
        """Take the objects that other processes' changes affect.

        Args:
            begin: function that makes an explainer on which no process works.
            retire: function that deletes the artifact of a digest once it is unused.
        """
        self.elsewhere: Mapping[str, Lease] = {}
        self._plane = plane
        self._artifacts = artifacts
        self._state = artifacts.state
        self._store = store
        self._tasks = tasks
        self._begin = begin
        self._retire = retire
        self._noted, self._heard_s = -1, 0.0  # the revision and time that others know
        self._news: StateSnapshot | None = None  # records that this process's other parts lack

    async def wait_until_adopted(self) -> None:
        """Wait until every other process serves the present revision, or its time to do so is over."""
        end_s = time.monotonic() + _FOLLOWED_S
        with contextlib.suppress(ServiceError):
            revision = await asyncio.to_thread(self._state.revision)
            while await asyncio.to_thread(self._state.behind, revision) and time.monotonic() < end_s:
                await asyncio.sleep(LOOK_S / 5)

    async def exclusively(self, change: Callable[[], Awaitable[T]]) -> T:
        """Adopt others' changes, then run a change alone: see `RecordStore.exclusively`."""
        return await self._store.exclusively(change, self._adopt)

    async def adopt_changes(self) -> None:
        """Adopt others' changes, and change nothing else. Raises StateUnavailableError."""
        await self.exclusively(_no_change)

    def publish(self) -> None:
        """Publish the registry of the present records to the data plane."""
        before, now = self._plane.repository.made_by_others, self._store.registry()
        self._plane.repository = now
        if now.made_by_others not in ("", before):
            log.warning(now.made_by_others)

    async def follow(self, on_change: Callable[[StateSnapshot], Awaitable[None]]) -> None:
        """Refresh for ever at an interval: see `refresh`."""
        is_lost = False
        while True:
            try:
                await self.refresh(on_change)
                is_lost = False
            except ServiceError as error:
                if not is_lost:
                    log.error("other processes are not followed: %s", error)
                is_lost = True
            except Exception:  # a fault in one change must not stop later ones
                if not is_lost:
                    log.exception("other processes are not followed")
                is_lost = True
            await asyncio.sleep(LOOK_S)

    async def refresh(self, on_change: Callable[[StateSnapshot], Awaitable[None]]) -> None:
        """Adopt other processes' changes, and begin explainers that nobody makes. Raises as `State.open`.

        Args:
            on_change: function that gets the present records if others have written them.
        """
        if not (self._state.exists or self._state.is_shared):
            return
        await self.adopt_changes()
        if self._tasks.ending:  # they hold files that may now be deleted
            await asyncio.wait(self._tasks.ending)
        news, self._news = self._news, None
        if news is not None:
            await on_change(news)
        revision, now_s = self._store.revision, time.monotonic()
        if revision != self._noted or (self._state.is_remote and now_s > self._heard_s + _HEARD_S):
            await asyncio.to_thread(self._state.follow, revision)
            self._noted, self._heard_s = revision, now_s
        waiting = [record for record in self._store.unsettled() if record.key not in self._tasks.making]
        self.elsewhere = await asyncio.to_thread(self._state.leases) if waiting else {}
        for record in waiting:
            if lease_of(record.digest) not in self.elsewhere and await self._is_of_here(record):
                self._begin(record)

    async def _is_of_here(self, record: ExplainerRecord) -> bool:
        """Tell whether a record is for this process's version of the model."""
        spec = ExplainerSpec.model_validate(record.spec)
        try:
            return await self._store.digest(record.model, spec, record.references) == record.digest
        except (UnknownModelError, ConflictError):  # missing, or not loaded in its present version
            return False
        except ServiceError:  # the compile will meet and report it
            return True

    async def _adopt(self, snapshot: StateSnapshot) -> None:
        """Adopt other processes' records; continue work here that is still wanted."""
        former_artifacts = self._store.artifacts
        self._store.artifacts = {record.digest: record for record in snapshot.artifacts}
        await self.open_entries(snapshot.records)  # before this process shows them as ready
        former_records, records = (
            self._store.records,
            {record.key: self._merge(record) for record in snapshot.records},
        )
        self._store.records = records
        self._store.canaries = {record.model: record for record in snapshot.canaries}
        self.publish()
        self._plane.forget_answers()
        for key, record in former_records.items():
            current = records.get(key)
            is_over = current is None or current.generation != record.generation or current.settled
            if key in self._tasks.making and is_over and key not in self._tasks.unshown:
                self._tasks.cancel(key)
            if record.serving is not None and (current is None or current.serving != record.serving):
                self._retire(record.serving)
        for digest in former_artifacts.keys() - self._store.artifacts.keys():
            self._tasks.spawn(self._free(former_artifacts[digest]))
        self._news = snapshot

    def _merge(self, record: ExplainerRecord) -> ExplainerRecord:
        """Return a record with this process's own knowledge of its stage and last use."""
        mine = self._store.records.get(record.key)
        if mine is None or mine.generation != record.generation:
            return record
        stage = mine.stage if record.key in self._tasks.making and not record.settled else record.stage
        return replace(record, stage=stage, updated_s=max(record.updated_s, mine.updated_s))

    async def open_entries(self, records: Iterable[ExplainerRecord]) -> None:
        """Open the serving entries of records.

        This process skips entries that it cannot read, and those for another version of a model than its own.
        """
        for record in list(records):
            artifact = self._store.artifacts.get(record.serving or "")
            if artifact is None or artifact.digest in self._store.entries:
                continue
            if await asyncio.to_thread(self._store.models.digest, record.model) not in (
                None,
                artifact.model_digest,
            ):
                log.warning("%s explains another version of %s than is here", artifact.entry, record.model)
                continue
            try:
                entry = await asyncio.to_thread(self._artifacts.read, artifact)
            except RationaleError as error:
                log.error("explainer %s cannot be served: %s", artifact.entry, error)
                continue
            self._store.entries[artifact.digest] = entry
            self._plane.model_cache.admit(entry)

    async def _free(self, artifact: Artifact) -> None:
        """Free an artifact that another process has deleted, after its running requests."""
        entry = self._store.entries.pop(artifact.digest, None)
        if entry is not None:
            await to_its_end(self._plane.model_cache.drop(entry))
        with contextlib.suppress(ServiceError):  # the next start sweeps it
            await to_its_end(asyncio.to_thread(self._artifacts.forget, artifact))
