"""Recorded decisions: read one by id, write its applicant's notice, replay it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Query, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response

from rationale.schema.profile import DecisionProfile
from rationale_service.decisions.audit.stores.store import DecisionQuery
from rationale_service.decisions.audit.trail import Case, RecordedDecision, name_fault, text_fault
from rationale_service.decisions.records.archive import write_notice
from rationale_service.decisions.records.cases import history
from rationale_service.errors import ConflictError, InvalidInputError
from rationale_service.observability.context import current
from rationale_service.protocols.rest.administration import RecordedRoute
from rationale_service.protocols.rest.endpoint import gateway_of, idempotency_key, read_model
from rationale_service.protocols.rest.openapi import JSON, KEY_PARAMETER, body_of
from rationale_service.protocols.rest.problems import problem_responses
from rationale_service.protocols.rest.schemas import Decision, DecisionDigests, Instance
from rationale_service.security.keys import AUDIT, DECIDE, REVIEW, needs

_NOT_STORED = {"Cache-Control": "no-store"}
_MOST_LISTED = 1000
_MOST_TEXT = 2000  # characters of a reason
_MOST_REASONS = 20


def _checked(find_fault: Callable[[str], str | None], text: str) -> str:
    if fault := find_fault(text):
        raise ValueError(fault)
    return text


StorableText = Annotated[str, AfterValidator(partial(_checked, partial(text_fault, most=_MOST_TEXT)))]
StorableName = Annotated[str, AfterValidator(partial(_checked, name_fault))]
Kind = Annotated[
    Literal["decision", "contest", "judgment"],
    Field(description="decision of an entry, contest of an applicant, or judgment of a person"),
]


# A decision holds a person's data, so each call is recorded.
router = APIRouter(prefix="/v1/decisions", tags=["decisions"], route_class=RecordedRoute)


class JudgedReason(BaseModel):
    """A reason of the person who judges."""

    model_config = ConfigDict(extra="forbid", strict=True)

    code: StorableText | None = Field(None, description="code of the decision profile, if the reason has one")
    text: StorableText


class Contest(BaseModel):
    """An applicant's contest of a decision."""

    id: str
    application_id: str | None = None
    reviews: str = Field(description="id of the first decision of the case")
    digests: DecisionDigests = Field(description="digests of the first decision")
    review_by: str = Field(description="time by which a person must review it")


class Judgment(BaseModel):
    """A person's decision in place of an entry's."""

    id: str
    application_id: str | None = None
    decision: Literal["approve", "decline"]
    reasons: list[JudgedReason]
    reviewer: str
    reviews: str = Field(description="id of the first decision of the case")
    digests: DecisionDigests = Field(description="digests of the first decision")
    warnings: list[str]


class ContestRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    reason: StorableText = Field(description="the applicant's objection to the decision")


class ReviewRequest(BaseModel):
    """Corrected inputs, or a person's judgment."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reviewer: StorableName = Field(description="name of the reviewer")
    instance: dict[str, Any] | None = Field(
        None, description="all inputs, corrected: the entry of the first decision decides again"
    )
    decision: Literal["approve", "decline"] | None = Field(
        None, description="the person's decision, instead of the entry's"
    )
    reasons: list[JudgedReason] = Field(
        default_factory=list,
        max_length=_MOST_REASONS,
        description="reasons of a judgment; a decline needs at least one",
    )

    @model_validator(mode="after")
    def _is_one_of_two(self) -> "ReviewRequest":
        if (self.instance is None) == (self.decision is None):
            raise ValueError("give either instance (the corrected inputs) or decision (a person's judgment)")
        if self.decision == "decline" and not self.reasons:
            raise ValueError("reasons: a decline by a person needs at least one")
        if self.decision is None and self.reasons:
            raise ValueError(
                "reasons: give them only with decision; the entry gives the reasons for corrected inputs"
            )
        return self


class Event(BaseModel):
    """A decision, a contest or a review of a case."""

    id: str
    time: str
    kind: Kind
    caller: str = Field(description="name of the caller's key")
    decision: Literal["approve", "refer", "decline"] | None
    reviewer: str | None
    reasons: list[JudgedReason]
    words: str | None = Field(description="the applicant's words in a contest, if the trail can show them")
    review_by: str | None


class CaseHistory(BaseModel):
    id: str = Field(description="id of the first decision")
    application_id: str | None
    model: str
    state: Literal["decided", "referred", "contested", "reviewed"] = Field(
        description="referred and contested: a person must review it"
    )
    standing: str = Field(description="id of the decision that holds")
    review_by: str | None = Field(
        description="time by which a person must review it; null if no review is needed"
    )
    events: list[Event] = Field(description="oldest first")


class Recorded(BaseModel):
    """A decision as the audit trail has it."""

    time: str = Field(description="RFC 3339, in UTC")
    model: str
    version: str
    caller: str = Field(description="name of the caller's key; empty if the gateway has no keys")
    request_id: str
    latency_ms: float
    kind: Kind
    application_id: str | None = Field(description="the lender's own id of the application")
    reviews: str | None = Field(description="for a contest or review: id of the first decision of the case")
    review_by: str | None = Field(
        description="time by which a person must review it; null if no review is needed"
    )
    kept: Literal["plain", "hashed", "sealed", "erased"] = Field(description="how the trail keeps its inputs")
    instance: Instance = Field(
        description=(
            "the inputs; null if the trail keeps only a digest, or if their key was erased. Then values "
            "in the answer's reasons are null too"
        )
    )
    runtime: dict[str, Any] = Field(
        description="what ran: the digest of the files, and the backend's description"
    )
    answer: Decision | Judgment | Contest = Field(description="the answer to the caller")
    languages: list[str] = Field(
        description=(
            "languages in which a notice can be written, from the decision profile; empty if the profile "
            "is no longer in the repository"
        )
    )


class ListedDecision(BaseModel):
    """Summary of a decision, contest or judgment, as lists show it."""

    id: str
    application_id: str | None = Field(description="the lender's own id of the application")
    time: str = Field(description="RFC 3339, in UTC")
    model: str
    caller: str
    kind: Kind
    decision: Literal["approve", "refer", "decline"] | None = Field(description="null for a contest")
    reviews: str | None = Field(description="for a contest or review: id of the first decision of the case")
    review_by: str | None = Field(
        description="time by which a person must review it; null if no review is needed"
    )


class DecisionList(BaseModel):
    decisions: list[ListedDecision] = Field(description="newest first")


class GivenInstance(BaseModel):
    """What was decided on, for a trail that keeps a digest of it alone."""

    model_config = ConfigDict(extra="forbid", strict=True)

    instance: dict[str, Any] | None = Field(
        None,
        description=("the original inputs, if the trail keeps only their digest; they are compared with it"),
    )


class NoticeRequest(GivenInstance):
    template: str = Field(
        "adverse-action",
        description="adverse-action (Regulation B, FCRA 615(a)) or eu-consumer-credit (directive 2023/2225)",
    )
    variables: dict[str, Any] = Field(
        default_factory=dict,
        description=(
            "values of the template's names, nested: creditor, applicant, application …; false for a "
            "missing one"
        ),
    )
    person_declined: bool = Field(
        default=False,
        description=(
            "true: the case was referred and a person declined; `variables.judgment` has the person's reasons"
        ),
    )


class NoticeText(BaseModel):
    id: str
    template: str
    language: str
    text: str = Field(description="the statement, as plain text; a draft for your counsel")
    warnings: list[str] = Field(description="points to check before you send it")


class Replay(BaseModel):
    """A decision that was computed again by the files that made it."""

    id: str
    same: bool = Field(description="true: nothing differs")
    exact: bool = Field(
        description=(
            "true: the runtime is the same, and numbers must be equal bit for bit; false: within 1e-4 of "
            "the largest"
        )
    )
    differences: list[str]
    elsewhere: list[str] = Field(description="differences of the runtime from the one that decided")
    passed_over: list[str] = Field(description="members of the answer that a replay does not compute")
    entry: str | None = Field(description="current name of the entry that decided; null for a person")


@router.get(
    "",
    summary="The latest decisions",
    description="All decisions, or those of one application by the lender's own id. Newest first.",
    operation_id="list_decisions",
    responses=problem_responses(404, 422, 503),
)
@needs(AUDIT)
async def list_decisions(
    request: Request,
    application_id: Annotated[str | None, Query(description="the lender's own id")] = None,
    model: Annotated[str | None, Query(description="decisions of this model only")] = None,
    since: Annotated[str | None, Query(description="a time in UTC or its beginning, such as 2026-11")] = None,
    until: Annotated[str | None, Query(description="like `since`; not included")] = None,
    limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = 100,
    *,
    is_open: Annotated[
        bool, Query(alias="open", description="true: only cases that wait for a review")
    ] = False,
) -> DecisionList:
    context = current()
    models = None if context is None else context.caller.models
    if model is not None:
        if context is not None:
            context.caller.require_model(model)
        models = frozenset({model})
    query = DecisionQuery(application_id, models, since, until, is_open, limit)
    if any(text is not None and name_fault(text) for text in (application_id, model)):
        return DecisionList(decisions=[])
    found = await gateway_of(request).archive.latest(query)
    return DecisionList(decisions=[_listed(decision) for decision in found])


@router.get(
    "/{decision}:history",
    summary="Contests and reviews of a decision",
    description="The case of the decision: who did what and when, and which decision holds.",
    operation_id="decision_history",
    responses=problem_responses(404, 503),
)
@needs(AUDIT | REVIEW)
async def decision_history(request: Request, decision: str) -> CaseHistory:
    case = await _case(request, decision)
    return CaseHistory(
        id=case.first.id,
        application_id=case.first.application_id,
        model=case.first.model,
        state=case.state,
        standing=case.standing.id,
        review_by=case.review_by,
        events=[Event.model_validate(event) for event in history(case)],
    )


@router.get(
    "/{decision}",
    summary="A recorded decision",
    description="With its inputs, if the trail keeps them.",
    operation_id="get_decision",
    response_model=Recorded,
    responses=problem_responses(404, 503),
)
@needs(AUDIT)
async def get_decision(request: Request, decision: str) -> Response:
    record = await _read(request, decision)
    profile = await _profile(request, record)
    return _decision_response(record, [] if profile is None else profile.languages)


@router.post(
    "/{decision}:notice",
    summary="The notice to the applicant",
    description=(
        "A statement of the principal reasons of a decline, from a template of Rationale. It is returned, "
        "and neither sent nor stored. One error (422) names all variables that the template needs and the "
        "request lacks. All texts are in one language of the profile that decided."
    ),
    operation_id="decision_notice",
    responses=problem_responses(400, 404, 408, 413, 415, 422, 503),
    openapi_extra=body_of(NoticeRequest),
)
@needs(AUDIT)
async def decision_notice(
    request: Request,
    decision: str,
    language: Annotated[
        str | None, Query(description="a language of the decision profile, such as de; by default its first")
    ] = None,
) -> NoticeText:
    body = await read_model(request, NoticeRequest, InvalidInputError, "{}")
    request.state.detail = {"template": body.template[:80], "person_declined": body.person_declined}
    record = await _read(request, decision, body.instance)
    notice = write_notice(
        record,
        await gateway_of(request).archive.case(record.id),
        await _profile(request, record),
        body.template,
        body.variables,
        person_declined=body.person_declined,
        language=language,
    )
    return NoticeText(
        id=record.id,
        template=body.template,
        language=notice.language,
        text=notice.text,
        warnings=list(notice.warnings),
    )


@router.post(
    "/{decision}:replay",
    summary="Compute a decision again",
    description=(
        "Uses the entry with the recorded digests, the row alone, and the same number of threads. One "
        "replay runs at a time, next to the served models."
    ),
    operation_id="replay_decision",
    responses=problem_responses(400, 404, 408, 409, 413, 415, 422, 429, 503, 504),
    openapi_extra=body_of(GivenInstance),
)
@needs(AUDIT)
async def replay_decision(request: Request, decision: str) -> Replay:
    body = await read_model(request, GivenInstance, InvalidInputError, "{}")
    record = await _read(request, decision, body.instance)
    gateway = gateway_of(request)
    case = await gateway.archive.case(record.id)
    first = None if record.reviews is None or case.first.id != record.reviews else case.first
    replayed = await gateway.archive.replay(record, gateway.plane.deadline(), first)
    return Replay(
        id=record.id,
        same=not replayed.differences,
        exact=not replayed.elsewhere,
        differences=list(replayed.differences),
        elsewhere=list(replayed.elsewhere),
        passed_over=list(replayed.passed_over),
        entry=None if replayed.entry is None else replayed.entry.name,
    )


@router.post(
    "/{decision}:contest",
    summary="Contest a decision",
    description=(
        "The trail keeps the applicant's words like inputs. The decision waits for a review, and holds "
        "until then."
    ),
    operation_id="contest_decision",
    response_model=Contest,
    responses=problem_responses(400, 404, 408, 409, 413, 415, 422, 429, 503, 504),
    openapi_extra={**body_of(ContestRequest), "parameters": [KEY_PARAMETER]},
)
@needs(REVIEW | DECIDE)
async def contest_decision(request: Request, decision: str) -> Response:
    body = await read_model(request, ContestRequest, InvalidInputError, '{"reason": "…"}')
    case = await _case(request, decision)
    reviews, key = gateway_of(request).reviews, idempotency_key(request)
    return _answer(await reviews.contest(case, body.reason, key))


@router.post(
    "/{decision}:review",
    summary="Review a decision: correct its inputs, or judge the case",
    description=(
        "With `instance`, the entry of the first decision decides on the corrected inputs. With "
        "`decision` and `reasons`, a person's judgment replaces the entry's decision. Both give a new "
        "decision that names the first. The last decision of a case holds."
    ),
    operation_id="review_decision",
    response_model=Decision | Judgment,
    responses=problem_responses(400, 404, 408, 409, 413, 415, 422, 429, 500, 503, 504),
    openapi_extra={**body_of(ReviewRequest), "parameters": [KEY_PARAMETER]},
)
@needs(REVIEW)
async def review_decision(request: Request, decision: str) -> Response:
    body = await read_model(
        request, ReviewRequest, InvalidInputError, '{"reviewer": "…", "decision": "approve"}'
    )
    request.state.detail = {"reviewer": body.reviewer}
    case = await _case(request, decision)
    reviews, key = gateway_of(request).reviews, idempotency_key(request)
    if body.instance is not None:
        return _answer(await reviews.correct(case, body.reviewer, body.instance, key))
    reasons = [reason.model_dump() for reason in body.reasons]
    return _answer(await reviews.judge(case, body.reviewer, str(body.decision), reasons, key))


async def _case(request: Request, decision: str) -> Case:
    """Return the case of a decision of a model that the caller may use. Raises as `_read`.

    Raises:
        ConflictError: if its first decision was pruned.
    """
    record = await _read(request, decision)
    case = await gateway_of(request).archive.case(record.id)
    if case.first.id != (record.reviews or record.id):
        raise ConflictError(
            f"the first decision of the case, {record.reviews}, was deleted by the retention setting"
        )
    return case


def _answer(answer: Mapping[str, Any]) -> Response:
    content = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(content, media_type=JSON, headers=_NOT_STORED)


def _listed(decision: RecordedDecision) -> ListedDecision:
    content = {name: getattr(decision, name) for name in ListedDecision.model_fields if name != "decision"}
    return ListedDecision(**content, decision=decision.answer.get("decision"))


async def _read(
    request: Request, decision: str, instance: Mapping[str, Any] | None = None
) -> RecordedDecision:
    """Return a decision of a model that the caller may use.

    Raises:
        ForbiddenError: if the caller may not use the decision's model.
        ServiceError: if `Archive.read` raises it.
    """
    record = await gateway_of(request).archive.read(decision, instance)
    context = current()
    if context is not None:
        context.caller.require_model(record.model)
    return record


async def _profile(request: Request, record: RecordedDecision) -> DecisionProfile | None:
    gateway = gateway_of(request)
    return await gateway.archive.profile(record, gateway.plane.repository.entries.values())


def _decision_response(decision: RecordedDecision, languages: Sequence[str]) -> Response:
    """Return a response of `Recorded` with every member and bit of the original answer."""
    recorded = Recorded.model_fields.keys() - {"languages"}
    content = {name: getattr(decision, name) for name in Recorded.model_fields if name in recorded}
    content["languages"] = languages
    return Response(orjson.dumps(content), media_type=JSON, headers=_NOT_STORED)
