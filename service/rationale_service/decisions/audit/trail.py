"""The protocol of an audit trail, which records decisions before the gateway answers them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Protocol

from rationale_service.decisions.audit.rows import Instance, time_text
from rationale_service.errors import ConflictError, StateUnavailableError


@dataclass(frozen=True)
class RecordedDecision:
    """One decision as it was answered.

    Attributes:
        time: time of the decision, RFC 3339 in UTC with microseconds.
        caller: name of the caller's key; empty if none is needed.
        latency_ms: time from the request's first byte until the decision.
        instance: instance that the caller sent; None if only its digest was kept or its key was erased.
        answer: whole member of `decisions`, as answered.
        idempotency_key: key of the request; `place` is the instance's place in it.
        kept: form in which the trail keeps the inputs. If hashed or erased, `value`s in the answer are None
            too.
        runtime: digest of the files that ran (graph), and the backend's data: see `Backend.runtime`.
        kind: decision of an entry; contest of an applicant; judgment of a person in place of an entry.
        review_by: time until which a person has to review it; None if nobody needs to.
    """

    id: str
    time: str
    model: str
    version: str
    caller: str
    request_id: str
    latency_ms: float
    instance: Instance | None
    answer: Mapping[str, Any]
    idempotency_key: str | None = None
    place: int = 0
    kept: Literal["plain", "hashed", "sealed", "erased"] = "plain"
    runtime: Mapping[str, Any] = field(default_factory=dict)
    kind: Literal["decision", "contest", "judgment"] = "decision"
    review_by: str | None = None

    @property
    def application_id(self) -> str | None:
        """The lender's own id of the application."""
        return self.answer.get("application_id")

    @property
    def reviews(self) -> str | None:
        """The id of the decision that this one contests or reviews; None of a first decision."""
        return self.answer.get("reviews")


_MOST_NAME = 255  # characters


def text_fault(text: str, most: int) -> str | None:
    """Return the reason why no trail stores a text, or None."""
    if not text.strip():
        return "is empty"
    if len(text) > most:
        return f"has {len(text)} characters, more than {most}"
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        return "has a NUL or half of a surrogate pair, which no database stores"
    return None


def name_fault(name: str) -> str | None:
    """Return the reason why no trail stores a person's name, or a lender's own id, or None."""
    fault = text_fault(name, _MOST_NAME)
    if fault is None and not name.isprintable():
        return "has a line end or another character that nobody sees"
    return fault


def check_repeated(
    recorded: Sequence[RecordedDecision], application_ids: Sequence[str | None], reviews: str | None = None
) -> None:
    """Raise ConflictError if decisions under a repeated idempotency key have other ids than the request."""
    due = [*application_ids] or [None] * len(recorded)
    is_same = [decision.application_id for decision in recorded] == due
    if not is_same or any(decision.reviews != reviews for decision in recorded):
        raise ConflictError(
            f"the idempotency key '{recorded[0].idempotency_key}' was used for other applications: use a "
            "new key for a new request"
        )


@dataclass(frozen=True)
class Case:
    """A first decision with its contests and reviews, by time.

    Its state follows from its rows and is stored nowhere. It waits for a review while it is referred or
    contested.
    """

    events: Sequence[RecordedDecision]

    @property
    def first(self) -> RecordedDecision:
        return self.events[0]

    @property
    def standing(self) -> RecordedDecision:
        """The decision that holds: the last one of an entry or a person."""
        return [event for event in self.events if event.kind != "contest"][-1]

    @property
    def state(self) -> Literal["decided", "referred", "contested", "reviewed"]:
        if self.events[-1].kind == "contest":
            return "contested"
        if self.standing.answer["decision"] == "refer":
            return "referred"
        return "reviewed" if self.standing.reviews else "decided"

    @property
    def waiting(self) -> Sequence[RecordedDecision]:
        """The rows that wait for a review: the standing decision if it refers, and contests of it."""
        since = self.events[list(self.events).index(self.standing) :]
        return [event for event in since if event.review_by is not None]

    @property
    def review_by(self) -> str | None:
        """The time until which a person has to review it; None if nobody needs to."""
        return min((str(event.review_by) for event in self.waiting), default=None)

    def time_after(self) -> str:
        """Return the present time, or one behind the last event of a clock that is ahead."""
        last = datetime.fromisoformat(self.events[-1].time) + timedelta(microseconds=1)
        return time_text(max(datetime.now(UTC), last))


class AuditTrail(Protocol):
    """An append-only trail. A decision is on its disk before the gateway answers it."""

    def start(self) -> None:
        """Begin to open the trail before its first use, and to check it from then on."""

    async def wait_until_open(self) -> None:
        """Wait until a started trail knows if it can write, or until that takes too long."""

    @property
    def fault(self) -> str | None:
        """Reason why no decision can be recorded now, or None. For operators only: it may name machines."""

    async def find(
        self, model: str, caller: str, key: str, instances: Sequence[Instance]
    ) -> Sequence[RecordedDecision]:
        """Return earlier decisions under an idempotency key, in the order of `instances`; empty if none.

        Raises:
            ConflictError: if they were for other instances.
            ErasedInputsError: if inputs of the decisions are erased.
            QueueFullError, StateUnavailableError: if `record` would raise them.
        """

    async def record(self, decisions: Sequence[RecordedDecision]) -> Sequence[RecordedDecision]:
        """Record all decisions of a request, or none; return once they are on the disk.

        Returns:
            The decisions to answer: earlier ones if another request with the same key came first.

        Raises:
            ConflictError: if that request was for other instances.
            ErasedInputsError: if inputs of the earlier decisions are erased.
            QueueFullError: if too many decisions wait for the disk.
            StateUnavailableError: if they cannot be written and so must not be answered.
        """

    async def stop(self) -> None:
        """Write waiting decisions."""


def obstacle(trail: AuditTrail) -> StateUnavailableError | None:
    """Return the reason why no decision can be made now; None if decisions can be recorded."""
    if trail.fault is None:
        return None
    return StateUnavailableError(
        "the audit trail is not available (the server's log says why), and no decision is answered "
        "without it; predictions and explanations are",
        5,
    )


class NoTrail:
    """No trail: RATIONALE_AUDIT=off."""

    fault = None

    def start(self) -> None:
        pass

    async def wait_until_open(self) -> None:
        pass

    async def find(self, *_: object) -> Sequence[RecordedDecision]:
        return ()

    async def record(self, decisions: Sequence[RecordedDecision]) -> Sequence[RecordedDecision]:
        return decisions

    async def stop(self) -> None:
        pass
