"""Where decisions are written before they are answered: what the gateway asks of an audit trail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rationale_service.errors import StateUnavailableError


@dataclass(frozen=True)
class RecordedDecision:
    """One decision as it was answered.

    Attributes:
        time: RFC 3339 in UTC, with microseconds.
        caller: the name of the key that asked, empty where none is needed.
        latency_ms: from the request's first byte until the decision was made.
        instance: what the caller sent; None where only a digest of it was kept, or its key was erased.
        answer: the whole member of `decisions`, as it was answered.
        idempotency_key: that of the request; `place` is the instance's place in it.
        kept: how the trail has the inputs. Of hashed and erased ones, `value`s in the answer are None too.
        runtime: the digest of the files that ran (graph), and what the backend says: see `Backend.runtime`.
    """

    id: str
    time: str
    model: str
    version: str
    caller: str
    request_id: str
    latency_ms: float
    instance: Mapping[str, Any] | None
    answer: Mapping[str, Any]
    idempotency_key: str | None = None
    place: int = 0
    kept: Literal["plain", "hashed", "sealed", "erased"] = "plain"
    runtime: Mapping[str, Any] = field(default_factory=dict)


class AuditTrail(Protocol):
    """Append-only. Whoever answers by it has waited for its disk."""

    def start(self) -> None:
        """Start to open it before its first use, and to check it from then on."""

    async def opened(self) -> None:
        """Wait until it is known whether one that was started can be written, or that takes too long."""

    @property
    def fault(self) -> str | None:
        """Why no decision can be recorded now, for the operator: it may name machines. None where one can."""

    async def find(
        self, model: str, caller: str, key: str, instances: Sequence[Mapping[str, Any]]
    ) -> Sequence[RecordedDecision]:
        """Find what was decided under an idempotency key before, in the order of `instances`; else nothing.

        Raises:
            ConflictError: it was for other instances.
            ErasedInputsError: inputs of the decisions are erased.
            QueueFullError, StateUnavailableError: as `record`.
        """

    async def record(self, decisions: Sequence[RecordedDecision]) -> Sequence[RecordedDecision]:
        """Record decisions; returns when they are on the disk: all of one request, or none.

        Returns:
            What to answer: what was there before, where another request with the same key came first.

        Raises:
            ConflictError: that one was for other instances.
            ErasedInputsError: inputs of the decisions that were there before are erased.
            QueueFullError: too many wait for the disk.
            StateUnavailableError: they cannot be written, and must not be answered.
        """

    async def stop(self) -> None:
        """Write what waits."""


def obstacle(trail: AuditTrail) -> StateUnavailableError | None:
    """Return why nothing can be decided now; None if decisions can be recorded."""
    if trail.fault is None:
        return None
    return StateUnavailableError(
        "the audit trail is not available (the server's log says why), and no decision is answered "
        "without it; predictions and explanations are",
        5,
    )


class NoTrail:
    """RATIONALE_AUDIT=off."""

    fault = None

    def start(self) -> None:
        pass

    async def opened(self) -> None:
        pass

    async def find(self, *_: object) -> Sequence[RecordedDecision]:
        return ()

    async def record(self, decisions: Sequence[RecordedDecision]) -> Sequence[RecordedDecision]:
        return decisions

    async def stop(self) -> None:
        pass
