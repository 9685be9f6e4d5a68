"""The gRPC end: `GRPCInferenceService`, health and reflection, thin over the data plane."""

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
from service.grpc_methods import METHODS, REFUSED, SERVICE, Method
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
    unary = {SERVICE: METHODS, HEALTH: CHECK}
    handlers = {
        f"/{service}/{name}": _unary(plane, gate, kind, method)
        for service, methods in unary.items()
        for name, (kind, method) in methods.items()
    }
    handlers[f"/{SERVICE}/{_STREAM}"] = _stream(plane, gate)
    for service in REFLECTIONS:
        handlers[f"/{service}/ServerReflectionInfo"] = grpc.stream_stream_rpc_method_handler(reflect)
    return grpc.aio.server(handlers=[GrpcGate(gate, handlers, _unserved)], options=options)


def _unary(plane: DataPlane, gate: Gate, kind: type[Message], method: Method) -> grpc.RpcMethodHandler:
    """Answers calls, and notes them; those of health are not noted."""

    # A function, since gRPC asks of each call what it is: for partials and methods that takes longer.
    async def answer(body: bytes, context: grpc.aio.ServicerContext) -> bytes:
        exchange = current()
        if exchange is None:
            return await _call(plane, kind, method, body, context)
        echo_request_id(exchange, context)
        with gate.noted(exchange):
            answer = await _call(plane, kind, method, body, context)
            exchange.status = http.HTTPStatus.OK
        return answer

    return grpc.unary_unary_rpc_method_handler(answer)


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


def _stream(plane: DataPlane, gate: Gate) -> grpc.RpcMethodHandler:
    async def answer(bodies: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        exchange = current()
        if exchange is not None:
            echo_request_id(exchange, context)
        await stream_infer(plane, gate, bodies, context)

    return grpc.stream_stream_rpc_method_handler(answer)


def _unserved(path: str) -> grpc.RpcMethodHandler:
    service, _, method = path.removeprefix("/").rpartition("/")
    why = REFUSED.get(method) if service == SERVICE else None
    said = f": {why}" if why else f". /{SERVICE} offers {', '.join([*METHODS, _STREAM])}"

    async def refusing(_: object, context: grpc.aio.ServicerContext) -> None:
        await refuse(NotOfferedError(f"{path[:80]} is not offered here{said}."), context)

    # A streaming handler fits every kind of method, and need not wait for a message.
    return grpc.stream_stream_rpc_method_handler(refusing)
