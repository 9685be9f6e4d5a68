"""The repository's index, configurations and statistics, in the form of Triton's HTTP API."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from rationale.errors import quoted
from rationale_service.engine.index import index_of
from rationale_service.engine.large_requests import SMALL, parse_json
from rationale_service.errors import MalformedError, NotOfferedError
from rationale_service.observability.statistics import statistics_of
from rationale_service.protocols.rest.administration import AdministrativeRoute
from rationale_service.protocols.rest.endpoint import gateway_of, read_body
from rationale_service.protocols.rest.openapi import body_of
from rationale_service.protocols.rest.problems import problem_responses
from rationale_service.protocols.rest.schemas import (
    IndexItem,
    IndexRequest,
    LoadRequest,
    ModelConfig,
    ModelStatistics,
    StatisticsList,
)
from rationale_service.protocols.rest.v2 import Version
from rationale_service.repository.config_json import as_json
from rationale_service.security.keys import ADMIN, ANY_KEY, needs

router = APIRouter(prefix="/v2", tags=["models"])
index = APIRouter(prefix="/v2", tags=["models"])  # on the admin port too
admin = APIRouter(prefix="/v2/repository/models", tags=["repository"], route_class=AdministrativeRoute)


@index.post(
    "/repository/index",
    summary="Every entry and whether it can answer",
    operation_id="repository_index",
    description="`ready: true` lists only entries that can answer now. The body may be empty.",
    responses=problem_responses(400, 408, 413),
    openapi_extra=body_of(IndexRequest, required=False),
)
@needs(ANY_KEY)
async def repository_index(request: Request) -> list[IndexItem]:
    ready = (await _message(request)).get("ready", False)
    if not isinstance(ready, bool):
        raise MalformedError('the body must be empty or an object such as {"ready": true}')
    return [IndexItem(**item) for item in await index_of(gateway_of(request).plane, only_ready=ready)]


@router.get("/models/{model}/versions/{version}/config", include_in_schema=False)
@router.get(
    "/models/{model}/config",
    summary="A model's configuration, its config.pbtxt as JSON",
    operation_id="model_config",
    response_model=ModelConfig,
    response_model_exclude_unset=True,
    responses=problem_responses(404, 503),
)
@needs(ANY_KEY)
async def model_config(request: Request, model: str, version: Version = None) -> dict[str, Any]:
    return as_json(gateway_of(request).plane.repository.entry(model, version).config)


@router.get("/models/{model}/versions/{version}/stats", include_in_schema=False)
@router.get(
    "/models/{model}/stats",
    summary="Counts and times of a model's requests",
    operation_id="model_statistics",
    responses=problem_responses(404, 503),
)
@needs(ANY_KEY)
async def model_statistics(request: Request, model: str, version: Version = None) -> StatisticsList:
    plane = gateway_of(request).plane
    entry = plane.repository.entry(model, version)
    return _statistics_list(statistics_of(plane.metrics, [entry]))


@router.get("/models/stats", include_in_schema=False)
@needs(ANY_KEY)
async def all_statistics(request: Request) -> StatisticsList:
    plane = gateway_of(request).plane
    return _statistics_list(statistics_of(plane.metrics, plane.repository.entries.values()))


_EMPTY_RESPONSE: dict[int | str, dict[str, Any]] = {200: {"description": "Done"}}


@admin.post(
    "/{model}/load",
    summary="Load an entry in its current version on the disk",
    description=(
        "Loads a new or changed entry. The old one answers until the new one is loaded and warm, and a "
        "failure changes nothing. SIGHUP does this for all changed entries."
    ),
    operation_id="repository_load",
    response_class=Response,
    responses={**_EMPTY_RESPONSE, **problem_responses(400, 404, 408, 409, 413, 501, 503)},
    openapi_extra=body_of(LoadRequest, required=False),
)
@needs(ADMIN)
async def load(request: Request, model: str) -> Response:
    await _check_parameters(request)
    await gateway_of(request).live.load(model)
    return Response()


@admin.post(
    "/{model}/unload",
    summary="Stop serving an entry until it is loaded again or its files change",
    description="Running requests finish. Its memory is freed after the longest possible one.",
    operation_id="repository_unload",
    response_class=Response,
    responses={**_EMPTY_RESPONSE, **problem_responses(400, 404, 408, 409, 413, 501, 503)},
    openapi_extra=body_of(LoadRequest, required=False),
)
@needs(ADMIN)
async def unload(request: Request, model: str) -> Response:
    await _check_parameters(request)
    await gateway_of(request).live.unload(model)
    return Response()


async def _check_parameters(request: Request) -> None:
    """Raise NotOfferedError if a parameter is set, or MalformedError."""
    parameters = (await _message(request)).get("parameters", {})
    if not isinstance(parameters, dict):
        raise MalformedError("`parameters` must be an object")
    names = [name for name, value in parameters.items() if value is not False]
    if names:
        raise NotOfferedError(
            f"the parameter {quoted(names)} is not supported: write the entry's files, then load it"
        )


async def _message(request: Request) -> dict[str, Any]:
    """Return the body's object; empty without a body. Raises MalformedError, and as `read_body`."""
    body = await read_body(request, SMALL, gateway_of(request).plane.deadline())
    message = parse_json(body, SMALL) if body else {}
    if not isinstance(message, dict):
        raise MalformedError("the body must be empty or an object")
    return message


def _statistics_list(items: list[dict[str, Any]]) -> StatisticsList:
    return StatisticsList(model_stats=[ModelStatistics(**item) for item in items])
