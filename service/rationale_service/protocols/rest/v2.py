"""The Open Inference Protocol (KServe v2) over HTTP, and `explain`, its missing verb.

A body is JSON, or JSON followed by raw tensors; in that case the header `Inference-Header-Content-Length`
gives the length of the JSON.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Request
from pydantic import ValidationError
from starlette.responses import Response

from rationale.distribution import version
from rationale_service.engine.checks import Faults, from_validation
from rationale_service.engine.large_requests import parse_json
from rationale_service.engine.request import (
    InferenceAnswer,
    InferenceRequest,
    check_form,
    check_parameters,
    choices_of,
    note_duplicate,
    timeout_of,
)
from rationale_service.errors import InvalidInputError, MalformedError, NotOfferedError
from rationale_service.handlers import EXPLAIN, INFER, NOT_OFFERED, Verb
from rationale_service.protocols.rest.endpoint import (
    BINARY,
    JSON,
    LENGTH_HEADER,
    REFUSALS,
    TIMEOUT_HEADER,
    gateway_of,
    most_json,
    respond,
)
from rationale_service.protocols.rest.openapi import MODEL_PARAMETER, body_of, header
from rationale_service.protocols.rest.problems import problem_responses
from rationale_service.protocols.rest.routes import DirectRoute
from rationale_service.protocols.rest.schemas import (
    InferRequest,
    InferResponse,
    InputTensor,
    Live,
    ModelMetadata,
    ModelReady,
    Ready,
    RequestedOutput,
    ServerMetadata,
    TensorMetadata,
)
from rationale_service.repository.entry import PLATFORM
from rationale_service.security import keys
from rationale_service.security.keys import needs
from rationale_service.tensors import Array, Tensors, datatype_of, from_binary, from_json, to_binary, to_json

EXTENSIONS = ["binary_tensor_data", "explain", "model_configuration", "model_repository", "statistics"]

router = APIRouter(prefix="/v2")
health = APIRouter(prefix="/v2")  # on the admin port too
inference = APIRouter(prefix="/v2/models/{model}", route_class=DirectRoute)
unoffered = APIRouter()


def _version_of(request: Request) -> str | None:
    version: str | None = request.path_params.get("version")
    return version


# Version from the path alone: FastAPI would take a plain argument from the query if the path lacks it.
Version = Annotated[str | None, Depends(_version_of)]


@router.get(
    "", summary="Name, version and extensions of this server", tags=["server"], operation_id="server_metadata"
)
@needs(keys.NOBODY_NEEDS)
async def server_metadata(request: Request) -> ServerMetadata:
    backend = gateway_of(request).plane.backend
    return ServerMetadata(
        version=version(),
        extensions=EXTENSIONS,
        backend=backend.name,
        devices=list(backend.devices()),
    )


@health.get("/health/live", summary="Is the process alive?", tags=["server"], operation_id="server_live")
@needs(keys.NOBODY_NEEDS)
async def live() -> Live:
    return Live(live=True)


@health.get(
    "/health/ready",
    summary="Is every model loaded and warmed?",
    operation_id="server_ready",
    tags=["server"],
    responses=problem_responses(503),
)
@needs(keys.NOBODY_NEEDS)
async def ready(request: Request) -> Ready:
    plane = gateway_of(request).plane
    if (why_not := await plane.why_not_ready()) is not None:
        raise why_not
    return Ready(ready=True)


@router.get("/models/{model}/versions/{version}", include_in_schema=False)
@router.get(
    "/models/{model}",
    summary="A model's inputs and outputs",
    operation_id="model_metadata",
    description="Also under `/models/{model}/versions/{version}`, like all routes of a model.",
    tags=["models"],
    responses=problem_responses(404, 503),
)
@needs(keys.ANY_KEY)
async def model_metadata(request: Request, model: str, version: Version = None) -> ModelMetadata:
    plane = gateway_of(request).plane
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
    description=(
        "A model with a decision profile is not ready while decisions cannot be recorded "
        "(`state-unavailable`). It still predicts and explains."
    ),
    operation_id="model_ready",
    tags=["models"],
    responses=problem_responses(404, 503),
)
@needs(keys.NOBODY_NEEDS)
async def model_ready(request: Request, model: str, version: Version = None) -> ModelReady:
    plane = gateway_of(request).plane
    entry = plane.repository.entry(model, version)
    if (why_not := await plane.why_not_ready(entry)) is not None:
        raise why_not
    return ModelReady(name=entry.name, ready=True)


_BYTES = {"schema": {"type": "string", "format": "binary"}}
_PARAMETERS = [
    MODEL_PARAMETER,
    header(LENGTH_HEADER, "integer", "where the JSON ends, if binary tensors follow it"),
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
    "(and `reference_weights` [K]), choose what the rows are compared with. Tensors `{input}_compare_with` "
    "[N or 1, …], or the parameter `compare_with` with ids of recorded decisions (by commas; scope audit), "
    "compare each row with one of its own."
)


async def _refuse(feature: str, _: Request) -> Response:
    raise NotOfferedError(NOT_OFFERED[feature])


@inference.post("/versions/{version}/infer", include_in_schema=False)
@inference.post("/infer", **_infer_docs("infer", "Predict", _INFER))
@needs(keys.needed_by_model)
async def infer(request: Request) -> Response:
    return await _respond(request, INFER)


@inference.post("/versions/{version}/explain", include_in_schema=False)
@inference.post("/explain", **_infer_docs("explain", "Predict and explain", _EXPLAIN))
@needs(keys.EXPLAIN)
async def explain(request: Request) -> Response:
    return await _respond(request, EXPLAIN)


for path, feature in {
    "/v2/systemsharedmemory/{rest:path}": "shared memory",
    "/v2/cudasharedmemory/{rest:path}": "shared memory",
    "/v2/trace/setting": "trace settings",
    "/v2/models/{model}/trace/setting": "trace settings",
    "/v2/logging": "log settings",
}.items():
    unoffered.add_route(path, needs(keys.ANY_KEY)(partial(_refuse, feature)), ["GET", "POST"])


async def _respond(request: Request, verb: Verb) -> Response:
    return await respond(request, _decode, _encode, JSON, BINARY, verb=verb)


def _decode(request: Request, body: bytearray) -> InferenceRequest:
    return decode_request(body, request.headers.get(LENGTH_HEADER), most_json(request))


def _encode(answer: InferenceAnswer) -> Response:
    content, length = encode_answer(answer)
    if length is None:
        return Response(content, media_type=JSON)
    return Response(content, media_type=BINARY, headers={LENGTH_HEADER: str(length)})


def _tensor(name: str, datatype: str, shape: tuple[int, ...]) -> TensorMetadata:
    return TensorMetadata(name=name, datatype=datatype, shape=[-1, *shape])


# --- messages -------------------------------------------------------------------------------------------


def decode_request(
    body: bytes | bytearray, header_length: str | None, most_json_bytes: int
) -> InferenceRequest:
    """Decode a request. An input that does not fit its own shape or datatype is among its faults.

    Raises:
        MalformedError: if the body is no JSON, or no request of this protocol.
        TooLargeError: if `parse_json` raises it.
        InvalidInputError: if the request uses an unsupported feature.
    """
    view = memoryview(body)
    end = _header_end(body, header_length)
    try:
        message = InferRequest.model_validate(parse_json(body, most_json_bytes, end))
    except ValidationError as error:
        raise from_validation(error, MalformedError, "the body") from error
    parameters, faults = message.parameters, Faults()
    return InferenceRequest(
        id=message.id,
        inputs=_decode_inputs(message.inputs, view[end:], faults),
        faults=faults,
        outputs=_decode_outputs(message.outputs, faults),
        binary_by_default=parameters.get("binary_data_output") is True,
        binary={
            output.name: output.parameters["binary_data"] is True
            for output in message.outputs
            if "binary_data" in output.parameters
        },
        timeout_s=timeout_of(parameters.get("timeout")),
        **choices_of(parameters, faults),
    )


def encode_answer(answer: InferenceAnswer) -> tuple[bytes, int | None]:
    """Return the body, and the length of its JSON part if raw tensors follow it.

    Raises:
        InvalidInputError: if an output is not UTF-8 and the request does not ask for binary data.
    """
    outputs, raw = [], []
    for name, array in answer.tensors.items():
        output: dict[str, Any] = {"name": name, "datatype": datatype_of(array), "shape": array.shape}
        if answer.request.wants_binary(name):
            raw.append(to_binary(array))
            output["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            output["data"] = to_json(name, array.reshape(-1))
        outputs.append(output)
    message: dict[str, Any] = {"model_name": answer.model, "model_version": answer.version}
    if identity := answer.identity:
        message["parameters"] = identity
    if answer.request.id:
        message["id"] = answer.request.id
    text = orjson.dumps({**message, "outputs": outputs}, option=orjson.OPT_SERIALIZE_NUMPY)
    return (b"".join([text, *raw]), len(text)) if raw else (text, None)


def _header_end(body: bytes | bytearray, header_length: str | None) -> int:
    if header_length is None:
        return len(body)
    if not (header_length.isascii() and header_length.isdecimal() and 0 < int(header_length) <= len(body)):
        raise MalformedError(
            f"{LENGTH_HEADER} is '{header_length[:20]}', but must be the length of the JSON at the start "
            f"of the body of {len(body)} bytes"
        )
    return int(header_length)


def _decode_outputs(outputs: Sequence[RequestedOutput], faults: Faults) -> tuple[str, ...] | None:
    """Return the names of the requested outputs, or None."""
    for output in outputs:
        with faults:
            check_parameters(output.name, output.parameters)
    return tuple(output.name for output in outputs) or None


def _decode_inputs(tensors: Sequence[InputTensor], raw: memoryview, faults: Faults) -> Tensors:
    """Decode the inputs. Raises MalformedError if the raw bytes cannot be assigned to inputs."""
    arrays: Tensors = {}
    offset = 0
    for tensor in tensors:
        name = tensor.name
        if name in arrays:
            note_duplicate(name, faults)
        size = _binary_size(tensor, raw[offset:], faults)
        bytes_of_tensor = None if size is None else raw[offset : offset + size]
        offset += size or 0
        try:
            arrays[name] = _decode_input(tensor, bytes_of_tensor)
        except (InvalidInputError, MalformedError) as fault:
            faults.add(fault, name)
    if offset != len(raw):
        faults.end(MalformedError(f"{len(raw) - offset} bytes follow the JSON that belong to no input"))
    return arrays


def _decode_input(tensor: InputTensor, raw: memoryview | None) -> Array:
    check_parameters(tensor.name, tensor.parameters)
    check_form(tensor.name, tensor.datatype, tensor.shape)
    if raw is None:
        return from_json(tensor.name, tensor.datatype, tensor.shape, tensor.data)
    return from_binary(tensor.name, tensor.datatype, tensor.shape, raw)


def _binary_size(tensor: InputTensor, raw: memoryview, faults: Faults) -> int | None:
    """Return the number of bytes of the tensor at the start of `raw`; None if its data is in the JSON."""
    size = tensor.parameters.get("binary_data_size")
    if size is None:
        return None
    name = tensor.name[:80]
    if tensor.data is not None:
        faults.end(MalformedError(f"input '{name}' has both data and binary_data_size"))
    if type(size) is not int or size < 0:
        faults.end(MalformedError(f"input '{name}': binary_data_size must be a number of bytes"))
    if size > len(raw):
        remaining = len(raw)
        faults.end(
            MalformedError(f"input '{name}' announces {size} bytes, but {remaining} are left in the body")
        )
    return size
