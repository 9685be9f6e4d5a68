"""Reference sets over HTTP: upload, list, read and delete them, with the scope admin.

Explainers that use a set prevent its deletion; `force` deletes them too.
"""

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from rationale.schema.manifest import Spread
from rationale_service.engine.checks import check_name
from rationale_service.errors import InvalidInputError
from rationale_service.models.references.formats import MEDIA_TYPES, NPZ
from rationale_service.models.references.service import ReferenceSetService
from rationale_service.models.references.store import StoredReferenceSet
from rationale_service.protocols.rest.administration import AdministrativeRoute
from rationale_service.protocols.rest.endpoint import gateway_of, media_type_of, read_body
from rationale_service.protocols.rest.problems import problem_responses
from rationale_service.security.keys import ADMIN, needs

router = APIRouter(prefix="/v2/reference-sets", tags=["reference sets"], route_class=AdministrativeRoute)


class InputRows(BaseModel):
    datatype: str
    shape: list[int] = Field(description="[K, …]")


class ReferenceSetStatus(BaseModel):
    """A reference set. Its rows are not shown here."""

    name: str
    digest: str = Field(description="SHA-256 of the content: one file, however many names stand for it")
    model: str = Field(description="whose inputs it was checked against")
    rows: int
    weighted: bool = Field(description="whether the rows have weights, as centroids do")
    inputs: dict[str, InputRows]
    features: list[str] | None = Field(description="names of the columns, if it has some")
    size: int = Field(description="bytes of its file")
    created: datetime
    used_by: list[str] = Field(description="explainers made of it, as model/explainer")
    baked: list[str] = Field(
        description="explainers that the gateway makes of it, for requests that name the set"
    )


class ReferenceSetSpreads(BaseModel):
    name: str
    digest: str
    rows: int
    features: list[Spread] = Field(description="by name, as far as they have names")


class ReferenceSetList(BaseModel):
    reference_sets: list[ReferenceSetStatus]


Force = Annotated[bool, Query(description="also delete the explainers that use it")]
Model = Annotated[str, Query(description="the model for whose inputs the rows are")]
_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_ROWS: dict[str, Any] = {"type": "array", "items": {}, "description": "rows, as v1's instances are"}
_UPLOAD = {
    "requestBody": {
        "required": True,
        "content": {
            media: _BINARY if kind != ".json" else {"schema": {"oneOf": [
                _ROWS,
                {
                    "type": "object",
                    "required": ["references"],
                    "properties": {
                        "references": _ROWS,
                        "weights": {"type": "array", "items": {"type": "number"}},
                    },
                },
            ]}}
            for media, kind in MEDIA_TYPES.items()
        },
    },
}  # fmt: skip


@router.get("", summary="The reference sets kept here", operation_id="list_reference_sets")
@needs(ADMIN)
async def list_reference_sets(request: Request) -> ReferenceSetList:
    service = gateway_of(request).references
    sets = await asyncio.to_thread(service.sets.all)
    return ReferenceSetList(reference_sets=[_set_status(reference_set, service) for reference_set in sets])


@router.get(
    "/{name}",
    summary="A reference set, without its rows",
    operation_id="get_reference_set",
    responses=problem_responses(404),
)
@needs(ADMIN)
async def get_reference_set(request: Request, name: str) -> ReferenceSetStatus:
    service = gateway_of(request).references
    return _set_status(await asyncio.to_thread(service.sets.get, name), service)


@router.get(
    "/{name}/rows",
    summary="The rows of a reference set",
    description="They are people's data: an .npz with an array for each input, and weights if it has some.",
    operation_id="get_reference_set_rows",
    response_class=Response,
    responses={200: {"content": {NPZ: _BINARY}, "description": "An .npz"}, **problem_responses(404)},
)
@needs(ADMIN)
async def get_reference_set_rows(request: Request, name: str) -> Response:
    sets = gateway_of(request).references.sets

    def read() -> bytes:
        return sets.path(sets.get(name).digest).read_bytes()

    return Response(await asyncio.to_thread(read), media_type=NPZ, headers={"Cache-Control": "no-store"})


@router.get(
    "/{name}/spreads",
    summary="How the values of each feature are spread over a reference set",
    description="Quantiles of each feature by itself, by the rows' weights; not which values belong to one "
    "row. The least and the largest are somebody's.",
    operation_id="get_reference_set_spreads",
    responses=problem_responses(404),
)
@needs(ADMIN)
async def get_reference_set_spreads(request: Request, name: str, response: Response) -> ReferenceSetSpreads:
    service = gateway_of(request).references

    def read() -> ReferenceSetSpreads:
        reference_set = service.sets.get(name)
        features = list(service.spreads(reference_set))
        return ReferenceSetSpreads(
            name=name, digest=reference_set.digest, rows=reference_set.rows, features=features
        )

    response.headers["Cache-Control"] = "no-store"
    return await asyncio.to_thread(read)


@router.put(
    "/{name}",
    summary="Upload a reference set",
    description="npz, npy, parquet, CSV or JSON, by Content-Type. Columns of a table are found by the names "
    "of the model's features, as its explainers know them. The same content again changes nothing; another "
    "content under the same name takes its place, unless explainers use it. What explains the model by "
    "default is made with the set in the background: `Link` (rel status) says where to look how that goes, "
    "and requests that name the set wait for it.",
    operation_id="put_reference_set",
    status_code=201,
    response_model=ReferenceSetStatus,
    responses={
        200: {"model": ReferenceSetStatus, "description": "The name was there before"},
        **problem_responses(400, 404, 408, 409, 413, 415, 422, 429, 503),
    },
    openapi_extra=_UPLOAD,
)
@needs(ADMIN)
async def put_reference_set(
    request: Request, response: Response, name: str, model: Model, *, force: Force = False
) -> ReferenceSetStatus:
    gateway = gateway_of(request)
    service, plane = gateway.references, gateway.plane
    check_name(name, "a reference set's", InvalidInputError)
    media_type = media_type_of(request, *MEDIA_TYPES)
    plane.repository.entry(model)  # before the body is read, in case there is no such model
    with plane.budget.growing() as grow:
        body = bytes(await read_body(request, service.most_bytes, plane.deadline(), grow))
        rows = await service.parse(body, MEDIA_TYPES[media_type], model)
        del body
    request.state.detail = {"digest": rows.digest, "rows": rows.count}
    stored, is_new = await service.put(name, model, rows, force=force)
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"/v2/reference-sets/{name}"
    status = _set_status(stored, service)
    for baked in status.baked:
        response.headers.append("Link", f'</v2/models/{baked.replace("/", "/explainers/")}>; rel="status"')
    return status


@router.delete(
    "/{name}",
    summary="Delete a reference set and all that was baked from it",
    description="When this answers, no file of the gateway and no loaded model holds its rows, unless "
    "another name stands for the same content. 409 while explainers use it; with `force` they go too.",
    operation_id="delete_reference_set",
    status_code=204,
    response_class=Response,
    responses=problem_responses(404, 409, 422, 503),
)
@needs(ADMIN)
async def delete_reference_set(request: Request, name: str, *, force: Force = False) -> None:
    await gateway_of(request).references.remove(name, force=force)


def _set_status(reference_set: StoredReferenceSet, service: ReferenceSetService) -> ReferenceSetStatus:
    fields = asdict(reference_set)
    created = datetime.fromtimestamp(fields.pop("created_s"), UTC)
    used_by, baked = service.users(reference_set)
    return ReferenceSetStatus(**fields, created=created, used_by=used_by, baked=baked)
