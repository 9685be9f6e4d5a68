"""Explainers of the served models: asked for, made aside, published, switched to, and forgotten."""

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
from rationale_service.models.explainers.builder import Builder, Progress, ReferenceFiles
from rationale_service.models.explainers.following import LOOK_S, Following, Tasks, nothing
from rationale_service.models.explainers.records import (
    HIDDEN,
    Artifact,
    Key,
    Known,
    Record,
    Split,
    Stage,
    StageClock,
    lease_of,
    to_its_end,
)
from rationale_service.models.explainers.recovery import digests_of, of_today, recover
from rationale_service.models.explainers.spec import ExplainerSpec
from rationale_service.repository.entry import Entry, read_entry
from rationale_service.repository.registry import COMPILED, ModelRegistry
from rationale_service.settings import Settings

log = logging.getLogger(__name__)

_BUSY_S = 10  # what a client is told to wait when too many compiles are queued
_RENEW_S = 1.0  # between two signs that an entry is still being made
_ATTEMPTS = 3  # at one explainer, in as many lives of processes: the third does not try again


@dataclass(frozen=True)
class Status:
    """An explainer as it is now: its record, how far its compile is, and the entry that answers."""

    record: Record
    progress: Progress | None
    entry: Entry | None
    loaded: bool


class Explainers:
    """The resource, and the tasks that bring about what it was asked for.

    The records say what is so: they change through `Following.exclusively` alone, and the registry follows.

    Attributes:
        following: what other processes change, and what they are at.
        grace_s: what is out of use still answers for so long: as long as a request takes at most.
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
        self._builder = Builder(artifacts, settings, references, plane.metrics)
        self._references = references
        self._max_unsettled = settings.max_compiles + settings.max_queued_compiles
        self._max_hidden_bytes = settings.max_artifact_bytes
        self._state = artifacts.state
        self.store = recover(artifacts, plane.repository)
        self._progress: dict[Key, Progress] = {}
        self._tasks = Tasks()
        self.following = Following(plane, artifacts, self.store, self._tasks, self._begin, self._retire)
        for entry in self.store.entries.values():
            plane.model_cache.admit(entry)
        self.following.show()

    async def resume(self, followed: Callable[[Known], Awaitable[None]]) -> None:
        """Go on with what an earlier process left unfinished, and follow the others.

        Args:
            followed: called with what is recorded, whenever another process has written.
        """
        with contextlib.suppress(ServiceError):  # which is logged in a moment
            await self.following.refresh(followed)
        self._tasks.spawn(self.following.follow(followed))
        self._tasks.spawn(self._clear())

    async def stop(self) -> None:
        """End compiles; they are resumed when the gateway starts again."""
        await self._tasks.stop()

    async def _clear(self) -> None:
        """Delete artifacts that nobody uses: at once where no other process is there to use them."""
        with contextlib.suppress(ServiceError):
            others = await asyncio.to_thread(self._state.behind, sys.maxsize)
            for digest in self.store.artifacts:
                self._retire(digest, after_s=None if others else 0)

    # --- the repository -----------------------------------------------------------------------------------

    async def take_up(self, repository: ModelRegistry) -> None:
        """Answer by these entries too. What explained a model that is another one now is made anew."""
        before = self.store.base.entries
        models = {one.model for one in self.store.records.values()}
        changed = {name for name in models if repository.entries.get(name) is not before.get(name)}
        digests = await asyncio.to_thread(digests_of, changed, repository)
        try:
            renewed = await self.following.exclusively(partial(self._rebase, repository, changed, digests))
        except StateUnavailableError as error:  # the models answer all the same
            log.error("what explains models that have changed is not made anew: %s", error)
            self.store.rebase(repository)
            renewed = []
        self.following.show()
        for one in renewed:
            self._end(one)
            if not self.store.records[one.key].settled and self._plane.serves:
                self._begin(self.store.records[one.key])
        self._plane.forget_answers()
        self._plane.metrics.unserved_entries.set(len(repository.unserved))

    async def _rebase(
        self, repository: ModelRegistry, changed: set[str], digests: Mapping[str, str]
    ) -> list[Record]:
        """Return the records of what is made anew, as they were."""
        renewed = {}
        for one in [one for one in self.store.records.values() if one.model in changed]:
            again = replace(one, stage=Stage.QUEUED) if one.stage is Stage.FAILED else one
            new = of_today(again, self.store.artifacts, digests.get(one.model))
            if new != one:
                renewed[one.key] = replace(new, generation=one.generation + 1)
        before = [self.store.records[key] for key in renewed]
        try:
            if renewed:
                await self.store.write([*renewed.values()])
        except ServiceError as error:  # what is made anew is made so again at the next start
            log.error("%s", error)
        self.store.rebase(repository)
        self.store.records.update(renewed)
        # Those that others have made of the models that are here now.
        await self.following.open_entries(self.store.records.values())
        return before

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
        await asyncio.to_thread(partial(spec.requested, referenced=references is not None))
        spec = self._named(model, spec)
        record = await self._ask(model, name, spec, references)
        await self.following.published()
        return self._status(record)

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
            if one.serving == digest and digest in self.store.entries:
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
        while (record := self.store.records.get(key)) is not None and not record.settled:
            if self._tasks.stopping:
                break
            making = self._tasks.making.get(key)
            await (asyncio.sleep(LOOK_S) if making is None else asyncio.wait([making]))
        if record is not None and record.stage is Stage.FAILED:
            raise CompileFailedError(record.error or "it could not be made")
        if record is None or record.serving not in self.store.entries:
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

    def split(self, model: str) -> Split:
        """Return which explainer is a model's canary. Raises as `get`."""
        self.store.models.entry(model)
        found = self.store.splits.get(model)
        if found is None:
            raise UnknownResourceError(
                f"model '{model[:80]}' has no canary: its default explainer answers all"
            )
        return found

    async def put_split(self, split: Split) -> Split:
        """Have an explainer answer a share of the requests that name none.

        Raises:
            UnknownModelError, InvalidExplainerError: there is no such model that could have explainers.
            UnknownResourceError: it has no such explainer that answers.
            ConflictError: it is the default, or there is none beside which it would answer.
            StateUnavailableError: it cannot be recorded.
        """

        async def note() -> None:
            registry, plain = self._plane.repository, self.store.models.entry(split.model)
            canary = registry.explainer(split.model, explainer=split.explainer)
            default = registry.default_explainer(plain)
            if default is None or default is canary:
                reason = "is the default already" if default is canary else "would be the only one"
                raise ConflictError(
                    f"a canary answers beside the default, and '{split.explainer[:80]}' {reason}"
                )
            await self.store.write([split])
            self.following.show()

        await self.following.exclusively(note)
        await self.following.published()
        return split

    async def delete_split(self, model: str) -> None:
        """Have the default answer all again. Raises as `split`, and StateUnavailableError."""

        async def note() -> None:
            await self.store.write(removed=[self.split(model)])
            self.following.show()

        await self.following.exclusively(note)
        await self.following.published()

    async def delete(self, model: str, name: str) -> None:
        """Answer no more by it; its artifact goes. Raises as `get`, and StateUnavailableError."""
        gone = self.get(model, name).record
        await self.following.exclusively(partial(self._drop, [gone]))
        await self.following.published()
        self._plane.forget_answers()

    def users(self, references: str) -> list[str]:
        """Return explainers made of a reference set, or being made of it: `model/explainer`."""
        return ["/".join(one.key) for one in self.store.using(references)]

    async def forget(self, references: str) -> None:
        """Delete every explainer and artifact that holds a reference set.

        Requests that run finish. When this returns, no entry on the disk holds its rows, nor the backend.
        """
        store = self.store
        making = [
            self._tasks.making[one.key] for one in store.using(references) if one.key in self._tasks.making
        ]
        await self.following.exclusively(lambda: self._drop(store.using(references)))
        if making:
            await asyncio.wait(making)
        await self.following.published()
        for one in [one for one in store.artifacts.values() if one.references == references]:
            async with self._builder.turn(one.digest):
                await self._delete(one)
        await self.following.published()
        self._plane.forget_answers()

    # --- on the way to an answer --------------------------------------------------------------------------

    def _named(self, model: str, spec: ExplainerSpec) -> ExplainerSpec:
        """Return a spec with the names that the model was compiled with.

        Raises InvalidExplainerError for other names: callers who name features would be refused.
        """
        compiled = self.store.base.compiled(model)
        known = None if compiled is None or compiled.manifest is None else compiled.manifest.given_names
        wanted, given = spec.inputs, spec.features
        own = {n: list(names) for n, names in (known or {}).items() if wanted is None or n in wanted}
        for name, names in own.items():
            if given is not None and (given.get(name, names) if isinstance(given, dict) else given) != names:
                raise InvalidExplainerError(
                    f"features: the model was compiled with other names for '{name}', which all its "
                    "explainers have: leave `features` out"
                )
        if not own or isinstance(given, list):
            return spec
        return spec.model_copy(update={"features": {**own, **(given or {})}})

    async def _ask(self, model: str, name: str, spec: ExplainerSpec, references: str | None) -> Record:
        if self._plane.state is not Lifecycle.READY:
            raise NotReadyError(self._plane.state.value)
        digest = await self.store.digest(model, spec, references)
        record = await self.following.exclusively(
            partial(self._admit, (model, name), spec, digest, references)
        )
        return await self._settle(record) if record.settled else record

    async def _admit(self, key: Key, spec: ExplainerSpec, digest: str, references: str | None) -> Record:
        """Record what is wanted and begin it; returned settled where it is there already."""
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
            return same if old.settled else await self.store.save(same)
        unsettled = [one for one in self.store.unsettled() if one.key != key]
        if len(unsettled) >= self._max_unsettled:
            raise QueueFullError(f"{len(unsettled)} explainers are being made: try again later", _BUSY_S)
        await self.store.save(wanted)
        self._begin(wanted)
        return wanted

    def _begin(self, record: Record) -> None:
        """Begin it in place of what was being made under the same name."""
        before = self._tasks.making.get(record.key)
        if before is not None:
            before.cancel()
        self._progress.pop(record.key, None)
        self._tasks.making[record.key] = self._tasks.spawn(self._make(record))

    async def _make(self, record: Record) -> None:
        """Make the entry that answers out of the record, or find the reason why there is none."""
        clock, lease = StageClock(), lease_of(record.digest)

        def report(stage: Stage, progress: Progress | None) -> None:
            clock.enter(stage)
            self._note_stage(record, stage, progress)

        try:
            async with self._builder.turn(record.digest):
                left_by = await to_its_end(asyncio.to_thread(self._state.take, lease))
                if left_by is None:
                    return  # another process is at it
                renewing = self._tasks.spawn(self._renew(lease, record))
                try:
                    if left_by:
                        record = await self.following.exclusively(partial(self._count_attempt, record))
                    model = await self.store.models.get(record.model)
                    known = self.store.artifacts.get(record.digest)
                    artifact = await self._builder.supply(record, model, known, report)
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
            # A set that a request named may be there again by now: it is no failure to keep.
            if isinstance(error, UnknownResourceError) and record.name.startswith(HIDDEN):
                await self.following.exclusively(partial(self._drop, [record]))
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

    async def _renew(self, lease: str, record: Record) -> None:
        """Say while an entry is made that it is, and how far; end it where another process has taken over."""
        making = self._tasks.making.get(record.key)
        while True:
            await asyncio.sleep(_RENEW_S)
            progress, now = self._progress.get(record.key), self.store.current(record)
            note = {"stage": (now or record).stage, "progress": progress and asdict(progress)}
            with contextlib.suppress(ServiceError):
                if not await asyncio.to_thread(self._state.renew, lease, note) and making is not None:
                    making.cancel()

    async def _count_attempt(self, record: Record) -> Record:
        """Count how often a process ended while it was at this. Raises CompileFailedError for the third."""
        now = self.store.current(record)
        if now is None:
            return record  # another one was asked for meanwhile, or none
        if now.attempts + 1 >= _ATTEMPTS:
            raise CompileFailedError(
                f"the gateway ended {_ATTEMPTS} times while this was made: PUT it again to try once more"
            )
        return await self.store.save(replace(now, attempts=now.attempts + 1))

    async def _load(self, artifact: Artifact) -> None:
        """Load its entry, warm when this returns. Raises RepositoryError, NotReadyError."""
        if artifact.digest in self.store.entries:
            return
        entry = await asyncio.to_thread(read_entry, self._artifacts.repository / artifact.entry)
        try:
            await self._plane.model_cache.load(entry)
        except BaseException:
            if not self._tasks.stopping:  # the backend is about to stop, loading or not
                await to_its_end(self._plane.model_cache.drop(entry))
            raise
        self.store.entries[artifact.digest] = entry

    async def _settle(self, record: Record, serving: str | None = None) -> Record:
        """Switch to who serves, and who does by default; its status says so when other processes have too.

        Args:
            serving: digest of the artifact to switch to; None for the one that serves.
        """

        async def note() -> Record | None:
            """Return the record as it was; None where another one was asked for meanwhile, or none."""
            now = self.store.current(record)
            if now is None:
                return None
            kept = now if serving is not None else record
            new = replace(
                record,
                spec=kept.spec,
                wants_default=kept.wants_default,
                is_default=kept.wants_default,
                serving=serving or now.serving,
                updated_s=time.time(),
            )
            others = [
                replace(one, is_default=False, wants_default=one.wants_default and not one.settled)
                for one in self.store.records.values()
                if new.is_default and one.is_default and one.model == new.model and one.key != new.key
            ]
            await self.store.save(new, *others)
            self._tasks.unshown.add(record.key)
            self.following.show()
            return now

        before = await self.following.exclusively(note)
        if before is None:
            return record
        try:
            await self.following.published()
        finally:
            self._tasks.unshown.discard(record.key)
        if before.serving not in (None, serving or before.serving):
            self._retire(before.serving)
        if gone := self.store.surplus(self._max_hidden_bytes):
            await self.following.exclusively(partial(self._drop, gone))
            await self.following.published()
        return self.store.records.get(record.key, record)

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

        await self.following.exclusively(note)

    # --- out of use ---------------------------------------------------------------------------------------

    async def _drop(self, gone: list[Record]) -> None:
        """Take explainers out of the records and the registry; compiles for them end."""
        named = {one.key for one in gone}
        over = [one for one in self.store.splits.values() if (one.model, one.explainer) in named]
        await self.store.write(removed=[*gone, *over])
        self.following.show()
        for record in gone:
            self._end(record)

    def _end(self, record: Record) -> None:
        """End the compile for it, and free what answered, which nobody finds any more."""
        if record.key in self._tasks.making:
            self._tasks.making[record.key].cancel()
        self._retire(record.serving)

    def _retire(self, digest: str | None, after_s: float | None = None) -> None:
        """Delete an artifact that nobody uses, when those who looked it up before have been answered."""
        if digest is not None and not self._tasks.stopping:
            self._tasks.spawn(self._retired(digest, self.grace_s if after_s is None else after_s))

    async def _retired(self, digest: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        try:
            async with self._builder.turn(digest):
                await self.following.exclusively(nothing)
                if self.store.in_use(digest) or digest not in self.store.artifacts:
                    return
                if await to_its_end(asyncio.to_thread(self._state.take, lease_of(digest))) is None:
                    return  # another process makes it anew, or deletes it
                try:
                    await self.following.exclusively(nothing)
                    if not self.store.in_use(digest) and digest in self.store.artifacts:
                        await self._delete(self.store.artifacts[digest])
                finally:
                    await to_its_end(asyncio.to_thread(self._state.release, lease_of(digest)))
        except ServiceError as error:
            log.error("what is not used any more stays where it is: %s", error)

    async def _delete(self, artifact: Artifact) -> None:
        """Take it off the backend, when those who use it are answered, and off the disk. Hold its turn."""
        entry = self.store.entries.pop(artifact.digest, None)
        if entry is not None:
            await to_its_end(self._plane.model_cache.drop(entry))
        else:  # an earlier gateway may have left it loaded in a server
            with contextlib.suppress(RationaleError):
                folder = self._artifacts.repository / artifact.entry
                await self._plane.backend.unload(await asyncio.to_thread(read_entry, folder))
        await to_its_end(asyncio.to_thread(self._artifacts.remove, artifact))
        await self.following.exclusively(partial(self.store.write, removed=[artifact]))

    # --- what is so ---------------------------------------------------------------------------------------

    def _status(self, record: Record) -> Status:
        progress = self._progress.get(record.key)
        if record.key in self._tasks.unshown:
            record = replace(record, stage=Stage.LOADING)
        lease = self.following.elsewhere.get(lease_of(record.digest))
        if lease is not None and lease.note and not record.settled and record.key not in self._tasks.making:
            record = replace(record, stage=Stage(lease.note["stage"]))
            progress = Progress(**lease.note["progress"]) if lease.note["progress"] else None
        entry = self.store.entries.get(record.serving or "")
        loaded = entry is not None and self._plane.model_cache.has(entry)
        return Status(record, progress, entry, loaded)

    def _note_stage(self, record: Record, stage: Stage, progress: Progress | None) -> None:
        now = self.store.current(record)
        if now is not None:
            self.store.records[record.key] = replace(now, stage=stage)
            if progress is not None:
                self._progress[record.key] = progress


def _hidden(model: str, digest: str) -> Key:
    """Return the key of an explainer that no person requested."""
    return model, f"{HIDDEN}{digest[:16]}"
