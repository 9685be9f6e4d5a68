"""The gRPC end: `GRPCInferenceService`, health and reflection, thin over the data plane."""

import functools
import http
from collections.abc import AsyncIterator

import grpc
import grpc.aio
from google.protobuf.message import Message

from service.dataplane import DataPlane
from service.errors import NotOfferedError
from service.exchange import current
from service.gate import Gate
from service.grpc_call import Call, echo_request_id, refusal_of, refuse
from service.grpc_gate import GrpcGate
from service.grpc_health import CHECK, HEALTH
from service.grpc_methods import METHODS, REFUSED, SERVICE, Method, Methods
from service.grpc_reflection import REFLECTIONS, reflect
from service.grpc_stream import stream_infer
from service.oip_grpc import parse

_STREAM = "ModelStreamInfer"
_LARGEST_LIMIT = (1 << 31) - 1  # gRPC counts a message's bytes in 32 bits


def create_server(plane: DataPlane, gate: Gate, max_body_bytes: int) -> grpc.aio.Server:
    """The server, of the running event loop; whoever runs it adds a port and starts it."""
    options = (
        ("grpc.max_receive_message_length", min(max_body_bytes, _LARGEST_LIMIT)),
        ("grpc.max_send_message_length", -1),  # answers are larger than requests: one row per target
        ("grpc.so_reuseport", 0),  # else two gateways would share a port, and neither would say so
    )
    handlers = [
        _unary_service(plane, gate, SERVICE, METHODS),
        _unary_service(plane, gate, HEALTH, CHECK),
        grpc.method_handlers_generic_handler(
            SERVICE,
            {_STREAM: grpc.stream_stream_rpc_method_handler(functools.partial(_answer_stream, plane, gate))},
        ),
        *(
            grpc.method_handlers_generic_handler(
                name, {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(reflect)}
            )
            for name in REFLECTIONS
        ),
        _Unserved(),
    ]
    return grpc.aio.server(handlers=handlers, interceptors=[GrpcGate(gate)], options=options)


def _unary_service(plane: DataPlane, gate: Gate, service: str, methods: Methods) -> grpc.GenericRpcHandler:
    served = {
        name: grpc.unary_unary_rpc_method_handler(functools.partial(_answer, plane, gate, kind, method))
        for name, (kind, method) in methods.items()
    }
    return grpc.method_handlers_generic_handler(service, served)


class _Unserved(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio ships no types
    """Answers every method that the tables before it do not hold."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        # A streaming handler fits every kind of method, and need not wait for a message.
        return grpc.stream_stream_rpc_method_handler(
            functools.partial(_refuse_method, handler_call_details.method)
        )


async def _refuse_method(path: str, _: object, context: grpc.aio.ServicerContext) -> None:
    service, _, method = path.removeprefix("/").rpartition("/")
    why = REFUSED.get(method) if service == SERVICE else None
    said = f": {why}" if why else f". /{SERVICE} offers {', '.join([*METHODS, _STREAM])}"
    await refuse(NotOfferedError(f"{path[:80]} is not offered here{said}."), context)


async def _answer(
    plane: DataPlane,
    gate: Gate,
    kind: type[Message],
    method: Method,
    body: bytes,
    context: grpc.aio.ServicerContext,
) -> bytes:
    """As `_call`, and noted; health is not."""
    exchange = current()
    if exchange is None:
        return await _call(plane, kind, method, body, context)
    echo_request_id(context)
    with gate.noted(exchange):
        answer = await _call(plane, kind, method, body, context)
        exchange.status = http.HTTPStatus.OK
    return answer


async def _call(
    plane: DataPlane, kind: type[Message], method: Method, body: bytes, context: grpc.aio.ServicerContext
) -> bytes:
    """Parses, calls, serialises; what goes wrong becomes a status."""
    try:
        answer = await method(Call(plane, parse(kind, body), context.time_remaining()))
        return answer.SerializeToString()
    except Exception as error:  # gRPC would send the text of a fault of ours to the caller
        refusal = refusal_of(error, kind.DESCRIPTOR.name)
    return await refuse(refusal, context)


async def _answer_stream(
    plane: DataPlane, gate: Gate, bodies: AsyncIterator[bytes], context: grpc.aio.ServicerContext
) -> None:
    echo_request_id(context)
    await stream_infer(plane, gate, bodies, context)
