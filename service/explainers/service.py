"""Explainers of the served models: asked for, made aside, published, switched to, and forgotten."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from compiler.errors import RationaleError
from service.errors import (
    CompileFailedError,
    ConflictError,
    InvalidExplainerError,
    NotReadyError,
    QueueFullError,
    ServiceError,
    UnknownResourceError,
)
from service.explainers.artifact_store import ArtifactStore
from service.explainers.builder import Builder, Progress, ReferenceFiles
from service.explainers.records import (
    HIDDEN,
    Artifact,
    Key,
    Record,
    Stage,
    StageClock,
    to_its_end,
)
from service.explainers.recovery import digests_of, of_today, recover
from service.explainers.spec import ExplainerSpec
from service.inference.checks import check_name
from service.inference.dataplane import DataPlane, Lifecycle
from service.repository.entry import Entry, read_entry
from service.repository.registry import COMPILED, ModelRegistry
from service.settings import Settings

log = logging.getLogger(__name__)

_BUSY_S = 10  # what a client is told to wait when too many compiles are queued


@dataclass(frozen=True)
class Status:
    """An explainer as it is now: its record, how far its compile is, and the entry that answers."""

    record: Record
    progress: Progress | None
    entry: Entry | None
    loaded: bool


class Explainers:
    """The resource, and the tasks that bring about what it was asked for.

    The records say what is so: they change through `RecordStore.exclusively` alone, and the registry follows.

    Attributes:
        published: called after each change of what answers requests; the change is over when it returns.
        grace_s: what is out of use still answers for so long: as long as a request takes at most.
    """

    def __init__(
        self,
        plane: DataPlane,
        artifacts: ArtifactStore,
        references: ReferenceFiles,
        settings: Settings,
    ) -> None:
        self.published: Callable[[], Awaitable[None]] = _nothing
        self.grace_s = plane.timeout_s
        self._plane = plane
        self._artifacts = artifacts
        self._builder = Builder(artifacts, settings, references, plane.metrics)
        self._references = references
        self._max_unsettled = settings.max_compiles + settings.max_queued_compiles
        self._max_hidden_bytes = settings.max_artefact_bytes
        published = plane.repository.entries
        self.store = recover(artifacts, plane.repository)
        self._progress: dict[Key, Progress] = {}
        self._making: dict[Key, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False
        for record in self.store.records.values():
            if record.serving is not None:
                entry = published[self.store.artefacts[record.serving].entry]
                self.store.entries[record.serving] = entry
                plane.model_cache.admit(entry)
        self._show()

    def resume(self) -> None:
        """Go on with what an earlier gateway left unfinished."""
        self._spawn(self._publish())
        for record in self.store.unsettled():
            self._begin(record)
        for digest in self.store.artefacts:
            self._retire(digest, after_s=0)

    async def stop(self) -> None:
        """End compiles; they are resumed when the gateway starts again."""
        self._stopping = True
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    # --- the repository -----------------------------------------------------------------------------------

    async def take_up(self, repository: ModelRegistry) -> None:
        """Answer by these entries too. What explained a model that is another one now is made anew."""
        before = self.store.base.entries
        models = {one.model for one in self.store.records.values()}
        changed = {name for name in models if repository.entries.get(name) is not before.get(name)}
        digests = await asyncio.to_thread(digests_of, changed, repository)
        await self.store.exclusively(partial(self._rebase, repository, changed, digests))
        self._plane.forget_answers()
        self._plane.metrics.unserved_entries.set(len(repository.unserved))

    async def _rebase(self, repository: ModelRegistry, changed: set[str], digests: Mapping[str, str]) -> None:
        self.store.rebase(repository)
        renewed = []
        for one in [one for one in self.store.records.values() if one.model in changed]:
            again = replace(one, stage=Stage.QUEUED) if one.stage is Stage.FAILED else one
            new = of_today(again, self.store.artefacts, digests.get(one.model))
            if new != one:
                self.store.records[one.key] = replace(new, generation=one.generation + 1)
                renewed.append(one)
        await self._publish()
        for one in renewed:
            self._end(one)
            if not self.store.records[one.key].settled and self._plane.serves:
                self._begin(self.store.records[one.key])

    # --- the resource -------------------------------------------------------------------------------------

    async def put(self, model: str, name: str, spec: ExplainerSpec) -> Status:
        """Request an explainer. It is ready in the answer if nothing is to be done for it.

        Raises:
            UnknownModelError, UnknownResourceError: there is no such model or reference set.
            InvalidExplainerError, ConflictError: it cannot be made, or not under this name.
            QueueFullError: as many wait to be made as may.
            StateUnavailableError: it cannot be recorded.
        """
        if check_name(name, "an explainer's", InvalidExplainerError) == COMPILED:
            raise ConflictError(
                f"'{COMPILED}' is what `rationale compile` made: choose another name, or compile it again"
            )
        references = None
        if spec.reference_set is not None:
            references = await asyncio.to_thread(self._references.find, spec.reference_set, model)
        # In a thread: the first one imports the compiler, which takes a second.
        await asyncio.to_thread(partial(spec.asked, referenced=references is not None))
        return self._status(await self._ask(model, name, spec, references))

    async def ensure(
        self, model: str, spec: ExplainerSpec, references: str | None, *, again: bool = False
    ) -> Entry | None:
        """Return the entry that explains `model` so; None while it is still made in the background.

        None is begun where the queue is full.

        Args:
            references: digest of a reference set; its file is found by `ReferenceFiles.path`.
            again: whether one that failed is tried again.

        Raises:
            UnknownModelError, InvalidExplainerError, ConflictError, StateUnavailableError.
        """
        digest = await self.store.digest(model, spec, references)
        for one in self.store.records.values():
            if one.serving == digest:
                self.store.records[one.key] = replace(one, updated_s=time.time())  # used: it stays longer
                return self.store.entries[digest]
        known = self.store.records.get(_hidden(model, digest))
        if known is None or (again and known.stage is Stage.FAILED):
            with contextlib.suppress(QueueFullError):
                await self._ask(*_hidden(model, digest), spec, references)
        return None

    async def made(self, model: str, spec: ExplainerSpec, references: str | None) -> Entry:
        """Return the entry that explains `model` so, once it is made.

        Raises:
            CompileFailedError: it cannot be made.
            NotReadyError: too many others are to be made before.
            And as `ensure`.
        """
        found = await self.ensure(model, spec, references)
        if found is not None:
            return found
        key = _hidden(model, await self.store.digest(model, spec, references))
        if key in self._making:
            await asyncio.wait([self._making[key]])
        record = self.store.records.get(key)
        if record is not None and record.stage is Stage.FAILED:
            raise CompileFailedError(record.error or "it could not be made")
        if record is None or record.serving is None:
            raise NotReadyError("what answers such requests could not be made yet: ask again")
        return self.store.entries[record.serving]

    def get(self, model: str, name: str) -> Status:
        """Return its status. Raises UnknownModelError, InvalidExplainerError, UnknownResourceError."""
        self.store.models.entry(model)
        record = self.store.records.get((model, name))
        if record is None:
            raise UnknownResourceError(f"model '{model}' has no explainer '{name[:80]}'")
        return self._status(record)

    def all_of(self, model: str) -> list[Status]:
        """Return those that were requested by name, and those made for requests. Raises as `get`."""
        self.store.models.entry(model)
        return [self._status(one) for one in self.store.records.values() if one.model == model]

    async def delete(self, model: str, name: str) -> None:
        """Answer no more by it; its artefact goes. Raises as `get`, and StateUnavailableError."""
        gone = self.get(model, name).record
        await self.store.exclusively(partial(self._drop, [gone]))
        self._plane.forget_answers()

    def users(self, references: str) -> list[str]:
        """Return explainers made of a reference set, or being made of it: `model/explainer`."""
        return ["/".join(one.key) for one in self.store.using(references)]

    async def forget(self, references: str) -> None:
        """Delete every explainer and artefact that holds a reference set.

        Requests that run finish. When this returns, no entry on the disk holds its rows, nor the backend.
        """
        store = self.store
        making = [self._making[one.key] for one in store.using(references) if one.key in self._making]
        await store.exclusively(lambda: self._drop(store.using(references)))
        if making:
            await asyncio.wait(making)
        for one in [one for one in store.artefacts.values() if one.references == references]:
            async with self._builder.turn(one.digest):
                await self._delete(one)
        self._plane.forget_answers()

    # --- on the way to an answer --------------------------------------------------------------------------

    async def _ask(self, model: str, name: str, spec: ExplainerSpec, references: str | None) -> Record:
        if self._plane.state is not Lifecycle.READY:
            raise NotReadyError(self._plane.state.value)
        digest = await self.store.digest(model, spec, references)
        return await self.store.exclusively(partial(self._admit, (model, name), spec, digest, references))

    async def _admit(self, key: Key, spec: ExplainerSpec, digest: str, references: str | None) -> Record:
        """Record what is wanted and begin it, if it is not what is there already."""
        old = self.store.records.get(key)
        kept = old.wants_default if old is not None else self.store.lacks_default(key)
        wanted = Record(
            *key,
            generation=old.generation + 1 if old is not None else 1,
            spec={"method": spec.method, **spec.model_dump(mode="json", exclude_defaults=True)},
            digest=digest,
            references=references,
            wants_default=kept if spec.default is None else spec.default,
            serving=old.serving if old is not None else None,
            is_default=old.is_default if old is not None else False,
            updated_s=time.time(),
        )
        if old is not None and old.digest == digest and old.stage is not Stage.FAILED:
            same = replace(old, spec=wanted.spec, wants_default=wanted.wants_default)
            return await (self._settle(same) if old.settled else self.store.save(same))
        unsettled = [one for one in self.store.unsettled() if one.key != key]
        if len(unsettled) >= self._max_unsettled:
            raise QueueFullError(f"{len(unsettled)} explainers are being made: try again later", _BUSY_S)
        await self.store.save(wanted)
        self._begin(wanted)
        return wanted

    def _begin(self, record: Record) -> None:
        """Begin it in place of what was being made under the same name."""
        before = self._making.get(record.key)
        if before is not None:
            before.cancel()
        self._progress.pop(record.key, None)
        self._making[record.key] = self._spawn(self._make(record))

    async def _make(self, record: Record) -> None:
        """Make the entry that answers out of the record, or find the reason why there is none."""
        clock = StageClock()

        def tell(stage: Stage, progress: Progress | None) -> None:
            clock.enter(stage)
            self._tell(record, stage, progress)

        try:
            async with self._builder.turn(record.digest):
                model = await self.store.models.get(record.model)
                known = self.store.artefacts.get(record.digest)
                artefact = await self._builder.supply(record, model, known, tell)
                self.store.artefacts[record.digest] = artefact
                tell(Stage.LOADING, None)
                await self._load(artefact)
                ready = replace(record, stage=Stage.READY, timings=clock.ended(), attempts=0)
                await self.store.exclusively(partial(self._switch, ready))
        except RationaleError as error:
            await self._fail(record, str(error), clock.ended())
        except Exception:
            log.exception("explainer %s of %s", record.name, record.model)
            await self._fail(record, "an unexpected fault; the server's log tells more", clock.ended())
        finally:
            if self._making.get(record.key) is asyncio.current_task():
                del self._making[record.key]
                self._progress.pop(record.key, None)
            if not self.store.in_use(record.digest):
                self._retire(record.digest, after_s=0)

    async def _load(self, artefact: Artifact) -> None:
        """Load its entry, warm when this returns. Raises RepositoryError, NotReadyError."""
        if artefact.digest in self.store.entries:
            return
        entry = await asyncio.to_thread(read_entry, self._artifacts.repository / artefact.entry)
        try:
            await self._plane.model_cache.load(entry)
        except BaseException:
            if not self._stopping:  # the backend is about to stop, loading or not
                await to_its_end(self._plane.model_cache.drop(entry))
            raise
        self.store.entries[artefact.digest] = entry

    async def _switch(self, ready: Record) -> None:
        """Switch requests over to another entry, from this moment on."""
        now = self.store.current(ready)
        if now is None:
            return  # another one was asked for meanwhile, or none
        await self._settle(
            replace(ready, spec=now.spec, wants_default=now.wants_default, serving=ready.digest)
        )
        if gone := self.store.surplus(self._max_hidden_bytes):
            await self._drop(gone)

    async def _settle(self, record: Record) -> Record:
        """Record who serves, and who by default; other workers know it before it is shown."""
        before = self.store.records[record.key]
        record = replace(record, is_default=record.wants_default, updated_s=time.time())
        others = [
            replace(one, is_default=False, wants_default=one.wants_default and not one.settled)
            for one in self.store.records.values()
            if record.is_default and one.is_default and one.model == record.model and one.key != record.key
        ]
        await self.store.save(record, *others, first=self.published)
        self._show()
        if before.serving not in (None, record.serving):
            self._retire(before.serving)
        return record

    async def _fail(self, record: Record, error: str, timings: dict[str, float]) -> None:
        log.warning("explainer %s of %s failed: %s", record.name, record.model, error)

        async def note() -> None:
            now = self.store.current(record)
            if now is None:
                return
            failed = replace(now, stage=Stage.FAILED, error=error, timings=timings, updated_s=time.time())
            self.store.records[record.key] = failed
            try:
                await self.store.save(failed)
            except ServiceError as fault:  # a full disk may be why it failed
                log.error("its failure could not be recorded: %s", fault)

        await self.store.exclusively(note)

    # --- out of use ---------------------------------------------------------------------------------------

    async def _drop(self, gone: list[Record]) -> None:
        """Take explainers out of the records and the registry; compiles for them end."""
        await self.store.write(removed=gone)
        await self._publish()
        for record in gone:
            self._end(record)

    def _end(self, record: Record) -> None:
        """End the compile for it, and free what answered, which nobody finds any more."""
        if record.key in self._making:
            self._making[record.key].cancel()
        self._retire(record.serving)

    def _retire(self, digest: str | None, after_s: float | None = None) -> None:
        """Delete an artefact that nobody uses, when those who looked it up before have been answered."""
        if digest is not None and not self._stopping:
            self._spawn(self._retired(digest, self.grace_s if after_s is None else after_s))

    async def _retired(self, digest: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        try:
            async with self._builder.turn(digest):
                if not self.store.in_use(digest) and digest in self.store.artefacts:
                    await self._delete(self.store.artefacts[digest])
        except ServiceError as error:
            log.error("what is not used any more stays where it is: %s", error)

    async def _delete(self, artefact: Artifact) -> None:
        """Take it off the backend, when those who use it are answered, and off the disk. Hold its turn."""
        entry = self.store.entries.pop(artefact.digest, None)
        if entry is not None:
            await to_its_end(self._plane.model_cache.drop(entry))
        else:  # an earlier gateway may have left it loaded in a server
            with contextlib.suppress(RationaleError):
                folder = self._artifacts.repository / artefact.entry
                await self._plane.backend.unload(await asyncio.to_thread(read_entry, folder))
        await to_its_end(asyncio.to_thread(self._artifacts.remove, artefact.entry))
        await self.store.exclusively(partial(self.store.write, removed=[artefact]))

    # --- what is so ---------------------------------------------------------------------------------------

    def _status(self, record: Record) -> Status:
        entry = self.store.entries.get(record.serving or "")
        loaded = entry is not None and self._plane.model_cache.has(entry)
        return Status(record, self._progress.get(record.key), entry, loaded)

    def _tell(self, record: Record, stage: Stage, progress: Progress | None) -> None:
        now = self.store.current(record)
        if now is not None:
            self.store.records[record.key] = replace(now, stage=stage)
            if progress is not None:
                self._progress[record.key] = progress

    def _show(self) -> None:
        """Answer requests from here on by what the records say."""
        self._plane.repository = self.store.registry()

    async def _publish(self) -> None:
        self._show()
        await self.published()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _nothing() -> None:
    pass


def _hidden(model: str, digest: str) -> Key:
    """Return the key of an explainer that no person requested."""
    return model, f"{HIDDEN}{digest[:16]}"
