"""Recorded decisions: read one by id, write its applicant's notice, replay it."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from rationale.schema.profile import DecisionProfile
from rationale_service.decisions.archive import noticed
from rationale_service.decisions.trail import RecordedDecision
from rationale_service.errors import InvalidInputError
from rationale_service.observability.context import current
from rationale_service.protocols.rest.administration import RecordedRoute
from rationale_service.protocols.rest.endpoint import gateway_of, read_model
from rationale_service.protocols.rest.openapi import JSON, body_of
from rationale_service.protocols.rest.problems import problem_responses
from rationale_service.protocols.rest.schemas import Decision, Instance
from rationale_service.security.keys import AUDIT, needs

_NOT_STORED = {"Cache-Control": "no-store"}


# A decision holds a person's data, so each call is recorded.
router = APIRouter(prefix="/v1/decisions", tags=["decisions"], route_class=RecordedRoute)


class Recorded(BaseModel):
    """A decision as the audit trail has it."""

    time: str = Field(description="RFC 3339, in UTC")
    model: str
    version: str
    caller: str = Field(description="the name of the key that asked, empty where none was needed")
    request_id: str
    latency_ms: float
    kept: Literal["plain", "hashed", "sealed", "erased"] = Field(description="how its inputs were kept")
    instance: Instance = Field(
        description="what was decided on; null where a digest alone was kept, or its key was erased. Values "
        "in the answer's reasons are null then, too"
    )
    runtime: dict[str, Any] = Field(
        description="what ran: the digest of the files, and the backend's own words"
    )
    answer: Decision = Field(description="as `:decide` answered it")
    languages: list[str] = Field(
        description="languages of the decision profile's texts, in which a notice can be written; none if "
        "the profile is no longer in the repository"
    )


class GivenInstance(BaseModel):
    """What was decided on, for a trail that keeps a digest of it alone."""

    model_config = ConfigDict(extra="forbid", strict=True)

    instance: dict[str, Any] | None = Field(
        None, description="as it was sent then, where the trail kept a digest alone; it is compared"
    )


class NoticeRequest(GivenInstance):
    template: str = Field(
        "adverse-action",
        description="adverse-action (Regulation B, FCRA 615(a)) or eu-consumer-credit (directive 2023/2225)",
    )
    variables: dict[str, Any] = Field(
        default_factory=dict,
        description="what the template names, nested: creditor, applicant, application …; false where there "
        "is no such thing",
    )
    person_declined: bool = Field(
        default=False,
        description="it was referred, and a person declined: `variables.judgment` has the person's reasons",
    )


class NoticeText(BaseModel):
    id: str
    template: str
    language: str
    text: str = Field(description="the statement, as plain text; a draft for your counsel")
    warnings: list[str] = Field(description="what to look at before it is sent")


class Replay(BaseModel):
    """A decision that was computed again by the files that made it."""

    id: str
    same: bool = Field(description="whether nothing differs")
    exact: bool = Field(
        description="whether numbers were held to be equal bit for bit, the runtime being the one that "
        "decided; else within 1e-4 of the largest"
    )
    differences: list[str]
    elsewhere: list[str] = Field(description="in what the runtime is another than the one that decided")
    passed_over: list[str] = Field(description="members of the answer that no replay computes")
    entry: str = Field(description="what decided, by its name today")


@router.get(
    "/{decision}",
    summary="A decision, as it was answered",
    description="With what it was on, as far as the trail keeps it.",
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
    summary="The notice that its applicant gets",
    description="The statement of a decline's principal reasons, by a template that comes with Rationale. It "
    "is returned, and neither sent nor stored. Variables that the template uses and nobody gave are named in "
    "one error (422). All texts are in one of the languages of the profile that decided.",
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
    notice = noticed(
        record,
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
    summary="The decision, computed again",
    description="By the entry with the recorded digests, the row alone, on as many threads as then. One "
    "replay runs at a time, beside the models that are served.",
    operation_id="replay_decision",
    responses=problem_responses(400, 404, 408, 409, 413, 415, 422, 429, 503, 504),
    openapi_extra=body_of(GivenInstance),
)
@needs(AUDIT)
async def replay_decision(request: Request, decision: str) -> Replay:
    body = await read_model(request, GivenInstance, InvalidInputError, "{}")
    record = await _read(request, decision, body.instance)
    gateway = gateway_of(request)
    replayed = await gateway.archive.replay(record, gateway.plane.deadline())
    return Replay(
        id=record.id,
        same=not replayed.differences,
        exact=not replayed.elsewhere,
        differences=list(replayed.differences),
        elsewhere=list(replayed.elsewhere),
        passed_over=list(replayed.passed_over),
        entry=replayed.entry.name,
    )


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
