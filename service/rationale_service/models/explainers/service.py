"""Explainers of the served models: request, make, publish, switch to, and delete them."""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial

from rationale.errors import RationaleError
from rationale_service.engine.checks import check_name
from rationale_service.engine.dataplane import DataPlane, Lifecycle
from rationale_service.errors import (
    CompileFailedError,
    ConflictError,
    InvalidExplainerError,
    NotReadyError,
    QueueFullError,
    ServiceError,
    StateUnavailableError,
    UnknownResourceError,
)
from rationale_service.models.explainers.artifact_store import ArtifactStore
from rationale_service.models.explainers.builder import ArtifactBuilder, Progress, ReferenceFiles
from rationale_service.models.explainers.records import (
    HIDDEN,
    Artifact,
    CanaryRecord,
    ExplainerRecord,
    Key,
    Stage,
    StageClock,
    StateSnapshot,
    lease_of,
    to_its_end,
)
from rationale_service.models.explainers.recovery import digests_of, of_today, recover
from rationale_service.models.explainers.replica_sync import LOOK_S, ExplainerTasks, ReplicaSync
from rationale_service.models.explainers.spec import ExplainerSpec
from rationale_service.repository.entry import Entry, read_entry
from rationale_service.repository.registry import COMPILED, ModelRegistry
from rationale_service.settings import Settings

log = logging.getLogger(__name__)

_BUSY_S = 10  # retry time for clients if the queue of compiles is full
_RENEW_S = 1.0  # between two renewals of a lease
_ATTEMPTS = 3  # processes that may die of one explainer: the third gives up


@dataclass(frozen=True)
class ExplainerState:
    """An explainer's present status: its record, its compile's progress, and the entry that answers."""

    record: ExplainerRecord
    progress: Progress | None
    entry: Entry | None
    loaded: bool


class Explainers:
    """The explainers as a resource, and the tasks that make them.

    The records are authoritative: only `ReplicaSync.exclusively` changes them, and the registry follows.

    Attributes:
        sync: follower of other processes' changes and leases.
        grace_s: time for which a retired artifact still answers: the longest duration of a request.
    """

    def __init__(
        self,
        plane: DataPlane,
        artifacts: ArtifactStore,
        references: ReferenceFiles,
        settings: Settings,
    ) -> None:
        self.grace_s = plane.timeout_s
        self._plane = plane
        self._artifacts = artifacts
        self._builder = ArtifactBuilder(artifacts, settings, references, plane.metrics)
        self._references = references
        self._max_unsettled = settings.max_compiles + settings.max_queued_compiles
        self._max_hidden_bytes = settings.max_artifact_bytes
        self._state = artifacts.state
        self.store = recover(artifacts, plane.repository)
        self._progress: dict[Key, Progress] = {}
        self._tasks = ExplainerTasks()
        self.sync = ReplicaSync(plane, artifacts, self.store, self._tasks, self._begin, self._retire)
        for entry in self.store.entries.values():
            plane.model_cache.admit(entry)
        self.sync.publish()

    async def resume(self, on_change: Callable[[StateSnapshot], Awaitable[None]]) -> None:
        """Resume unfinished work of an earlier process, and follow the other processes.

        Args:
            on_change: function that gets the records whenever another process has written.
        """
        with contextlib.suppress(ServiceError):  # `follow` logs it soon
            await self.sync.refresh(on_change)
        self._tasks.spawn(self.sync.follow(on_change))
        self._tasks.spawn(self._clear())

    async def stop(self) -> None:
        """End compiles; the gateway resumes them at its next start."""
        await self._tasks.stop()

    async def _clear(self) -> None:
        """Delete unused artifacts; at once if there is no other process that could use them."""
        with contextlib.suppress(ServiceError):
            has_others = await asyncio.to_thread(self._state.behind, sys.maxsize)
            for digest in self.store.artifacts:
                self._retire(digest, after_s=None if has_others else 0)

    # --- the repository -----------------------------------------------------------------------------------

    async def take_up(self, repository: ModelRegistry) -> None:
        """Adopt the repository's entries; compile explainers of changed models again."""
        before = self.store.base.entries
        models = {record.model for record in self.store.records.values()}
        changed = {name for name in models if repository.entries.get(name) is not before.get(name)}
        digests = await asyncio.to_thread(digests_of, changed, repository)
        try:
            renewed = await self.sync.exclusively(partial(self._rebase, repository, changed, digests))
        except StateUnavailableError as error:  # the models still answer
            log.error("explainers of changed models are not compiled again: %s", error)
            self.store.rebase(repository)
            renewed = []
        self.sync.publish()
        for record in renewed:
            self._end(record)
            if not self.store.records[record.key].settled and self._plane.serves:
                self._begin(self.store.records[record.key])
        self._plane.forget_answers()
        self._plane.metrics.unserved_entries.set(len(repository.unserved))

    async def _rebase(
        self, repository: ModelRegistry, changed: set[str], digests: Mapping[str, str]
    ) -> list[ExplainerRecord]:
        """Adopt the repository; return the former records of explainers that are compiled again."""
        renewed = {}
        for record in [record for record in self.store.records.values() if record.model in changed]:
            retried = replace(record, stage=Stage.QUEUED) if record.stage is Stage.FAILED else record
            new = of_today(retried, self.store.artifacts, digests.get(record.model))
            if new != record:
                renewed[record.key] = replace(new, generation=record.generation + 1)
        before = [self.store.records[key] for key in renewed]
        try:
            if renewed:
                await self.store.write([*renewed.values()])
        except ServiceError as error:  # the next start compiles them again
            log.error("%s", error)
        self.store.rebase(repository)
        self.store.records.update(renewed)
        # Open entries that others have made of the present models.
        await self.sync.open_entries(self.store.records.values())
        return before

    # --- the resource -------------------------------------------------------------------------------------

    async def put(self, model: str, name: str, spec: ExplainerSpec) -> ExplainerState:
        """Request an explainer; return its status, which is ready if nothing has to be made.

        Raises:
            UnknownModelError, UnknownResourceError: if there is no such model or reference set.
            InvalidExplainerError, ConflictError: if it cannot be made, or not under this name.
            QueueFullError: if the queue of compiles is full.
            StateUnavailableError: if it cannot be recorded.
        """
        if check_name(name, "an explainer's", InvalidExplainerError) == COMPILED:
            raise ConflictError(
                f"'{COMPILED}' is the explainer that `rationale compile` wrote: choose another name, or "
                "compile it again"
            )
        references = None
        if spec.reference_set is not None:
            references = await asyncio.to_thread(self._references.find, spec.reference_set, model)
        # A thread, because the first call imports the compiler, which takes a second.
        await asyncio.to_thread(partial(spec.requested, referenced=references is not None))
        spec = self._with_compiled_names(model, spec)
        record = await self._ask(model, name, spec, references)
        await self.sync.wait_until_adopted()
        return self._status(record)

    async def ensure(
        self, model: str, spec: ExplainerSpec, references: str | None, *, retry: bool = False
    ) -> Entry | None:
        """Return the entry that explains `model` by `spec`; None while it is made in the background.

        No compile begins if the queue is full.

        Args:
            references: digest of a reference set; `ReferenceFiles.path` returns its file.
            retry: True to retry a failed explainer.

        Raises:
            UnknownModelError, InvalidExplainerError, ConflictError: if the model cannot be explained so.
            StateUnavailableError: if the explainer cannot be recorded.
        """
        digest = await self.store.digest(model, spec, references)
        for serving in self.store.records.values():
            if serving.serving == digest and digest in self.store.entries:
                # Recent use keeps it from being deleted as surplus.
                self.store.records[serving.key] = replace(serving, updated_s=time.time())
                return self.store.entries[digest]
        record = self.store.records.get(_hidden_key(model, digest))
        if record is None or (retry and record.stage is Stage.FAILED):
            with contextlib.suppress(QueueFullError):
                await self._ask(*_hidden_key(model, digest), spec, references)
        return None

    async def wait_for_entry(self, model: str, spec: ExplainerSpec, references: str | None) -> Entry:
        """Wait for the entry that explains `model` by `spec`, and return it.

        Raises:
            CompileFailedError: if it cannot be made.
            NotReadyError: if the queue of compiles is full.
            UnknownModelError, InvalidExplainerError, ConflictError, StateUnavailableError: if `ensure` raises
                them.
        """
        entry = await self.ensure(model, spec, references)
        if entry is not None:
            return entry
        key = _hidden_key(model, await self.store.digest(model, spec, references))
        while (record := self.store.records.get(key)) is not None and not record.settled:
            if self._tasks.stopping:
                break
            making = self._tasks.making.get(key)
            await (asyncio.sleep(LOOK_S) if making is None else asyncio.wait([making]))
        if record is not None and record.stage is Stage.FAILED:
            raise CompileFailedError(record.error or "the compile failed")
        if record is None or record.serving not in self.store.entries:
            raise NotReadyError("the explainer for these references is not ready: try again later")
        return self.store.entries[record.serving]

    def get(self, model: str, name: str) -> ExplainerState:
        """Return a status. Raises UnknownModelError, InvalidExplainerError, UnknownResourceError."""
        self.store.models.entry(model)
        record = self.store.records.get((model, name))
        if record is None:
            raise UnknownResourceError(f"model '{model}' has no explainer '{name[:80]}'")
        return self._status(record)

    def all_of(self, model: str) -> list[ExplainerState]:
        """Return the statuses of a model's explainers, named and made for requests. Raises as `get`."""
        self.store.models.entry(model)
        return [self._status(record) for record in self.store.records.values() if record.model == model]

    def canary(self, model: str) -> CanaryRecord:
        """Return a model's canary. Raises as `get`."""
        self.store.models.entry(model)
        canary = self.store.canaries.get(model)
        if canary is None:
            raise UnknownResourceError(
                f"model '{model[:80]}' has no canary: its default explainer answers all requests"
            )
        return canary

    async def put_canary(self, canary: CanaryRecord) -> CanaryRecord:
        """Let an explainer answer a share of the requests that name none.

        Raises:
            UnknownModelError, InvalidExplainerError: if there is no such model that could have explainers.
            UnknownResourceError: if it has no such explainer that answers.
            ConflictError: if the explainer is the default, or the model has no default.
            StateUnavailableError: if the canary cannot be recorded.
        """

        async def note() -> None:
            registry, plain = self._plane.repository, self.store.models.entry(canary.model)
            entry = registry.explainer(canary.model, explainer=canary.explainer)
            default = registry.default_explainer(plain)
            if default is None or default is entry:
                reason = "is the default already" if default is entry else "would be the only one"
                raise ConflictError(
                    f"a canary answers beside the default, and '{canary.explainer[:80]}' {reason}"
                )
            await self.store.write([canary])
            self.sync.publish()

        await self.sync.exclusively(note)
        await self.sync.wait_until_adopted()
        return canary

    async def delete_canary(self, model: str) -> None:
        """Let the default answer all requests again. Raises as `canary`, and StateUnavailableError."""

        async def note() -> None:
            await self.store.write(removed=[self.canary(model)])
            self.sync.publish()

        await self.sync.exclusively(note)
        await self.sync.wait_until_adopted()

    async def delete(self, model: str, name: str) -> None:
        """Delete an explainer and its artifact. Raises as `get`, and StateUnavailableError."""
        gone = self.get(model, name).record
        await self.sync.exclusively(partial(self._drop, [gone]))
        await self.sync.wait_until_adopted()
        self._plane.forget_answers()

    def users(self, references: str) -> list[str]:
        """Return explainers made of a reference set, finished or not, as `model/explainer`."""
        return ["/".join(record.key) for record in self.store.using(references)]

    async def forget(self, references: str) -> None:
        """Delete every explainer and artifact that holds a reference set.

        Running requests finish. After this neither the disk nor the backend holds an entry with its rows.
        """
        store = self.store
        making = [
            self._tasks.making[item.key] for item in store.using(references) if item.key in self._tasks.making
        ]
        await self.sync.exclusively(lambda: self._drop(store.using(references)))
        if making:
            await asyncio.wait(making)
        await self.sync.wait_until_adopted()
        for item in [item for item in store.artifacts.values() if item.references == references]:
            async with self._builder.turn(item.digest):
                await self._delete(item)
        await self.sync.wait_until_adopted()
        self._plane.forget_answers()

    # --- on the way to an answer --------------------------------------------------------------------------

    def _with_compiled_names(self, model: str, spec: ExplainerSpec) -> ExplainerSpec:
        """Return a spec with the feature names of the compiled model.

        Raises InvalidExplainerError for other names: callers who name features would be refused.
        """
        compiled = self.store.base.compiled(model)
        compiled_names = (
            None if compiled is None or compiled.manifest is None else compiled.manifest.given_names
        )
        input_names, features = spec.inputs, spec.features
        compiled_names_in_use = {
            n: list(names)
            for n, names in (compiled_names or {}).items()
            if input_names is None or n in input_names
        }
        for name, names in compiled_names_in_use.items():
            if (
                features is not None
                and (features.get(name, names) if isinstance(features, dict) else features) != names
            ):
                raise InvalidExplainerError(
                    f"features: all explainers of a model share its names, and '{name}' was compiled with "
                    "others: leave `features` out"
                )
        if not compiled_names_in_use or isinstance(features, list):
            return spec
        return spec.model_copy(update={"features": {**compiled_names_in_use, **(features or {})}})

    async def _ask(
        self, model: str, name: str, spec: ExplainerSpec, references: str | None
    ) -> ExplainerRecord:
        if self._plane.state is not Lifecycle.READY:
            raise NotReadyError(self._plane.state.value)
        digest = await self.store.digest(model, spec, references)
        record = await self.sync.exclusively(partial(self._admit, (model, name), spec, digest, references))
        return await self._settle(record) if record.settled else record

    async def _admit(
        self, key: Key, spec: ExplainerSpec, digest: str, references: str | None
    ) -> ExplainerRecord:
        """Record a requested explainer and begin to make it; return a settled record if it exists already."""
        old = self.store.records.get(key)
        is_default = old.wants_default if old is not None else self.store.lacks_default(key)
        record = ExplainerRecord(
            *key,
            generation=old.generation + 1 if old is not None else 1,
            spec={"method": spec.method, **spec.model_dump(mode="json", exclude_defaults=True)},
            digest=digest,
            references=references,
            wants_default=is_default if spec.default is None else spec.default,
            serving=old.serving if old is not None else None,
            is_default=old.is_default if old is not None else False,
            updated_s=time.time(),
        )
        if old is not None and old.digest == digest and old.stage is not Stage.FAILED:
            same = replace(old, spec=record.spec, wants_default=record.wants_default)
            return same if old.settled else await self.store.save(same)
        unsettled = [item for item in self.store.unsettled() if item.key != key]
        if len(unsettled) >= self._max_unsettled:
            raise QueueFullError(f"{len(unsettled)} explainers are being compiled: try again later", _BUSY_S)
        await self.store.save(record)
        self._begin(record)
        return record

    def _begin(self, record: ExplainerRecord) -> None:
        """Begin to make an explainer; cancel the making of an older one of the same name."""
        before = self._tasks.making.get(record.key)
        if before is not None:
            before.cancel()
        self._progress.pop(record.key, None)
        self._tasks.making[record.key] = self._tasks.spawn(self._make(record))

    async def _make(self, record: ExplainerRecord) -> None:
        """Make and publish the entry of a record, or record the reason for its failure."""
        clock, lease = StageClock(), lease_of(record.digest)

        def report(stage: Stage, progress: Progress | None) -> None:
            clock.enter(stage)
            self._note_stage(record, stage, progress)

        try:
            async with self._builder.turn(record.digest):
                left_by = await to_its_end(asyncio.to_thread(self._state.take, lease))
                if left_by is None:
                    return  # another process makes it
                renewing = self._tasks.spawn(self._renew(lease, record))
                try:
                    if left_by:
                        record = await self.sync.exclusively(partial(self._count_attempt, record))
                    model = await self.store.models.get(record.model)
                    recorded = self.store.artifacts.get(record.digest)
                    artifact = await self._builder.supply(record, model, recorded, report)
                    self.store.artifacts[record.digest] = artifact
                    report(Stage.LOADING, None)
                    await self._load(artifact)
                    ready = replace(record, stage=Stage.READY, timings=clock.ended(), attempts=0)
                    await self._settle(ready, serving=record.digest)
                finally:
                    renewing.cancel()
                    with contextlib.suppress(ServiceError):
                        await to_its_end(asyncio.to_thread(self._state.release, lease))
        except RationaleError as error:
            # A set that a request named may exist again by now, so this failure is not recorded.
            if isinstance(error, UnknownResourceError) and record.name.startswith(HIDDEN):
                await self.sync.exclusively(partial(self._drop, [record]))
            else:
                await self._fail(record, str(error), clock.ended())
        except Exception:
            log.exception("explainer %s of %s", record.name, record.model)
            await self._fail(record, "an unexpected fault; the server's log tells more", clock.ended())
        finally:
            if self._tasks.making.get(record.key) is asyncio.current_task():
                del self._tasks.making[record.key]
                self._progress.pop(record.key, None)
            if not self.store.in_use(record.digest):
                self._retire(record.digest, after_s=0)

    async def _renew(self, lease: str, record: ExplainerRecord) -> None:
        """Renew the lease and its progress while an entry is made; cancel if another process took over."""
        making = self._tasks.making.get(record.key)
        while True:
            await asyncio.sleep(_RENEW_S)
            progress, now = self._progress.get(record.key), self.store.current(record)
            note = {"stage": (now or record).stage, "progress": progress and asdict(progress)}
            with contextlib.suppress(ServiceError):
                if not await asyncio.to_thread(self._state.renew, lease, note) and making is not None:
                    making.cancel()

    async def _count_attempt(self, record: ExplainerRecord) -> ExplainerRecord:
        """Count an attempt that a process left unfinished. Raises CompileFailedError for the third."""
        now = self.store.current(record)
        if now is None:
            return record  # a newer request replaced it, or it was deleted
        if now.attempts + 1 >= _ATTEMPTS:
            raise CompileFailedError(
                f"the gateway ended {_ATTEMPTS} times during this compile: PUT it again to retry"
            )
        return await self.store.save(replace(now, attempts=now.attempts + 1))

    async def _load(self, artifact: Artifact) -> None:
        """Load and warm an artifact's entry. Raises RepositoryError, NotReadyError."""
        if artifact.digest in self.store.entries:
            return
        entry = await asyncio.to_thread(read_entry, self._artifacts.repository / artifact.entry)
        try:
            await self._plane.model_cache.load(entry)
        except BaseException:
            if not self._tasks.stopping:  # the backend stops soon anyway
                await to_its_end(self._plane.model_cache.drop(entry))
            raise
        self.store.entries[artifact.digest] = entry

    async def _settle(self, record: ExplainerRecord, serving: str | None = None) -> ExplainerRecord:
        """Switch the serving artifact and the default; the status changes once other processes have followed.

        Args:
            serving: digest of the artifact to switch to; None to keep the present one.
        """

        async def note() -> ExplainerRecord | None:
            """Write the switch; return the former record, or None if a newer request replaced it."""
            now = self.store.current(record)
            if now is None:
                return None
            latest = now if serving is not None else record
            new = replace(
                record,
                spec=latest.spec,
                wants_default=latest.wants_default,
                is_default=latest.wants_default,
                serving=serving or now.serving,
                updated_s=time.time(),
            )
            demoted = [
                replace(other, is_default=False, wants_default=other.wants_default and not other.settled)
                for other in self.store.records.values()
                if new.is_default and other.is_default and other.model == new.model and other.key != new.key
            ]
            await self.store.save(new, *demoted)
            self._tasks.unshown.add(record.key)
            self.sync.publish()
            return now

        before = await self.sync.exclusively(note)
        if before is None:
            return record
        try:
            await self.sync.wait_until_adopted()
        finally:
            self._tasks.unshown.discard(record.key)
        if before.serving not in (None, serving or before.serving):
            self._retire(before.serving)
        if gone := self.store.surplus(self._max_hidden_bytes):
            await self.sync.exclusively(partial(self._drop, gone))
            await self.sync.wait_until_adopted()
        return self.store.records.get(record.key, record)

    async def _fail(self, record: ExplainerRecord, error: str, timings: dict[str, float]) -> None:
        log.warning("explainer %s of %s failed: %s", record.name, record.model, error)

        async def note() -> None:
            now = self.store.current(record)
            if now is None:
                return
            failed = replace(now, stage=Stage.FAILED, error=error, timings=timings, updated_s=time.time())
            self.store.records[record.key] = failed
            try:
                await self.store.save(failed)
            except ServiceError as fault:  # the cause may be a full disk
                log.error("its failure could not be recorded: %s", fault)

        await self.sync.exclusively(note)

    # --- out of use ---------------------------------------------------------------------------------------

    async def _drop(self, gone: list[ExplainerRecord]) -> None:
        """Remove explainers from the records and the registry, and end their compiles."""
        named = {item.key for item in gone}
        over = [item for item in self.store.canaries.values() if (item.model, item.explainer) in named]
        await self.store.write(removed=[*gone, *over])
        self.sync.publish()
        for record in gone:
            self._end(record)

    def _end(self, record: ExplainerRecord) -> None:
        """End an explainer's compile and retire its artifact, which no lookup finds any more."""
        if record.key in self._tasks.making:
            self._tasks.making[record.key].cancel()
        self._retire(record.serving)

    def _retire(self, digest: str | None, after_s: float | None = None) -> None:
        """Delete an unused artifact after requests that looked it up have been answered."""
        if digest is not None and not self._tasks.stopping:
            self._tasks.spawn(self._delete_if_unused(digest, self.grace_s if after_s is None else after_s))

    async def _delete_if_unused(self, digest: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        try:
            async with self._builder.turn(digest):
                await self.sync.adopt_changes()
                if self.store.in_use(digest) or digest not in self.store.artifacts:
                    return
                if await to_its_end(asyncio.to_thread(self._state.take, lease_of(digest))) is None:
                    return  # another process compiles it again, or deletes it
                try:
                    await self.sync.adopt_changes()
                    if not self.store.in_use(digest) and digest in self.store.artifacts:
                        await self._delete(self.store.artifacts[digest])
                finally:
                    await to_its_end(asyncio.to_thread(self._state.release, lease_of(digest)))
        except ServiceError as error:
            log.error("unused artifacts are not deleted: %s", error)

    async def _delete(self, artifact: Artifact) -> None:
        """Unload an artifact after its running requests, then delete it from the disk. Hold its turn."""
        entry = self.store.entries.pop(artifact.digest, None)
        if entry is not None:
            await to_its_end(self._plane.model_cache.drop(entry))
        else:  # an earlier gateway may have left it loaded in a server
            with contextlib.suppress(RationaleError):
                folder = self._artifacts.repository / artifact.entry
                await self._plane.backend.unload(await asyncio.to_thread(read_entry, folder))
        await to_its_end(asyncio.to_thread(self._artifacts.remove, artifact))
        await self.sync.exclusively(partial(self.store.write, removed=[artifact]))

    # --- status -------------------------------------------------------------------------------------------

    def _status(self, record: ExplainerRecord) -> ExplainerState:
        progress = self._progress.get(record.key)
        if record.key in self._tasks.unshown:
            record = replace(record, stage=Stage.LOADING)
        lease = self.sync.elsewhere.get(lease_of(record.digest))
        if lease is not None and lease.note and not record.settled and record.key not in self._tasks.making:
            record = replace(record, stage=Stage(lease.note["stage"]))
            progress = Progress(**lease.note["progress"]) if lease.note["progress"] else None
        entry = self.store.entries.get(record.serving or "")
        loaded = entry is not None and self._plane.model_cache.has(entry)
        return ExplainerState(record, progress, entry, loaded)

    def _note_stage(self, record: ExplainerRecord, stage: Stage, progress: Progress | None) -> None:
        now = self.store.current(record)
        if now is not None:
            self.store.records[record.key] = replace(now, stage=stage)
            if progress is not None:
                self._progress[record.key] = progress


def _hidden_key(model: str, digest: str) -> Key:
    """Return the key of a hidden explainer, made for requests."""
    return model, f"{HIDDEN}{digest[:16]}"
