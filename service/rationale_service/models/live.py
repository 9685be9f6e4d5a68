"""The served repository, which on demand picks up new, changed and removed folders."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from rationale.artifact.repository.remote import RemoteRepository
from rationale.errors import RationaleError, RepositoryError
from rationale_service.engine.backends.base import Backend
from rationale_service.errors import ConflictError, NotReadyError, ServiceError, UnknownModelError
from rationale_service.models.explainers.records import StateSnapshot, read
from rationale_service.models.explainers.service import Explainers
from rationale_service.repository.entry import Entry, Stamp, stamp_of
from rationale_service.repository.registry import (
    UNLOADED,
    ModelRegistry,
    Unserved,
    check_served,
    folders,
    read_folder,
    refused_stamp,
)
from rationale_service.settings import Settings
from rationale_service.state import Change
from rationale_service.state.state import State

log = logging.getLogger(__name__)

_UNLOADED, _LOADED = "unloaded", "loaded"  # kinds of records


class LiveRepository:
    """A model repository that replaces entries folder by folder while it answers requests.

    Old entries answer until the new ones are ready, or for good if those cannot be loaded. They are freed
    `grace_s` later: a request that looked them up takes no longer.
    """

    def __init__(
        self,
        explainers: Explainers,
        backend: Backend,
        settings: Settings,
        state: State,
        published: Callable[[ModelRegistry], None],
        remote: RemoteRepository | None = None,
        count: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the entries as read, without loading them.

        Args:
            published: function that gets the served registry at each change.
            remote: remote repository whose copy the folder is; None for a local one.
            count: function that counts each failure to read `remote`.
        """
        self._remote = remote
        self._count = count
        self._published = published
        self.grace_s = settings.request_timeout_s
        self._registry = explainers.store.base
        self._explainers = explainers
        self._backend = backend
        self._strict = settings.strict
        self._state = state
        self._loads = ""  # token of the latest known load of a folder
        self._written = 0  # revision of this process's last write
        self._telling = asyncio.Lock()  # no following between a change and its record
        self._turn = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Load the entries. Raises RepositoryError if none can be loaded or, when strict, for any fault."""
        async with self._turn:
            served, unserved = self._registry.by_folder(), dict(self._registry.unserved)
            failed = await self._backend.start(self._registry.entries.values())
            for entry, reason in failed.items():
                served.pop(entry.model, None)
                unserved[entry.model] = Unserved(reason, entry.stamp)
            registry = _with(self._registry, served, unserved)
            check_served(registry, strict=self._strict)
            for name in unserved:
                log.error("entry %s is not served: %s", name, registry.why_unserved(name))
            await self._publish(registry)
        with contextlib.suppress(ServiceError):  # unloads are known once the state answers
            await self.follow(await asyncio.to_thread(read, self._state))

    async def stop(self) -> None:
        for task in self._leaving:
            task.cancel()
        if self._leaving:
            await asyncio.wait(self._leaving)

    def look(self) -> object:
        """Return a value that changes with the local or remote repository. Blocks. Raises OSError."""
        if self._remote is None:
            return self.stamps()
        try:
            return self._remote.list_entries()
        except RepositoryError as error:
            self._count()
            raise OSError(str(error)) from error

    def stamps(self) -> dict[str, Stamp]:
        """Return the present stamp of every folder. Blocks. Raises OSError."""
        stamps = {path.name: stamp_of(path) for path in folders(self._registry.folder)}
        return stamps | {name: refused_stamp(reason) for name, reason in self._refusal_reasons().items()}

    def _refusal_reasons(self) -> Mapping[str, str]:
        """Return, by folder, the reasons for which the copy differs from the remote repository."""
        return {} if self._remote is None else self._remote.refused

    async def _pull(self) -> None:
        """Update the copy of a remote repository, if there is one. Raises RepositoryError."""
        if self._remote is not None:
            try:
                await asyncio.to_thread(self._remote.pull)
            except RepositoryError:
                self._count()
                raise

    async def scan(self) -> None:
        """Pick up folders that have changed on the disk since the last scan; faults go to the log."""
        async with self._turn:
            try:
                await self._pull()
            except RepositoryError as error:
                log.error("%s; what was pulled before is served", error)
            owned = set(self._explainers.store.owned())
            try:
                after = await asyncio.to_thread(self.stamps)
            except OSError as error:
                log.error("%s: cannot be read: %s", self._registry.folder, error.strerror)
                return
            owned.update(self._explainers.store.owned())  # read before and after, since they change
            before = {name: item.stamp for name, (item, *_) in self._registry.by_folder().items()}
            before |= {name: item.stamp for name, item in self._registry.unserved.items()}
            changed = [
                name for name, stamp in after.items() if name not in owned and before.get(name) != stamp
            ]
            await self._take_up(changed, gone=before.keys() - after.keys())

    async def follow(self, snapshot: StateSnapshot) -> None:
        """Adopt loads and unloads that were requested from other processes of the state."""
        async with self._telling:
            if snapshot.revision >= self._written:  # older records precede a request made here
                await self._follow(snapshot)

    async def _follow(self, snapshot: StateSnapshot) -> None:
        loads = "".join(str(row["token"]) for row in snapshot.other_rows.get(_LOADED, ()))
        if loads != self._loads:
            self._loads = loads
            await self.scan()
        recorded, unloaded = (
            self._registry.unloaded(),
            {str(row["name"]) for row in snapshot.other_rows.get(_UNLOADED, ())},
        )
        for name in unloaded - recorded:
            with contextlib.suppress(UnknownModelError, ConflictError):  # the folder was removed
                await self._unload(name)
        for name in recorded - unloaded:
            with contextlib.suppress(RationaleError):  # the index lists the reason
                await self._load(name)

    async def load(self, name: str) -> None:
        """Load a folder as it is on the disk now, changed or not.

        Raises:
            UnknownModelError: if there is no such folder.
            ConflictError: if it belongs to an explainer or cannot be loaded; the former entries still answer.
            NotReadyError: if Triton does not answer, or loads no models by request.
            StateUnavailableError: if other processes cannot be informed.
        """
        token = secrets.token_hex(8)
        async with self._telling:
            await self._load(name)
            self._loads = token
            await self._write((_UNLOADED, name, None), (_LOADED, "last", {"token": token}))
        await self._explainers.sync.wait_until_adopted()

    async def _load(self, name: str) -> None:
        async with self._turn:
            self._check_ours(name)
            try:
                await self._pull()
            except RepositoryError as error:
                raise NotReadyError(str(error)) from error
            if name not in await asyncio.to_thread(self.stamps):
                raise UnknownModelError(f"the repository has no entry '{name[:80]}'")
            for fault in (await self._take_up([name])).values():
                if isinstance(fault, ServiceError):
                    raise fault
                raise ConflictError(self._registry.why_unserved(name)) from fault

    async def unload(self, name: str) -> None:
        """Stop serving a folder until it is loaded or changes.

        Raises:
            UnknownModelError: if it is not served.
            ConflictError: if it belongs to an explainer.
            StateUnavailableError: if other processes cannot be informed.
        """
        async with self._telling:
            await self._unload(name)
            await self._write((_UNLOADED, name, {"name": name}))
        await self._explainers.sync.wait_until_adopted()

    async def _write(self, *changes: Change) -> None:
        """Record a load or unload for all processes of the state. Raises StateUnavailableError."""
        revision = await asyncio.to_thread(self._state.write, *changes)
        self._written = self._written if revision is None else revision

    async def _unload(self, name: str) -> None:
        async with self._turn:
            self._check_ours(name)
            served = self._registry.by_folder()
            if name not in served:
                raise UnknownModelError(f"no entry '{name[:80]}' is served")
            (gone, *_) = served.pop(name)
            await self._serve(served, {**self._registry.unserved, name: Unserved(UNLOADED, gone.stamp)})

    def _check_ours(self, name: str) -> None:
        if name in self._explainers.store.owned():
            raise ConflictError(f"'{name}' belongs to an explainer: PUT or DELETE that one instead")

    async def _take_up(
        self, changed: Collection[str], gone: Collection[str] = ()
    ) -> Mapping[str, RationaleError]:
        """Load folders as they are on the disk now and publish them all at once; return their faults."""
        if not changed and not gone:
            return {}
        served = {key: item for key, item in self._registry.by_folder().items() if key not in gone}
        unserved = {key: item for key, item in self._registry.unserved.items() if key not in gone}
        faults: dict[str, RationaleError] = {}
        for name in changed:
            path = self._registry.folder / name
            refused = self._refusal_reasons().get(name)
            stamp = stamp_of(path) if refused is None else refused_stamp(refused)
            try:
                if refused is not None:
                    raise RepositoryError(refused)
                served[name] = await self._load_folder(path, served)
                unserved.pop(name, None)
            except RationaleError as error:
                faults[name] = error
                unserved[name] = Unserved(str(error), stamp)
                log.error("entry %s cannot be served: %s", name, error)
        await self._serve(served, unserved)
        return faults

    async def _load_folder(self, folder: Path, served: Mapping[str, tuple[Entry, ...]]) -> tuple[Entry, ...]:
        """Read and load a folder. Raises RepositoryError, NotReadyError."""
        other_entries = _with(self._registry, served, {}).entries
        entries = await asyncio.to_thread(read_folder, folder, other_entries)
        loaded = []
        try:
            for entry in entries:
                await self._backend.load(entry)
                loaded.append(entry)
        except RationaleError:
            for entry in loaded:
                await self._backend.unload(entry)
            raise
        return entries

    async def _serve(self, served: Mapping[str, tuple[Entry, ...]], unserved: Mapping[str, Unserved]) -> None:
        """Publish these entries; the former ones leave after the grace time."""
        before, unloaded = set(self._registry.entries.values()), self._registry.unloaded()
        await self._publish(_with(self._registry, served, unserved))
        for name in unloaded & served.keys():  # the folder has changed, which ends its unload
            with contextlib.suppress(ServiceError):
                await asyncio.to_thread(self._state.write, (_UNLOADED, name, None))
        now = set(self._registry.entries.values())
        log.warning(
            "served from now on: %s; removed: %s",
            _names(now - before) or "nothing",
            _names(before - now) or "nothing",
        )
        for entry in before - now:
            task = asyncio.create_task(self._leave(entry))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _publish(self, registry: ModelRegistry) -> None:
        await self._explainers.take_up(registry)
        self._registry = registry
        self._published(registry)

    async def _leave(self, entry: Entry) -> None:
        await asyncio.sleep(self.grace_s)
        await self._backend.unload(entry)


def _with(
    registry: ModelRegistry, served: Mapping[str, tuple[Entry, ...]], unserved: Mapping[str, Unserved]
) -> ModelRegistry:
    entries = {entry.name: entry for of_folder in served.values() for entry in of_folder}
    return replace(registry, entries=entries, unserved=unserved)


def _names(entries: Iterable[Entry]) -> str:
    return ", ".join(sorted(entry.name for entry in entries))
