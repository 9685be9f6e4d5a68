"""Contests and reviews of recorded decisions: by corrected inputs, or by a person's judgment."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from rationale.schema.manifest import Manifest
from rationale_service.decisions.audit.trail import AuditTrail, Case, RecordedDecision, check_repeated
from rationale_service.decisions.decider import (
    DECIDE,
    Correction,
    Decider,
    check_key,
    review_by,
    until,
)
from rationale_service.decisions.records.archive import Archive
from rationale_service.engine.dataplane import DataPlane
from rationale_service.engine.features import RequestRows
from rationale_service.engine.request import InferenceRequest
from rationale_service.errors import ServiceError
from rationale_service.handlers import InferenceCall
from rationale_service.observability.context import current
from rationale_service.observability.metrics import Metrics
from rationale_service.security import keys

_CORRECT = replace(DECIDE, scopes=keys.REVIEW)
T = TypeVar("T")


class Reviews:
    """Writer of contests and reviews."""

    def __init__(
        self, plane: DataPlane, trail: AuditTrail, archive: Archive, decider: Decider, metrics: Metrics
    ) -> None:
        self._plane, self._trail, self._archive = plane, trail, archive
        self._decider, self._metrics = decider, metrics

    async def contest(self, case: Case, words: str, key: str | None) -> Mapping[str, Any]:
        """Record that the applicant contests the standing decision, and return the contest.

        Raises:
            ServiceError: if `AuditTrail.record` raises it, or the key is invalid.
        """
        now = case.time_after()
        by = review_by(self._manifest(case.first.model), now)
        answer = {"id": secrets.token_hex(16), "reviews": case.first.id, "review_by": by}
        recorded = await self._record(case, now, answer, {"reason": words}, key, kind="contest", review_by=by)
        return recorded.answer

    async def judge(
        self,
        case: Case,
        reviewer: str,
        decision: str,
        reasons: Sequence[Mapping[str, Any]],
        key: str | None,
    ) -> Mapping[str, Any]:
        """Record and return a person's judgment in place of the standing decision. Raises as `contest`."""
        said = {"decision": decision, "reasons": [dict(reason) for reason in reasons], "reviewer": reviewer}
        answer = {"id": secrets.token_hex(16), **said, "reviews": case.first.id, "warnings": []}
        recorded = await self._record(case, case.time_after(), answer, said, key, kind="judgment")
        if recorded.id == answer["id"]:
            self._reviewed(case, recorded.time)
        return recorded.answer

    async def correct(
        self, case: Case, reviewer: str, instance: Mapping[str, Any], key: str | None
    ) -> Mapping[str, Any]:
        """Decide on corrected inputs by the entry of the first decision, and return the decision.

        Raises:
            ConflictError: if another entry decides now.
            ServiceError: if `Decider.decide` raises it.
        """
        first = case.first
        request = InferenceRequest(instances=RequestRows([instance]), application_ids=_ids(first))

        async def read(_: float, then: Callable[[InferenceRequest], T]) -> T:
            return then(request)

        try:
            (answer,) = await self._decider.decide(
                InferenceCall(_CORRECT, first.model), read, key, Correction(case, reviewer)
            )
        except ServiceError as error:  # the caller sent one row, and no list of them
            error.args = (str(error).replace("instances[0]", "instance"),)
            raise
        if all(event.id != answer["id"] for event in case.events):
            self._reviewed(case, case.time_after())
        return answer

    async def _record(
        self,
        case: Case,
        now: str,
        answer: Mapping[str, Any],
        said: Mapping[str, Any],
        key: str | None,
        **more: Any,
    ) -> RecordedDecision:
        began_s, context, first = time.monotonic(), current(), case.first
        check_key(key)
        answer = {**answer, "digests": first.answer["digests"]}
        if first.application_id is not None:
            answer = {**answer, "application_id": first.application_id}
        record = RecordedDecision(
            answer["id"],
            now,
            first.model,
            first.version,
            "" if context is None else context.caller.name,
            "" if context is None else context.request_id,
            (time.monotonic() - (began_s if context is None else context.began_s)) * 1e3,
            said,
            answer,
            key,
            **more,
        )
        async with until(self._plane.deadline()):
            (recorded,) = await self._trail.record([record])
        check_repeated([recorded], _ids(first), first.id)
        return recorded

    def _manifest(self, model: str) -> Manifest | None:
        try:
            return self._plane.repository.decider(model).manifest
        except ServiceError:  # it is no longer served: the default applies
            return None

    def _reviewed(self, case: Case, now: str) -> None:
        """Observe the time from the first event that waited until the review."""
        if case.waiting:
            waited = datetime.fromisoformat(now) - datetime.fromisoformat(case.waiting[0].time)
            self._metrics.audit.review_s(case.first.model, waited.total_seconds())


def _ids(first: RecordedDecision) -> tuple[str | None, ...]:
    return () if first.application_id is None else (first.application_id,)
