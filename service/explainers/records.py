"""What is known of explainers and artefacts, as the state keeps it."""

import enum
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from service.storage import Change, Storage


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
        digest: names the artefact that comes of it.
        references: digest of the reference set, None without one.
        serving: digest of the artefact that answers now; another one's while `digest` is being made.
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
    """A compiled entry, in the repository or kept aside.

    Attributes:
        entry: its name.
        model: the model's name, `model_digest` that of its files when this was made.
        size: bytes.
        used_s: when it last served, in seconds since the epoch.
    """

    digest: str
    entry: str
    model: str
    model_digest: str
    references: str | None
    size: int
    used_s: float


EXPLAINER, ARTEFACT = "explainer", "artefact"  # kinds of records


def read(state: Storage) -> tuple[list[Record], list[Artifact]]:
    explainers = [{**row, "stage": Stage(row["stage"])} for row in state.read(EXPLAINER)]
    return [Record(**row) for row in explainers], [Artifact(**row) for row in state.read(ARTEFACT)]


def write(
    state: Storage, saved: Iterable[Record | Artifact] = (), removed: Iterable[Record | Artifact] = ()
) -> None:
    """All of it or nothing; no error for what is gone already. Raises StateUnavailableError."""
    gone: list[Change] = [(*_place(one), None) for one in removed]
    state.write(*gone, *((*_place(one), asdict(one)) for one in saved))


def _place(one: Record | Artifact) -> tuple[str, str]:
    return (EXPLAINER, "/".join(one.key)) if isinstance(one, Record) else (ARTEFACT, one.digest)


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
