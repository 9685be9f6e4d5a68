"""Explainers in a worker that does not own the state: it reads what the owner has made, and asks for more."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

from compiler.errors import RationaleError
from service.errors import NotReadyError, ServiceError
from service.explainers import records
from service.explainers.artifact_store import ArtifactStore
from service.explainers.records import RecordStore
from service.explainers.service import Explainers
from service.explainers.spec import ExplainerSpec
from service.inference.dataplane import DataPlane
from service.process.worker import Message, Worker, answer_at, call
from service.repository.entry import Entry, read_entry
from service.repository.registry import ModelRegistry

log = logging.getLogger(__name__)

_FOLLOWED_S = 5.0  # a worker that takes longer to take up a change does so by itself


async def serve_followers(worker: Worker, explainers: Explainers) -> asyncio.Server:
    """Make what other workers request. Belongs to the owner."""

    async def answer(message: Message) -> Message:
        spec = ExplainerSpec.model_validate(message["spec"])
        await explainers.made(message["model"], spec, message["references"])
        return {}

    return await answer_at(worker.owner, answer)


async def tell_followers(worker: Worker, explainers: Explainers) -> None:
    """Notify followers; returns when each answers by the records and the repository of now, or is gone."""
    worker.unloaded.write_text(json.dumps(sorted(explainers.store.base.unloaded())))

    async def tell(path: Path) -> None:
        with suppress(OSError, TimeoutError, ServiceError):
            async with asyncio.timeout(_FOLLOWED_S):
                await call(path, {})

    await asyncio.gather(*map(tell, worker.others()))


class Follower:
    """Has what requests, and the live repository, ask of `Explainers`."""

    def __init__(self, plane: DataPlane, artifacts: ArtifactStore, worker: Worker) -> None:
        self._plane = plane
        self._artifacts = artifacts
        self._worker = worker
        known, made = records.read(artifacts.state)
        base = plane.repository.without({one.entry for one in made})
        self.store = RecordStore(artifacts.state, base)
        self._turn = asyncio.Lock()
        self._adopt(known, made, {one.digest: plane.repository.entries.get(one.entry) for one in made})

    async def follow(self, changed: Callable[[], Awaitable[None]]) -> asyncio.Server:
        """Take up what the owner reports as changed; `changed` is called for each time."""

        async def answer(_: Message) -> Message:
            await self.refresh()  # first: what it knows of is no entry of the repository's own
            await changed()
            return {}

        return await answer_at(self._worker.own, answer)

    def unloaded(self) -> list[str]:
        """Return names of the entries that the owner was to unload."""
        path = self._worker.unloaded
        names: list[str] = json.loads(path.read_text()) if path.is_file() else []
        return names

    async def take_up(self, repository: ModelRegistry) -> None:
        """Answer by these entries too."""
        self.store.rebase(repository)
        self._show()

    async def refresh(self) -> None:
        """Answer by what the records say now."""
        async with self._turn:
            known, made = await asyncio.to_thread(records.read, self._artifacts.state)
            serving = {one.serving for one in known}
            wanted = {one.digest: one.entry for one in made if one.digest in serving}
            gone = [entry for digest, entry in self.store.entries.items() if digest not in wanted]
            entries = {digest: await self._entry(digest, name) for digest, name in wanted.items()}
            self._adopt(known, made, entries)
        for entry in gone:
            await self._plane.model_cache.drop(entry)

    async def made(self, model: str, spec: ExplainerSpec, references: str | None) -> Entry:
        """Return as `Explainers.made`, by whom it is made."""
        found = await self.ensure(model, spec, references)
        if found is None:
            asked = {"model": model, "spec": spec.model_dump(mode="json"), "references": references}
            try:
                await call(self._worker.owner, asked)
            except OSError as error:
                raise NotReadyError("what makes explainers is being started again: ask again") from error
            await self.refresh()
            found = await self.ensure(model, spec, references)
        if found is None:
            raise NotReadyError("what answers such requests is another one by now: ask again")
        return found

    async def ensure(
        self,
        model: str,
        spec: ExplainerSpec,
        references: str | None,
        *,
        again: bool = False,  # noqa: ARG002
    ) -> Entry | None:
        """Return the entry that explains `model` so; None where there is none: nothing is begun here."""
        return self.store.entries.get(await self.store.digest(model, spec, references))

    async def forget(self, references: str) -> None:
        """Do nothing: only the owner deletes."""

    def resume(self) -> None:
        """Do nothing: only the owner has begun anything."""

    async def stop(self) -> None:
        """Do nothing: nothing runs here."""

    def _adopt(
        self, known: list[records.Record], made: list[records.Artifact], entries: Mapping[str, Entry | None]
    ) -> None:
        found = {digest: entry for digest, entry in entries.items() if entry is not None}
        self.store.entries = {one.serving: found[one.serving] for one in known if one.serving in found}
        self.store.records = {one.key: one for one in known if one.serving in found}
        self.store.artefacts = {one.digest: one for one in made}
        for entry in self.store.entries.values():
            self._plane.model_cache.admit(entry)
        self._show()

    async def _entry(self, digest: str, name: str) -> Entry | None:
        if digest in self.store.entries:
            return self.store.entries[digest]
        try:
            return await asyncio.to_thread(read_entry, self._artifacts.repository / name)
        except RationaleError as error:
            log.error("explainer %s is not taken up: %s", name, error)
            return None

    def _show(self) -> None:
        self._plane.repository = self.store.registry()
        self._plane.forget_answers()
