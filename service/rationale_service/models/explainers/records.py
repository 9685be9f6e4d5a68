"""The state's records of explainers and artifacts."""

import asyncio
import contextlib
import enum
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from rationale_service.models.explainers.spec import ExplainerSpec, PlainModels, entry_name
from rationale_service.repository.entry import Entry
from rationale_service.repository.registry import Canary, ModelRegistry
from rationale_service.state import Change
from rationale_service.state.state import State

T = TypeVar("T")
Key = tuple[str, str]
HIDDEN = "~"  # prefix of hidden explainers' names, which were made for requests


class Stage(enum.StrEnum):
    """Stages of an explainer's making. `ExplainerRecord.serving` may answer at any of them."""

    QUEUED = "queued"
    COMPILING = "compiling"
    CHECKING = "checking"
    PUBLISHING = "publishing"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True)
class ExplainerRecord:
    """One explainer of one model.

    Attributes:
        generation: number of requests for this name so far; the latest wins.
        spec: latest requested spec, as JSON.
        digest: digest of the artifact for `spec`.
        references: digest of the reference set; None without one.
        serving: digest of the artifact that answers now; an older one while `digest` is being made.
        is_default: True if `serving` answers requests that name no explainer.
        wants_default: True if it should answer them when it is ready.
        timings: seconds spent in each stage.
        attempts: number of processes that ended while they made it.
    """

    model: str
    name: str
    generation: int
    spec: dict[str, Any]
    digest: str
    references: str | None
    wants_default: bool
    stage: Stage = Stage.QUEUED
    error: str | None = None
    serving: str | None = None
    is_default: bool = False
    timings: dict[str, float] = field(default_factory=dict)
    attempts: int = 0
    updated_s: float = 0.0

    @property
    def settled(self) -> bool:
        """True if no process is making it."""
        return self.stage in (Stage.READY, Stage.FAILED)

    @property
    def key(self) -> tuple[str, str]:
        return self.model, self.name


@dataclass(frozen=True)
class Artifact:
    """A compiled entry in the repository.

    Attributes:
        entry: name of the entry.
        model: name of the model; `model_digest` is that of its files at the compile.
        size: size in bytes.
        sha256: SHA-256 of the file that machines share; empty if they share none.
    """

    digest: str
    entry: str
    model: str
    model_digest: str
    references: str | None
    size: int
    sha256: str = ""


@dataclass(frozen=True)
class CanaryRecord:
    """A model's canary: an explainer that answers a share of the requests that name none."""

    model: str
    explainer: str
    share: float


def lease_of(digest: str) -> str:
    """Return the name of the lease for making or deleting an artifact."""
    return f"artefact/{digest}"  # spelling shared with other replicas


EXPLAINER, ARTIFACT, CANARY = "explainer", "artefact", "split"  # kinds of records


Written = ExplainerRecord | Artifact | CanaryRecord


@dataclass(frozen=True)
class StateSnapshot:
    """The records at a revision of the state.

    Attributes:
        other_rows: records of other kinds, by kind.
    """

    revision: int
    records: Sequence[ExplainerRecord]
    artifacts: Sequence[Artifact]
    canaries: Sequence[CanaryRecord]
    other_rows: Mapping[str, Sequence[Mapping[str, Any]]]


def read(state: State) -> StateSnapshot:
    """Read all records. Blocks. Raises StateUnavailableError."""
    revision, rows = state.snapshot()
    explainers = [ExplainerRecord(**{**row, "stage": Stage(row["stage"])}) for row in rows.get(EXPLAINER, ())]
    artifacts = [Artifact(**row) for row in rows.get(ARTIFACT, ())]
    return StateSnapshot(
        revision, explainers, artifacts, [CanaryRecord(**row) for row in rows.get(CANARY, ())], rows
    )


def write(
    state: State,
    saved: Iterable[Written] = (),
    removed: Iterable[Written] = (),
    since: int | None = None,
) -> int | None:
    """Write all changes or none; removing a missing record is no error. Raises StateUnavailableError.

    Returns:
        The new revision; None if others have written after `since`, so that nothing was changed.
    """
    gone: list[Change] = [(*_place(item), None) for item in removed]
    return state.write(*gone, *((*_place(item), asdict(item)) for item in saved), since=since)


def _place(item: Written) -> tuple[str, str]:
    if isinstance(item, CanaryRecord):
        return CANARY, item.model
    return (EXPLAINER, "/".join(item.key)) if isinstance(item, ExplainerRecord) else (ARTIFACT, item.digest)


class StageClock:
    """Seconds spent in each stage, for a record's `timings`."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._stage, self._since_s = Stage.QUEUED, time.monotonic()

    def enter(self, stage: Stage) -> None:
        now_s = time.monotonic()
        spent = self._seconds.get(self._stage, 0.0) + now_s - self._since_s
        self._seconds[self._stage] = round(spent, 4)
        self._stage, self._since_s = stage, now_s

    def ended(self) -> dict[str, float]:
        self.enter(self._stage)
        return self._seconds


class OutdatedError(Exception):
    """Records that another replica has changed since this process read them."""


class RecordStore:
    """The records of explainers in memory; `registry` presents them to the data plane.

    Attributes:
        records: explainers by model and name.
        artifacts: artifacts by digest.
        canaries: canaries by model.
        entries: entries by digest that are loaded or may be.
        revision: revision of the state from which they come.
    """

    def __init__(
        self,
        state: State,
        base: ModelRegistry,
        records: Iterable[ExplainerRecord] = (),
        artifacts: Iterable[Artifact] = (),
        canaries: Iterable[CanaryRecord] = (),
        revision: int = 0,
    ) -> None:
        self.records = {item.key: item for item in records}
        self.artifacts = {item.digest: item for item in artifacts}
        self.canaries = {item.model: item for item in canaries}
        self.entries: dict[str, Entry] = {}
        self.revision = revision
        self._state = state
        self._changing = asyncio.Lock()
        self.rebase(base)

    def rebase(self, base: ModelRegistry) -> None:
        """Adopt another repository, without entries of explainers."""
        self.base, self.models = base, PlainModels(base)

    async def digest(self, model: str, spec: ExplainerSpec, references: str | None) -> str:
        """Return the digest of the artifact for a spec. Raises as `PlainModels.get`."""
        return spec.digest((await self.models.get(model)).digest, references)

    async def exclusively(
        self, change: Callable[[], Awaitable[T]], take_up: Callable[[StateSnapshot], Awaitable[None]]
    ) -> T:
        """Run a change alone and to its end, even if its caller leaves meanwhile.

        Args:
            change: function that writes first; it runs again if another replica has written before it.
            take_up: function that gets the records before each run if others have written since.
        """

        async def alone() -> T:
            async with self._changing:
                while True:
                    await self._refresh(take_up)
                    with contextlib.suppress(OutdatedError):
                        return await change()

        return await to_its_end(alone())

    async def _refresh(self, take_up: Callable[[StateSnapshot], Awaitable[None]]) -> None:
        if await asyncio.to_thread(self._state.revision) != self.revision:
            snapshot = await asyncio.to_thread(read, self._state)
            await take_up(snapshot)
            self.revision = snapshot.revision

    async def save(self, *changed: ExplainerRecord) -> ExplainerRecord:
        """Write changed records, then show them; return the first. Raises StateUnavailableError."""
        await self.write(changed)
        self.records.update({record.key: record for record in changed})
        return changed[0]

    async def write(self, saved: Sequence[Written] = (), removed: Sequence[Written] = ()) -> None:
        """Write all changes or none, within `exclusively`. Raises StateUnavailableError, OutdatedError."""
        work = asyncio.to_thread(write, self._state, saved, removed, self.revision)
        revision = await to_its_end(work)
        if revision is None:
            raise OutdatedError
        self.revision = revision
        for item in removed:
            if isinstance(item, Artifact):
                self.artifacts.pop(item.digest, None)
            elif isinstance(item, CanaryRecord):
                self.canaries.pop(item.model, None)
            else:
                self.records.pop(item.key, None)
        self.artifacts.update({item.digest: item for item in saved if isinstance(item, Artifact)})
        self.canaries.update({item.model: item for item in saved if isinstance(item, CanaryRecord)})

    def current(self, record: ExplainerRecord) -> ExplainerRecord | None:
        """Return the present record of that name; None if a newer request replaced it."""
        now = self.records.get(record.key)
        return now if now is not None and now.generation == record.generation else None

    def in_use(self, digest: str) -> bool:
        """Tell whether an explainer uses the artifact, or will."""
        return any(
            digest == record.serving or (digest == record.digest and not record.settled)
            for record in self.records.values()
        )

    def unsettled(self) -> list[ExplainerRecord]:
        return [record for record in self.records.values() if not record.settled]

    def owned(self) -> set[str]:
        """Return the repository's folders that hold an explainer's entry, or will."""
        coming = {entry_name(item.model, item.digest) for item in self.records.values()}
        return coming | {item.entry for item in self.artifacts.values()}

    def using(self, references: str) -> list[ExplainerRecord]:
        """Return explainers made of a reference set, finished or not."""
        digests = {item.digest for item in self.artifacts.values() if item.references == references}
        return [
            item for item in self.records.values() if item.references == references or item.serving in digests
        ]

    def surplus(self, most_bytes: int) -> list[ExplainerRecord]:
        """Return hidden explainers beyond `most_bytes`, least recently used first."""
        hidden = [
            record for record in self.records.values() if record.name.startswith(HIDDEN) and record.serving
        ]
        hidden.sort(key=lambda record: record.updated_s, reverse=True)
        sizes = itertools.accumulate(self.size_of(record) for record in hidden)
        gone = [record for record, total in zip(hidden, sizes, strict=True) if total > most_bytes]
        return [record for record in reversed(gone) if record is not hidden[0]]

    def size_of(self, record: ExplainerRecord) -> int:
        """Return the size of an explainer's serving artifact in bytes."""
        artifact = self.artifacts.get(record.serving or "")
        return 0 if artifact is None else artifact.size

    def lacks_default(self, key: Key) -> bool:
        """Tell whether the model has no default explainer, finished or not, other than `key`."""
        model, name = key
        siblings = (record for record in self.records.values() if record.model == model and record.key != key)
        is_taken = any(record.is_default or record.wants_default for record in siblings)
        return not is_taken and self.base.compiled(model) is None and not name.startswith(HIDDEN)

    def registry(self) -> ModelRegistry:
        """Return the served registry according to the records."""
        entries = ((item, self.entries.get(item.serving or "")) for item in self.records.values())
        serving = [(item, entry) for item, entry in entries if entry is not None]
        named: dict[str, dict[str, Entry]] = {}
        for item, entry in serving:
            if not item.name.startswith(HIDDEN):
                named.setdefault(item.model, {})[item.name] = entry
        return ModelRegistry(
            self.base.folder,
            {**self.base.entries, **{entry.name: entry for _, entry in serving}},
            named,
            {item.model: entry for item, entry in serving if item.is_default},
            self.base.unserved,
            {item.model: Canary(item.explainer, item.share) for item in self.canaries.values()},
        )


async def to_its_end(work: Awaitable[T]) -> T:
    """Await work to its end; if cancelled meanwhile, raise only then, so that none is half done."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            await _quietly(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it
        raise


async def _quietly(task: "asyncio.Future[Any]") -> None:
    with contextlib.suppress(asyncio.CancelledError):  # cancelled twice: the first one is raised in the end
        await asyncio.wait([task])
