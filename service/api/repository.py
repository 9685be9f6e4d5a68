"""What the repository holds: the index, configurations and statistics, as Triton's HTTP end tells them."""

from typing import Any

from fastapi import APIRouter, Request

from service.api.body import read_body
from service.api.openapi import body_of
from service.api.problems import problem_responses
from service.api.schemas import IndexItem, IndexRequest, ModelConfig, ModelStatistics, StatisticsList
from service.api.v2 import Version, plane_of
from service.errors import MalformedError
from service.inference.index import index_of
from service.inference.request import parse_json
from service.observability.statistics import statistics_of
from service.repository.config_json import as_json

router = APIRouter(prefix="/v2", tags=["models"])


@router.post(
    "/repository/index",
    summary="Every entry and whether it can answer",
    operation_id="repository_index",
    description="`ready` asks for those alone that can answer now. The body may be empty.",
    responses=problem_responses(400, 408, 413),
    openapi_extra=body_of(IndexRequest, required=False),
)
async def repository_index(request: Request) -> list[IndexItem]:
    body = await read_body(request, request.app.state.settings.max_body_bytes)
    message = parse_json(body) if body else {}
    ready = message.get("ready", False) if isinstance(message, dict) else None
    if not isinstance(ready, bool):
        raise MalformedError('the body must be empty or an object such as {"ready": true}')
    return [IndexItem(**item) for item in await index_of(plane_of(request), only_ready=ready)]


@router.get("/models/{model}/versions/{version}/config", include_in_schema=False)
@router.get(
    "/models/{model}/config",
    summary="A model's configuration, its config.pbtxt as JSON",
    operation_id="model_config",
    response_model=ModelConfig,
    response_model_exclude_unset=True,
    responses=problem_responses(404),
)
async def model_config(request: Request, model: str, version: Version = None) -> dict[str, Any]:
    return as_json(plane_of(request).repository.entry(model, version).config)


@router.get("/models/{model}/versions/{version}/stats", include_in_schema=False)
@router.get(
    "/models/{model}/stats",
    summary="How often a model was asked and how long it took",
    operation_id="model_statistics",
    responses=problem_responses(404),
)
async def model_statistics(request: Request, model: str, version: Version = None) -> StatisticsList:
    plane = plane_of(request)
    entry = plane.repository.entry(model, version)
    return _listed(statistics_of(plane.metrics, [entry]))


@router.get("/models/stats", include_in_schema=False)
async def all_statistics(request: Request) -> StatisticsList:
    plane = plane_of(request)
    return _listed(statistics_of(plane.metrics, plane.repository.entries.values()))


def _listed(items: list[dict[str, Any]]) -> StatisticsList:
    return StatisticsList(model_stats=[ModelStatistics(**item) for item in items])
