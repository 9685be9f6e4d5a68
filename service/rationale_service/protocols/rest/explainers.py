"""Explainers as resources, which operators change while the gateway serves."""

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from rationale_service.errors import InvalidExplainerError
from rationale_service.models.explainers.service import ExplainerState
from rationale_service.models.explainers.spec import ExplainerSpec
from rationale_service.protocols.rest.administration import AdministrativeRoute
from rationale_service.protocols.rest.endpoint import gateway_of, read_model
from rationale_service.protocols.rest.openapi import body_of
from rationale_service.protocols.rest.problems import problem_responses
from rationale_service.security.keys import ADMIN, needs

router = APIRouter(
    prefix="/v2/models/{model}/explainers", tags=["explainers"], route_class=AdministrativeRoute
)


class CompileProgress(BaseModel):
    stage: str = Field(description="stage of the compiler")
    done: int
    total: int


class Serving(BaseModel):
    """The entry that answers now."""

    entry: str = Field(description="its name in the repository, and as a model under /v2/models")
    digest: str = Field(
        description="digest of model, references, options and compiler: it names the artifact"
    )
    method: str
    digests: dict[str, str | None] = Field(description="digests in its answers and its manifest")
    loaded: bool = Field(description="true: it is loaded")


class ExplainerStatus(BaseModel):
    """An explainer, and what is being done for it."""

    name: str
    model: str
    state: str = Field(description="queued, compiling, checking, publishing, loading, ready or failed")
    progress: CompileProgress | None = None
    error: str | None = Field(None, description="the reason of a failure; the old explainer still answers")
    default: bool = Field(description="true: it answers requests that name no explainer")
    asked: dict[str, Any] = Field(description="the latest specification, without defaults")
    digest: str = Field(description="digest of the latest specification")
    serving: Serving | None = None
    timings_s: dict[str, float] = Field(description="seconds spent in each state")
    updated: datetime


class ExplainerList(BaseModel):
    explainers: list[ExplainerStatus]


@router.get(
    "",
    summary="A model's explainers",
    operation_id="list_explainers",
    responses=problem_responses(404, 422),
)
@needs(ADMIN)
async def list_explainers(request: Request, model: str) -> ExplainerList:
    return ExplainerList(
        explainers=[_explainer_status(status) for status in gateway_of(request).explainers.all_of(model)]
    )


@router.get(
    "/{name}",
    summary="An explainer's state and progress",
    operation_id="get_explainer",
    responses=problem_responses(404, 422),
)
@needs(ADMIN)
async def get_explainer(request: Request, model: str, name: str) -> ExplainerStatus:
    return _explainer_status(gateway_of(request).explainers.get(model, name))


@router.put(
    "/{name}",
    summary="Create or replace an explainer",
    description=(
        "Answers at once; the compile runs in a separate process, and `Location` is the address of its "
        "state. The old explainer answers until the new one is compiled, checked, loaded and warm. A "
        "failure changes nothing. If the explainer already has this content, nothing is compiled."
    ),
    operation_id="put_explainer",
    status_code=202,
    response_model=ExplainerStatus,
    responses={
        200: {"model": ExplainerStatus, "description": "It is there already"},
        **problem_responses(400, 404, 409, 413, 415, 422, 429, 503),
    },
    openapi_extra=body_of(ExplainerSpec),
)
@needs(ADMIN)
async def put_explainer(request: Request, response: Response, model: str, name: str) -> ExplainerStatus:
    spec = await read_model(request, ExplainerSpec, InvalidExplainerError, '{"method": "gradient"}')
    request.state.detail = spec.model_dump(mode="json", exclude_defaults=True)
    status = await gateway_of(request).explainers.put(model, name, spec)
    response.headers["Location"] = f"/v2/models/{model}/explainers/{name}"
    response.status_code = 200 if status.record.settled else 202
    return _explainer_status(status)


@router.delete(
    "/{name}",
    summary="Remove an explainer",
    description=("Running requests finish. The compiled entry is deleted, unless another explainer uses it."),
    operation_id="delete_explainer",
    status_code=204,
    response_class=Response,
    responses=problem_responses(404, 422, 503),
)
@needs(ADMIN)
async def delete_explainer(request: Request, model: str, name: str) -> None:
    await gateway_of(request).explainers.delete(model, name)


def _explainer_status(status: ExplainerState) -> ExplainerStatus:
    record, progress, entry = status.record, status.progress, status.entry
    serving = None
    if entry is not None and entry.manifest is not None:
        serving = Serving(
            entry=entry.name,
            digest=record.serving or "",
            method=entry.manifest.method.name,
            digests=entry.manifest.digests.model_dump(),
            loaded=status.loaded,
        )
    return ExplainerStatus(
        name=record.name,
        model=record.model,
        state=record.stage.value,
        progress=progress and CompileProgress(stage=progress.stage, done=progress.done, total=progress.total),
        error=record.error,
        default=record.is_default,
        asked=record.spec,
        digest=record.digest,
        serving=serving,
        timings_s=record.timings,
        updated=datetime.fromtimestamp(record.updated_s, UTC),
    )
