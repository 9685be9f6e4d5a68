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
    digest: str = Field(description="SHA-256 of the content: all names of the same content share one file")
    model: str = Field(description="the model whose inputs it was checked against")
    rows: int
    weighted: bool = Field(description="true: the rows have weights, as centroids do")
    inputs: dict[str, InputRows]
    features: list[str] | None = Field(description="names of the columns, if there are any")
    size: int = Field(description="size of its file in bytes")
    created: datetime
    used_by: list[str] = Field(description="explainers that use it, as model/explainer")
    baked: list[str] = Field(
        description="explainers that the gateway compiles from it, for requests that name the set"
    )


class ReferenceSetSpreads(BaseModel):
    name: str
    digest: str
    rows: int
    features: list[Spread] = Field(description="by name, if the features have names")


class ReferenceSetList(BaseModel):
    reference_sets: list[ReferenceSetStatus]


Force = Annotated[bool, Query(description="also delete the explainers that use it")]
Model = Annotated[str, Query(description="the model that the rows are for")]
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


@router.get("", summary="The stored reference sets", operation_id="list_reference_sets")
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
    description=("People's data: an .npz with an array for each input, and weights if the set has them."),
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
    summary="The distribution of each feature over a reference set",
    description=(
        "Weighted quantiles of each feature by itself. They do not show which values belong to one row, "
        "but the lowest and the highest are values of real rows."
    ),
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
    description=(
        "npz, npy, parquet, CSV or JSON, by Content-Type. Columns of a table are matched by the names of "
        "the model's features. If you send the same content again, nothing changes. Other content under "
        "the same name replaces it, unless explainers use it. In the background the gateway compiles the "
        "default explainer with the new set. `Link` (rel status) is the address of its state, and "
        "requests that name the set wait for it."
    ),
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
    summary="Delete a reference set and everything compiled from it",
    description=(
        "After the answer, no file of the gateway and no loaded model holds its rows, unless another name "
        "has the same content. 409 while explainers use it; `force` deletes them too."
    ),
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
