"""The Open Inference Protocol over gRPC: `GRPCInferenceService`, thin over the data plane.

There is no verb to explain here: the explain entry of a model, `{model}_explain`, is a model of its own.
"""

import functools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version as package_version
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb

from compiler.manifest import TensorSpec
from service.dataplane import DataPlane
from service.entries import PLATFORM
from service.errors import ModelFailedError, ServiceError, UnknownModelError
from service.oip_grpc import decode_request, encode_answer, parse

log = logging.getLogger(__name__)

EXTENSIONS = ["model_configuration"]
SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_LARGEST_LIMIT = (1 << 31) - 1  # gRPC counts a message's bytes in 32 bits
_SHOWN_BYTES = 2000  # of a refusal: clients take 8 KiB of metadata, where each byte may become three


@dataclass(frozen=True)
class Call:
    """A request on its way: the message, and the seconds that the caller still waits (None: no limit)."""

    plane: DataPlane
    message: Any
    left_s: float | None


Method = Callable[[Call], Awaitable[Message]]


async def server_live(_: Call) -> pb.ServerLiveResponse:
    return pb.ServerLiveResponse(live=True)


async def server_ready(call: Call) -> pb.ServerReadyResponse:
    return pb.ServerReadyResponse(ready=await call.plane.ready())


async def server_metadata(_: Call) -> pb.ServerMetadataResponse:
    return pb.ServerMetadataResponse(
        name="rationale", version=package_version("rationale"), extensions=EXTENSIONS
    )


async def model_ready(call: Call) -> pb.ModelReadyResponse:
    """A model that is not there is not ready, as Triton answers too."""
    try:
        entry = call.plane.repository.entry(call.message.name, call.message.version or None)
    except UnknownModelError:
        return pb.ModelReadyResponse(ready=False)
    return pb.ModelReadyResponse(ready=await call.plane.ready(entry))


async def model_metadata(call: Call) -> pb.ModelMetadataResponse:
    entry = call.plane.repository.entry(call.message.name, call.message.version or None)
    return pb.ModelMetadataResponse(
        name=entry.name,
        versions=[entry.version],
        platform=PLATFORM,
        inputs=[_tensor(spec) for spec in entry.inputs],
        outputs=[_tensor(spec) for spec in entry.outputs],
    )


async def model_config(call: Call) -> pb.ModelConfigResponse:
    entry = call.plane.repository.entry(call.message.name, call.message.version or None)
    return pb.ModelConfigResponse(config=entry.config)


async def model_infer(call: Call) -> pb.ModelInferResponse:
    """The shorter of the request's `timeout` and gRPC's own deadline is its limit."""
    entry = call.plane.repository.entry(call.message.model_name, call.message.model_version or None)
    asked = decode_request(call.message)
    limits_s = [limit for limit in (asked.timeout_s, call.left_s) if limit is not None]
    answer = await call.plane.infer(entry, asked.inputs, asked.outputs, min(limits_s, default=None))
    head = {"model_name": entry.name, "model_version": entry.version, "id": asked.id}
    response = encode_answer(head, answer.tensors)
    for name, value in entry.identity.items():
        response.parameters[name].string_param = value
    return response


METHODS: dict[str, tuple[type[Message], Method]] = {
    "ServerLive": (pb.ServerLiveRequest, server_live),
    "ServerReady": (pb.ServerReadyRequest, server_ready),
    "ServerMetadata": (pb.ServerMetadataRequest, server_metadata),
    "ModelReady": (pb.ModelReadyRequest, model_ready),
    "ModelMetadata": (pb.ModelMetadataRequest, model_metadata),
    "ModelConfig": (pb.ModelConfigRequest, model_config),
    "ModelInfer": (pb.ModelInferRequest, model_infer),
}


def create_server(plane: DataPlane, max_body_bytes: int) -> grpc.aio.Server:
    """The server, of the running event loop; whoever runs it adds a port and starts it."""
    options = (
        ("grpc.max_receive_message_length", min(max_body_bytes, _LARGEST_LIMIT)),
        ("grpc.max_send_message_length", -1),  # answers are larger than requests: one row per target
        ("grpc.so_reuseport", 0),  # else two gateways would share a port, and neither would say so
    )
    served = {
        name: grpc.unary_unary_rpc_method_handler(functools.partial(_answer, plane, kind, method))
        for name, (kind, method) in METHODS.items()
    }
    table = grpc.method_handlers_generic_handler(SERVICE, served)
    return grpc.aio.server(handlers=(table, _Unserved()), options=options)


class _Unserved(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio ships no types
    """Answers every method that the table before it does not hold."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        # A streaming handler fits every kind of method, and need not wait for a message.
        return grpc.stream_stream_rpc_method_handler(
            functools.partial(_refuse_method, handler_call_details.method)
        )


async def _refuse_method(method: str, _: object, context: grpc.aio.ServicerContext) -> None:
    await context.abort(
        grpc.StatusCode.UNIMPLEMENTED,
        f"{method[:80]} is not offered here. /{SERVICE} offers {', '.join(METHODS)}.",
    )


async def _answer(
    plane: DataPlane, kind: type[Message], method: Method, body: bytes, context: grpc.aio.ServicerContext
) -> bytes:
    """Parses, calls, serialises; what goes wrong becomes a status."""
    try:
        answer = await method(Call(plane, parse(kind, body), context.time_remaining()))
        return answer.SerializeToString()
    except ServiceError as error:
        refusal = error
        if isinstance(error, ModelFailedError):
            log.error("%s: %s", kind.DESCRIPTOR.name, error)
    except Exception:  # the last resort: gRPC would send the text of a fault of ours to the caller
        log.exception("%s", kind.DESCRIPTOR.name)
        refusal = ServiceError("an unexpected fault; the server's log tells more")
    return await _refuse(refusal, context)


async def _refuse(error: ServiceError, context: grpc.aio.ServicerContext) -> bytes:
    """Never returns: `abort` raises. The trailing metadata tell apart what shares a status code."""
    metadata = [("problem", error.slug)]
    if error.retry_after_s is not None:
        metadata.append(("retry-after", str(error.retry_after_s)))
    text = f"{error.title}: {error}".encode()[:_SHOWN_BYTES].decode(errors="ignore")
    await context.abort(CODES[error.status], text, tuple(metadata))
    raise AssertionError("abort raises")


def _tensor(spec: TensorSpec) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(
        name=spec.name, datatype=spec.datatype, shape=[-1, *spec.shape]
    )
