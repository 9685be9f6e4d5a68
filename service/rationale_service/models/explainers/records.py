"""What is known of explainers and artifacts, as the state keeps it."""

import asyncio
import contextlib
import enum
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from rationale_service.models.explainers.spec import ExplainerSpec, Models, entry_name
from rationale_service.repository.entry import Entry
from rationale_service.repository.registry import Canary, ModelRegistry
from rationale_service.state import Change
from rationale_service.state.state import State

T = TypeVar("T")
Key = tuple[str, str]
HIDDEN = "~"  # begins the names of explainers that no person asked for


class Stage(enum.StrEnum):
    """An explainer's way. What serves meanwhile is another question: `Record.serving`."""

    QUEUED = "queued"
    COMPILING = "compiling"
    CHECKING = "checking"
    PUBLISHING = "publishing"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True)
class Record:
    """One explainer of one model.

    Attributes:
        generation: counts what was asked under this name; the latest wins.
        spec: what was asked for last, as JSON.
        digest: names the artifact that comes of it.
        references: digest of the reference set, None without one.
        serving: digest of the artifact that answers now; another one's while `digest` is being made.
        is_default: whether `serving` answers requests that name no explainer; `wants_default`: will it?
        timings: seconds spent in each stage.
        attempts: how often a gateway ended while it was at this.
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
        """Whether nothing is being done for it."""
        return self.stage in (Stage.READY, Stage.FAILED)

    @property
    def key(self) -> tuple[str, str]:
        return self.model, self.name


@dataclass(frozen=True)
class Artifact:
    """A compiled entry, in the repository.

    Attributes:
        entry: its name.
        model: the model's name, `model_digest` that of its files when this was made.
        size: bytes.
        sha256: of the file by which machines share it, where they do.
    """

    digest: str
    entry: str
    model: str
    model_digest: str
    references: str | None
    size: int
    sha256: str = ""


@dataclass(frozen=True)
class Split:
    """A canary of a model: the explainer that answers a share of the requests which name none."""

    model: str
    explainer: str
    share: float


def lease_of(digest: str) -> str:
    """Return the name of the lease of whoever makes or deletes an artifact."""
    return f"artefact/{digest}"  # as other replicas spell it


EXPLAINER, ARTIFACT, SPLIT = "explainer", "artefact", "split"  # kinds of records, as states hold them


Written = Record | Artifact | Split


@dataclass(frozen=True)
class Known:
    """What is recorded at a revision of the state.

    Attributes:
        others: records of other kinds, by kind.
    """

    revision: int
    records: Sequence[Record]
    artifacts: Sequence[Artifact]
    splits: Sequence[Split]
    others: Mapping[str, Sequence[Mapping[str, Any]]]


def read(state: State) -> Known:
    """Read all that is recorded. Blocks. Raises StateUnavailableError."""
    revision, rows = state.snapshot()
    explainers = [Record(**{**row, "stage": Stage(row["stage"])}) for row in rows.get(EXPLAINER, ())]
    artifacts = [Artifact(**row) for row in rows.get(ARTIFACT, ())]
    return Known(revision, explainers, artifacts, [Split(**row) for row in rows.get(SPLIT, ())], rows)


def write(
    state: State,
    saved: Iterable[Written] = (),
    removed: Iterable[Written] = (),
    since: int | None = None,
) -> int | None:
    """Write all of it or nothing; no error for what is gone already. Raises StateUnavailableError.

    Returns:
        The new revision; None where others have written `since`, and nothing was changed.
    """
    gone: list[Change] = [(*_place(one), None) for one in removed]
    return state.write(*gone, *((*_place(one), asdict(one)) for one in saved), since=since)


def _place(one: Written) -> tuple[str, str]:
    if isinstance(one, Split):
        return SPLIT, one.model
    return (EXPLAINER, "/".join(one.key)) if isinstance(one, Record) else (ARTIFACT, one.digest)


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
    """Another replica has written since the records were read."""


class RecordStore:
    """What is known of explainers; shown to the data plane by `registry`.

    Attributes:
        records: by model and name.
        artifacts: by digest.
        splits: by model.
        entries: by digest, those that are loaded or may be.
        revision: of the state that they are of.
    """

    def __init__(
        self,
        state: State,
        base: ModelRegistry,
        records: Iterable[Record] = (),
        artifacts: Iterable[Artifact] = (),
        splits: Iterable[Split] = (),
        revision: int = 0,
    ) -> None:
        self.records = {one.key: one for one in records}
        self.artifacts = {one.digest: one for one in artifacts}
        self.splits = {one.model: one for one in splits}
        self.entries: dict[str, Entry] = {}
        self.revision = revision
        self._state = state
        self._changing = asyncio.Lock()
        self.rebase(base)

    def rebase(self, base: ModelRegistry) -> None:
        """Go with another repository, in which are no entries of explainers."""
        self.base, self.models = base, Models(base)

    async def digest(self, model: str, spec: ExplainerSpec, references: str | None) -> str:
        """Return the digest of the artifact. Raises as `Models.get`."""
        return spec.digest((await self.models.get(model)).digest, references)

    async def exclusively(
        self, change: Callable[[], Awaitable[T]], take_up: Callable[[Known], Awaitable[None]]
    ) -> T:
        """Run a change alone and to its end, even if whoever requested it leaves meanwhile.

        Args:
            change: begins with what it writes; run again where another replica has written before it.
            take_up: called before, where others have written since.
        """

        async def alone() -> T:
            async with self._changing:
                while True:
                    await self._refresh(take_up)
                    with contextlib.suppress(OutdatedError):
                        return await change()

        return await to_its_end(alone())

    async def _refresh(self, take_up: Callable[[Known], Awaitable[None]]) -> None:
        if await asyncio.to_thread(self._state.revision) != self.revision:
            known = await asyncio.to_thread(read, self._state)
            await take_up(known)
            self.revision = known.revision

    async def save(self, *changed: Record) -> Record:
        """Record changes, then let them be seen; the first of them. Raises StateUnavailableError."""
        await self.write(changed)
        self.records.update({one.key: one for one in changed})
        return changed[0]

    async def write(self, saved: Sequence[Written] = (), removed: Sequence[Written] = ()) -> None:
        """Write all of it or nothing, within `exclusively`. Raises StateUnavailableError, OutdatedError."""
        work = asyncio.to_thread(write, self._state, saved, removed, self.revision)
        revision = await to_its_end(work)
        if revision is None:
            raise OutdatedError
        self.revision = revision
        for one in removed:
            if isinstance(one, Artifact):
                self.artifacts.pop(one.digest, None)
            elif isinstance(one, Split):
                self.splits.pop(one.model, None)
            else:
                self.records.pop(one.key, None)
        self.artifacts.update({one.digest: one for one in saved if isinstance(one, Artifact)})
        self.splits.update({one.model: one for one in saved if isinstance(one, Split)})

    def current(self, record: Record) -> Record | None:
        """Return the record of that name, unless another one was requested since."""
        now = self.records.get(record.key)
        return now if now is not None and now.generation == record.generation else None

    def in_use(self, digest: str) -> bool:
        """Return whether an explainer answers by the artifact, or is about to."""
        return any(
            digest == one.serving or (digest == one.digest and not one.settled)
            for one in self.records.values()
        )

    def unsettled(self) -> list[Record]:
        return [one for one in self.records.values() if not one.settled]

    def owned(self) -> set[str]:
        """Return the repository's folders that have an explainer's entry, or will."""
        coming = {entry_name(one.model, one.digest) for one in self.records.values()}
        return coming | {one.entry for one in self.artifacts.values()}

    def using(self, references: str) -> list[Record]:
        """Return explainers that are, or are to be, made of a reference set."""
        made = {one.digest for one in self.artifacts.values() if one.references == references}
        return [one for one in self.records.values() if one.references == references or one.serving in made]

    def surplus(self, most_bytes: int) -> list[Record]:
        """Return those that no person requested and that take too much: least recently used first."""
        hidden = [one for one in self.records.values() if one.name.startswith(HIDDEN) and one.serving]
        hidden.sort(key=lambda one: one.updated_s, reverse=True)
        sizes = itertools.accumulate(self.size_of(one) for one in hidden)
        gone = [one for one, total in zip(hidden, sizes, strict=True) if total > most_bytes]
        return [one for one in reversed(gone) if one is not hidden[0]]

    def size_of(self, record: Record) -> int:
        """Return the bytes of the artifact by which an explainer answers."""
        made = self.artifacts.get(record.serving or "")
        return 0 if made is None else made.size

    def lacks_default(self, key: Key) -> bool:
        """Return whether nothing answers, or is to, requests for the model that name no explainer."""
        model, name = key
        own = (one for one in self.records.values() if one.model == model and one.key != key)
        taken = any(one.is_default or one.wants_default for one in own)
        return not taken and self.base.compiled(model) is None and not name.startswith(HIDDEN)

    def registry(self) -> ModelRegistry:
        """Return what is served, by what the records say."""
        found = ((one, self.entries.get(one.serving or "")) for one in self.records.values())
        serving = [(one, entry) for one, entry in found if entry is not None]
        named: dict[str, dict[str, Entry]] = {}
        for one, entry in serving:
            if not one.name.startswith(HIDDEN):
                named.setdefault(one.model, {})[one.name] = entry
        return ModelRegistry(
            self.base.folder,
            {**self.base.entries, **{entry.name: entry for _, entry in serving}},
            named,
            {one.model: entry for one, entry in serving if one.is_default},
            self.base.unserved,
            {one.model: Canary(one.explainer, one.share) for one in self.splits.values()},
        )


async def to_its_end(work: Awaitable[T]) -> T:
    """Await it; where it is cancelled meanwhile, it ends when the work is done: no half of it is left."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            await _quietly(task)
        if not task.cancelled():
            task.exception()  # looked at, so that it is not reported as forgotten
        raise


async def _quietly(task: "asyncio.Future[Any]") -> None:
    with contextlib.suppress(asyncio.CancelledError):  # asked for twice: the first one is raised in the end
        await asyncio.wait([task])
