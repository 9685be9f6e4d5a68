"""The Open Inference Protocol (KServe v2) over HTTP, and `explain`, its missing verb."""

from collections.abc import Callable
from functools import partial
from importlib.metadata import version as package_version
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response
from starlette.routing import Route

from service.api.body import TIMEOUT_HEADER, media_type_of, most_json, read_body, timeout_header
from service.api.openapi import MODEL_PARAMETER, body_of, header
from service.api.problems import problem_responses
from service.api.schemas import (
    InferRequest,
    InferResponse,
    Live,
    ModelMetadata,
    ModelReady,
    Ready,
    ServerMetadata,
    TensorMetadata,
)
from service.api.v2 import codec as oip
from service.errors import AnswerTooLargeError, NotOfferedError
from service.handlers import EXPLAIN, INFER, NOT_OFFERED, Call, Handler, Read, Verb
from service.inference.dataplane import DataPlane
from service.inference.request import Answer, InferenceRequest
from service.repository.entry import PLATFORM

JSON = "application/json"
BINARY = "application/octet-stream"
REFUSALS = (400, 404, 408, 413, 415, 422, 429, 500, 503, 504)
_TENSORS_TO_JSON = 2  # an answer's bytes of tensors, to bytes of JSON that a request may have
Decode = Callable[[Request, bytearray], InferenceRequest]
T = TypeVar("T")
Encode = Callable[[Answer], Response]
EXTENSIONS = ["binary_tensor_data", "explain", "model_configuration", "model_repository", "statistics"]

router = APIRouter(prefix="/v2")
health = APIRouter(prefix="/v2")  # on the admin port too


def plane_of(request: Request) -> DataPlane:
    plane: DataPlane = request.app.state.plane
    return plane


def _version_of(request: Request) -> str | None:
    version: str | None = request.path_params.get("version")
    return version


# Of the path alone: FastAPI would take a plain argument that a path does not name from the query.
Version = Annotated[str | None, Depends(_version_of)]


@router.get("", summary="What this server is", tags=["server"], operation_id="server_metadata")
async def server_metadata(request: Request) -> ServerMetadata:
    backend = plane_of(request).backend
    return ServerMetadata(
        version=package_version("rationale"),
        extensions=EXTENSIONS,
        backend=backend.name,
        devices=list(backend.devices()),
    )


@health.get("/health/live", summary="Is the process alive?", tags=["server"], operation_id="server_live")
async def live() -> Live:
    return Live(live=True)


@health.get(
    "/health/ready",
    summary="Is every model loaded and warmed?",
    operation_id="server_ready",
    tags=["server"],
    responses=problem_responses(503),
)
async def ready(request: Request) -> Ready:
    plane = plane_of(request)
    if (why_not := await plane.why_not_ready()) is not None:
        raise why_not
    return Ready(ready=True)


@router.get("/models/{model}/versions/{version}", include_in_schema=False)
@router.get(
    "/models/{model}",
    summary="A model's inputs and outputs",
    operation_id="model_metadata",
    description="Also under `/models/{model}/versions/{version}`, as all routes of a model.",
    tags=["models"],
    responses=problem_responses(404, 503),
)
async def model_metadata(request: Request, model: str, version: Version = None) -> ModelMetadata:
    plane = plane_of(request)
    entry = plane.repository.entry(model, version)
    return ModelMetadata(
        name=entry.name,
        versions=[entry.version],
        platform=PLATFORM,
        inputs=[_tensor(spec.name, spec.datatype, spec.shape) for spec in entry.inputs],
        outputs=[_tensor(spec.name, spec.datatype, spec.shape) for spec in entry.outputs],
        devices=list(plane.backend.devices(entry)),
    )


@router.get("/models/{model}/versions/{version}/ready", include_in_schema=False)
@router.get(
    "/models/{model}/ready",
    summary="Can the model answer now?",
    description="One that decides is not ready while decisions cannot be recorded (`state-unavailable`), "
    "though it predicts and explains.",
    operation_id="model_ready",
    tags=["models"],
    responses=problem_responses(404, 503),
)
async def model_ready(request: Request, model: str, version: Version = None) -> ModelReady:
    plane = plane_of(request)
    entry = plane.repository.entry(model, version)
    if (why_not := await plane.why_not_ready(entry)) is not None:
        raise why_not
    return ModelReady(name=entry.name, ready=True)


_BYTES = {"schema": {"type": "string", "format": "binary"}}
_PARAMETERS = [
    MODEL_PARAMETER,
    header(oip.LENGTH_HEADER, "integer", "where the JSON ends, if binary tensors follow it"),
    header(TIMEOUT_HEADER, "integer", "milliseconds that the caller waits"),
]


def _infer_docs(name: str, summary: str, description: str) -> dict[str, Any]:
    return {
        "operation_id": name,
        "summary": summary,
        "description": description,
        "tags": ["inference"],
        "response_model": InferResponse,
        "response_model_exclude_none": True,
        "responses": {200: {"content": {BINARY: _BYTES}}, **problem_responses(*REFUSALS)},
        "openapi_extra": {**body_of(InferRequest, other={BINARY: _BYTES}), "parameters": _PARAMETERS},
    }


_INFER = (
    "An OIP request, as JSON or with binary tensors after it (header `Inference-Header-Content-Length`). "
    "`outputs` selects; none gives all. More rows than the model's batch size are split and joined again. "
    "A model's explain entry, `{model}_explain`, is a model of its own here."
)
_EXPLAIN = (
    "The same request as `infer`. The answer holds the model's outputs and the tensors that explain them: "
    "`{input}_attributions` [N, T, …], `{input}_standard_error` and `{input}_interactions` where the entry "
    "was compiled with them, `group_attributions` [N, T, players] of an entry with groups of features, and "
    "`explained_value`, `base_value`, `completeness_gap` [N, T] as far as the method has them. `parameters` "
    "name the method and the digest of the explanation. The parameter `explainer` chooses among a model's "
    "explainers. The parameter `reference_set`, or tensors `{input}_references` [K, …] beside the inputs "
    "(and `reference_weights` [K]), choose what the rows are compared with."
)


async def _refuse(what: str, _: Request) -> Response:
    raise NotOfferedError(NOT_OFFERED[what])


async def infer(request: Request) -> Response:
    return await _respond(request, INFER)


async def explain(request: Request) -> Response:
    return await _respond(request, EXPLAIN)


# The routes of inference are Starlette's own: FastAPI's dependencies and validation cost more than a small
# model does. They are documented as FastAPI's are.
inference = [
    Route(f"/v2/models/{{model}}{version}/{verb}", endpoint, methods=["POST"])
    for version in ("", "/versions/{version}")
    for verb, endpoint in (("explain", explain), ("infer", infer))
]


def documented() -> APIRouter:
    """For the OpenAPI document: these routes as FastAPI has them, which take a while to make."""
    router = APIRouter(prefix="/v2/models/{model}")
    router.post("/infer", **_infer_docs("infer", "Predict", _INFER))(infer)
    router.post("/explain", **_infer_docs("explain", "Predict and explain", _EXPLAIN))(explain)
    return router


unoffered = APIRouter()
for path, what in {
    "/v2/systemsharedmemory/{rest:path}": "shared memory",
    "/v2/cudasharedmemory/{rest:path}": "shared memory",
    "/v2/trace/setting": "trace settings",
    "/v2/models/{model}/trace/setting": "trace settings",
    "/v2/logging": "log settings",
}.items():
    unoffered.add_route(path, partial(_refuse, what), ["GET", "POST"])


async def _respond(request: Request, verb: Verb) -> Response:
    return await respond(request, _decode, _encode, JSON, BINARY, verb=verb)


async def respond(
    request: Request, decode: Decode, encode: Encode, *media_types: str, verb: Verb
) -> Response:
    """Answers a request for a prediction or an explanation, of whichever codec."""
    handler: Handler = request.app.state.handler
    plane, call = handler.plane, call_of(request, verb)
    deadline_s = plane.deadline(call.timeout_s)
    answer = await handler.answer(call, reader(request, decode, *media_types))
    size, most = answer.json_bytes, most_json(request) * _TENSORS_TO_JSON
    if size > most:
        raise AnswerTooLargeError(
            f"the answer has {size} bytes of tensors, of which JSON may hold {most}: send fewer rows, or ask "
            "for binary tensors"
        )
    with plane.budget.holding(size):
        return await plane.off_loop.run(size, partial(encode, answer), deadline_s)


def call_of(request: Request, verb: Verb) -> Call:
    """Return what the path and the headers say."""
    named = request.path_params
    return Call(verb, named["model"], named.get("version"), timeout_header(request))


def reader(request: Request, decode: Decode, *media_types: str) -> Read:
    """Reads and decodes the body, when that is asked for."""

    async def read(deadline_s: float, then: Callable[[InferenceRequest], T]) -> T:
        media_type_of(request, *media_types)
        plane, settings = plane_of(request), request.app.state.settings
        has_raw = BINARY in media_types and oip.LENGTH_HEADER in request.headers
        limit = settings.max_body_bytes if has_raw else min(settings.max_body_bytes, settings.max_json_bytes)
        with plane.budget.growing() as grow:
            body = await read_body(request, limit, deadline_s, grow)
            return await plane.off_loop.run(len(body), lambda: then(decode(request, body)), deadline_s)

    return read


def _decode(request: Request, body: bytearray) -> InferenceRequest:
    return oip.decode_request(body, request.headers.get(oip.LENGTH_HEADER), most_json(request))


def _encode(answer: Answer) -> Response:
    content, length = oip.encode_answer(answer)
    if length is None:
        return Response(content, media_type=JSON)
    return Response(content, media_type=BINARY, headers={oip.LENGTH_HEADER: str(length)})


def _tensor(name: str, datatype: str, shape: tuple[int, ...]) -> TensorMetadata:
    return TensorMetadata(name=name, datatype=datatype, shape=[-1, *shape])
