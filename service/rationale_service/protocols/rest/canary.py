"""Canaries: a second explainer that answers a share of the requests in place of a model's default."""

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from rationale_service.errors import InvalidExplainerError
from rationale_service.models.explainers.records import CanaryRecord
from rationale_service.protocols.rest.administration import AdministrativeRoute
from rationale_service.protocols.rest.endpoint import gateway_of, read_model
from rationale_service.protocols.rest.openapi import body_of
from rationale_service.protocols.rest.problems import problem_responses
from rationale_service.security.keys import ADMIN, needs

router = APIRouter(prefix="/v2/models/{model}/canary", tags=["explainers"], route_class=AdministrativeRoute)


class CanarySpec(BaseModel):
    """Which explainer answers a share of the explain requests that name none."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"explainer": "approved-2026", "share": 0.1}]},
    )

    explainer: str = Field(
        min_length=1, description="one of the model's other explainers; compiled: `NAME_explain`"
    )
    share: float = Field(ge=0, le=1, description="share of the requests, 0 to 1")


@router.get(
    "",
    summary="A model's canary",
    operation_id="get_canary",
    responses=problem_responses(404, 422),
)
@needs(ADMIN)
async def get_canary(request: Request, model: str) -> CanarySpec:
    return _canary_spec(gateway_of(request).explainers.canary(model))


@router.put(
    "",
    summary="Let another explainer answer a share of the requests",
    description=(
        "A share of the requests that name no explainer; decisions are not split. The same explainer "
        "answers requests with the same `id`, or the same header `x-request-id`. At a larger share the "
        "canary keeps its requests. Answers name their explainer, and `rationale_canary_requests` counts "
        "both."
    ),
    operation_id="put_canary",
    responses=problem_responses(400, 404, 409, 413, 415, 422, 503),
    openapi_extra=body_of(CanarySpec),
)
@needs(ADMIN)
async def put_canary(request: Request, model: str) -> CanarySpec:
    spec = await read_model(request, CanarySpec, InvalidExplainerError, '{"explainer": "new", "share": 0.1}')
    request.state.detail = spec.model_dump(mode="json")
    return _canary_spec(
        await gateway_of(request).explainers.put_canary(CanaryRecord(model, spec.explainer, spec.share))
    )


@router.delete(
    "",
    summary="Let the default explainer answer all requests",
    operation_id="delete_canary",
    status_code=204,
    response_class=Response,
    responses=problem_responses(404, 422, 503),
)
@needs(ADMIN)
async def delete_canary(request: Request, model: str) -> None:
    await gateway_of(request).explainers.delete_canary(model)


def _canary_spec(canary: CanaryRecord) -> CanarySpec:
    return CanarySpec(explainer=canary.explainer, share=canary.share)
