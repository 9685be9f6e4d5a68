"""Makes artefacts: never one twice, and no more at once than the machine is to bear."""

import asyncio
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from service.errors import ConflictError, UnknownResourceError
from service.explainers import records
from service.explainers.artifact_store import ArtifactStore
from service.explainers.jobs import Progress, compile_entry
from service.explainers.ledger import to_its_end
from service.explainers.models import Model
from service.explainers.records import Artifact, Record, Stage
from service.explainers.spec import ExplainerSpec, entry_name
from service.explainers.worker import Order
from service.observability.metrics import Metrics

Tell = Callable[[Stage, Progress | None], None]


class ReferenceFiles(Protocol):
    """Where reference sets are. Both methods may block."""

    def find(self, name: str, model: str) -> str:
        """Digest of the set of that name, made for that model. Raises UnknownResourceError."""

    def path(self, digest: str) -> Path:
        """A file of its rows, as `compiler.tables.read_rows` takes it. Raises UnknownResourceError."""


class NoReferenceSets:
    """Where none are kept."""

    def find(self, name: str, model: str) -> str:  # noqa: ARG002 (the protocol's)
        raise UnknownResourceError(f"there is no reference set '{name[:80]}'")

    def path(self, digest: str) -> Path:
        raise UnknownResourceError(f"there is no reference set of digest {digest[:80]}")


@dataclass(frozen=True)
class Limits:
    """Of compiles: how many at once, and the seconds and bytes that each may take."""

    at_once: int
    timeout_s: float
    memory_bytes: int


class Builder:
    """Sees to it that an artefact lies in the repository. Nothing served changes by that."""

    def __init__(
        self, artifacts: ArtifactStore, limits: Limits, references: ReferenceFiles, metrics: Metrics
    ) -> None:
        self._artifacts = artifacts
        self._limits = limits
        self._references = references
        self._metrics = metrics
        self._cache = metrics.cache("artefacts")
        self._slots = asyncio.Semaphore(limits.at_once)
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def turn(self, digest: str) -> asyncio.Lock:
        """Held by whoever makes, moves or deletes the artefact."""
        return self._turns.setdefault(digest, asyncio.Lock())

    async def supply(self, record: Record, model: Model, known: Artifact | None, tell: Tell) -> Artifact:
        """The artefact of `record`, in the repository: found there, brought back, or compiled. Hold its turn.

        Args:
            known: the artefact, where it is recorded.
            tell: hears at which stage this is.

        Raises:
            CompileFailedError: it cannot be made.
            StateUnavailableError: it cannot be written.
        """
        name = entry_name(record.model, record.digest)
        if known is not None and self._artifacts.served(name):
            self._cache.hit()
            return known
        kept = self._artifacts.kept(name)
        if known is not None and kept is not None:
            self._cache.hit()
            tell(Stage.PUBLISHING, None)
            await to_its_end(asyncio.to_thread(self._artifacts.publish, kept, name))
            return known
        if self._artifacts.served(name):
            raise ConflictError(f"the repository has an entry '{name}' that is not ours: move it away")
        self._cache.miss()
        async with self._slots:
            return await self._make(record, model, name, tell)

    async def _make(self, record: Record, model: Model, name: str, tell: Tell) -> Artifact:
        folder = await to_its_end(asyncio.to_thread(self._artifacts.staging))
        started_s, outcome = time.monotonic(), "failed"
        try:
            tell(Stage.COMPILING, None)
            order = await asyncio.to_thread(self._order, record, model, folder / name)
            size = await compile_entry(order, self._limits.timeout_s, lambda step: tell(_stage(step), step))
            tell(Stage.PUBLISHING, None)
            made = Artifact(
                record.digest, name, model.name, model.digest, record.references, size, time.time()
            )
            await to_its_end(
                asyncio.to_thread(records.write, self._artifacts.state, [made])
            )  # first: else it is not ours
            await to_its_end(asyncio.to_thread(self._artifacts.publish, folder / name, name))
            outcome = "ready"
        finally:
            self._metrics.compiled(time.monotonic() - started_s, outcome)
            await to_its_end(asyncio.to_thread(self._artifacts.discard, folder))
        return made

    def _order(self, record: Record, model: Model, entry: Path) -> Order:
        spec = ExplainerSpec.model_validate(record.spec)
        references = None if record.references is None else self._references.path(record.references)
        asked = asdict(spec.asked(referenced=references is not None))
        return Order(
            model=str(model.path),
            name=model.name,
            entry=str(entry),
            asked=asked,
            references=None if references is None else str(references),
            memory_bytes=self._limits.memory_bytes,
        )


def _stage(step: Progress) -> Stage:
    return Stage.CHECKING if step.stage.startswith("checking") else Stage.COMPILING
