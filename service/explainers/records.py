"""What is known of explainers and artefacts, as it stands in the state's database."""

import enum
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa

from service.storage import Base, Storage


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


EXPLAINERS = sa.Table(
    "explainers",
    Base.metadata,
    sa.Column("model", sa.String, primary_key=True),
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("spec", sa.JSON, nullable=False),
    sa.Column("digest", sa.String, nullable=False),
    sa.Column("references", sa.String, index=True),
    sa.Column("wants_default", sa.Boolean, nullable=False),
    sa.Column("stage", sa.Enum(Stage, native_enum=False, values_callable=list), nullable=False),
    sa.Column("error", sa.String),
    sa.Column("serving", sa.String),
    sa.Column("is_default", sa.Boolean, nullable=False),
    sa.Column("timings", sa.JSON, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("updated_s", sa.Float, nullable=False),
)
ARTEFACTS = sa.Table(
    "artefacts",
    Base.metadata,
    sa.Column("digest", sa.String, primary_key=True),
    sa.Column("entry", sa.String, nullable=False, unique=True),
    sa.Column("model", sa.String, nullable=False),
    sa.Column("model_digest", sa.String, nullable=False),
    sa.Column("references", sa.String, index=True),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("used_s", sa.Float, nullable=False),
)


def read(state: Storage) -> tuple[list[Record], list[Artifact]]:
    with state.session() as session:
        records = [Record(**row) for row in session.execute(sa.select(EXPLAINERS)).mappings()]
        artefacts = [Artifact(**row) for row in session.execute(sa.select(ARTEFACTS)).mappings()]
    return records, artefacts


def write(
    state: Storage, saved: Iterable[Record | Artifact] = (), removed: Iterable[Record | Artifact] = ()
) -> None:
    """All of it or nothing; no error for what is gone already. Raises StateUnavailableError."""
    with state.session() as session:
        for one in removed:
            session.execute(sa.delete(_table(one)).where(_is(one)))
        for one in saved:
            session.execute(sa.insert(_table(one)).prefix_with("OR REPLACE").values(**asdict(one)))


def _table(one: Record | Artifact) -> sa.Table:
    return EXPLAINERS if isinstance(one, Record) else ARTEFACTS


def _is(one: Record | Artifact) -> sa.ColumnElement[bool]:
    if isinstance(one, Record):
        return (EXPLAINERS.c.model == one.model) & (EXPLAINERS.c.name == one.name)
    return ARTEFACTS.c.digest == one.digest


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
