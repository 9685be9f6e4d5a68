"""Reference sets over HTTP: uploaded, listed, read back and deleted, by who has the scope admin alone.

What uses a set stands between it and its deletion: with `force` that goes too.
"""

import asyncio
import weakref
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Protocol

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from compiler.manifest import Manifest
from service.api.body import media_type_of, read_body
from service.api.problems import problem_responses
from service.api.v2 import plane_of
from service.errors import ConflictError, InvalidInputError, NotExplainableError
from service.inference.dataplane import DataPlane
from service.references.formats import MEDIA_TYPES, NPZ, Rows, parse_rows
from service.references.store import ReferenceSet, ReferenceSets, check_name
from service.repository.registry import ModelRegistry

router = APIRouter(prefix="/v2/reference-sets", tags=["reference sets"])

_SWITCH = {"true": True, "1": True, "false": False, "0": False}


class Users(Protocol):
    """What explainers know of the sets they hold."""

    def users(self, references: str) -> list[str]:
        """Those that use a content, as `model/explainer`."""

    async def forget(self, references: str) -> None:
        """Removes them, and every artefact that holds the content, loaded or on the disk."""


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


class ReferenceSetList(BaseModel):
    reference_sets: list[ReferenceSetStatus]


class ReferenceSetService:
    """One gateway's sets, and one upload at a time: parsing takes several times the memory of its rows."""

    def __init__(self, sets: ReferenceSets, users: Users, plane: DataPlane, most_bytes: int) -> None:
        self.sets = sets
        self.most_bytes = most_bytes
        self._users = users
        self._plane = plane
        self._parsing = asyncio.Lock()
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def put(self, name: str, model: str, rows: Rows, *, force: bool) -> tuple[ReferenceSet, bool]:
        """Whether it is new."""
        async with self._turn(name):
            known = {one.name: one for one in await asyncio.to_thread(self.sets.all)}
            before = known.get(name)
            if before is None or before.digest == rows.digest:
                return await asyncio.to_thread(self.sets.put, name, model, rows), before is None
            with self.sets.leaving(before.digest):
                await self._release(before, force=force)
                return await asyncio.to_thread(self.sets.put, name, model, rows), False

    async def remove(self, name: str, *, force: bool) -> None:
        async with self._turn(name):
            found = await asyncio.to_thread(self.sets.get, name)
            with self.sets.leaving(found.digest):
                await self._release(found, force=force)
                await asyncio.to_thread(self.sets.remove, name)

    async def parse(self, body: bytes, kind: str, model: str, registry: ModelRegistry) -> Rows:
        entry = registry.entry(model)
        manifest = _manifest(registry, model)
        async with self._parsing:
            return await asyncio.to_thread(parse_rows, body, kind, entry, manifest, self.most_bytes)

    def status(self, one: ReferenceSet) -> ReferenceSetStatus:
        fields = asdict(one)
        created = datetime.fromtimestamp(fields.pop("created_s"), UTC)
        return ReferenceSetStatus(**fields, created=created, used_by=self._named_users(one.digest))

    async def _release(self, one: ReferenceSet, *, force: bool) -> None:
        """What was baked from a content that no other name stands for goes before its rows do."""
        if self.sets.named(one.digest) != [one.name]:
            return
        users = self._named_users(one.digest)
        if users and not force:
            raise ConflictError(
                f"reference set '{one.name}' is used by {', '.join(users[:10])}: delete them first, or say "
                "?force=true to delete them too"
            )
        await self._users.forget(one.digest)
        self._plane.answers.clear()

    def _named_users(self, digest: str) -> list[str]:
        """Without those that the gateway made of itself, for requests: they go without being asked."""
        return [user for user in self._users.users(digest) if "/~" not in user]

    def _turn(self, name: str) -> asyncio.Lock:
        return self._turns.setdefault(name, asyncio.Lock())


def desk_of(request: Request) -> ReferenceSetService:
    desk: ReferenceSetService = request.app.state.references
    return desk


_FORCE = {
    "name": "force",
    "in": "query",
    "required": False,
    "description": "also delete the explainers that use it",
    "schema": {"type": "boolean", "default": False},
}
_MODEL = {
    "name": "model",
    "in": "query",
    "required": True,
    "description": "the model for whose inputs the rows are",
    "schema": {"type": "string"},
}
_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_ROWS: dict[str, Any] = {"type": "array", "items": {}, "description": "rows, as v1's instances are"}
_UPLOAD = {
    "parameters": [_MODEL, _FORCE],
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
async def list_reference_sets(request: Request) -> ReferenceSetList:
    desk = desk_of(request)
    known = await asyncio.to_thread(desk.sets.all)
    return ReferenceSetList(reference_sets=[desk.status(one) for one in known])


@router.get(
    "/{name}",
    summary="A reference set, without its rows",
    operation_id="get_reference_set",
    responses=problem_responses(404),
)
async def get_reference_set(request: Request, name: str) -> ReferenceSetStatus:
    desk = desk_of(request)
    return desk.status(await asyncio.to_thread(desk.sets.get, name))


@router.get(
    "/{name}/rows",
    summary="The rows of a reference set",
    description="They are people's data: an .npz with an array for each input, and weights if it has some.",
    operation_id="get_reference_set_rows",
    response_class=Response,
    responses={200: {"content": {NPZ: _BINARY}, "description": "An .npz"}, **problem_responses(404)},
)
async def get_reference_set_rows(request: Request, name: str) -> Response:
    sets = desk_of(request).sets

    def read() -> bytes:
        return sets.path(sets.get(name).digest).read_bytes()

    return Response(await asyncio.to_thread(read), media_type=NPZ, headers={"Cache-Control": "no-store"})


@router.put(
    "/{name}",
    summary="Upload a reference set",
    description="npz, npy, parquet, CSV or JSON, by Content-Type. Columns of a table are found by the names "
    "of the model's features, as its explainers know them. The same content again changes nothing; another "
    "content under the same name takes its place, unless explainers use it.",
    operation_id="put_reference_set",
    status_code=201,
    response_model=ReferenceSetStatus,
    responses={
        200: {"model": ReferenceSetStatus, "description": "The name was there before"},
        **problem_responses(400, 404, 408, 409, 413, 415, 422, 429, 503),
    },
    openapi_extra=_UPLOAD,
)
async def put_reference_set(request: Request, response: Response, name: str) -> ReferenceSetStatus:
    desk, plane = desk_of(request), plane_of(request)
    check_name(name)
    media_type = media_type_of(request, *MEDIA_TYPES)
    model = request.query_params.get("model")
    if not model:
        raise InvalidInputError("say for which model's inputs the rows are: ?model=NAME")
    plane.repository.entry(model)  # before the body is read: there may be no such model
    body = await read_body(request, desk.most_bytes, plane.deadline(), plane.budget)
    rows = await desk.parse(bytes(body), MEDIA_TYPES[media_type], model, plane.repository)
    made, is_new = await desk.put(name, model, rows, force=_force(request))
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"/v2/reference-sets/{name}"
    return desk.status(made)


@router.delete(
    "/{name}",
    summary="Delete a reference set and all that was baked from it",
    description="When this answers, no file of the gateway and no loaded model holds its rows, unless "
    "another name stands for the same content. 409 while explainers use it; with `force` they go too.",
    operation_id="delete_reference_set",
    status_code=204,
    response_class=Response,
    responses=problem_responses(404, 409, 422, 503),
    openapi_extra={"parameters": [_FORCE]},
)
async def delete_reference_set(request: Request, name: str) -> None:
    await desk_of(request).remove(name, force=_force(request))


def _force(request: Request) -> bool:
    given = request.query_params.get("force", "false").lower()
    if given not in _SWITCH:
        raise InvalidInputError("force must be true or false")
    return _SWITCH[given]


def _manifest(registry: ModelRegistry, model: str) -> Manifest | None:
    try:
        return registry.explainer(model).manifest
    except NotExplainableError:
        return None
