"""The gRPC end: `GRPCInferenceService`, health and reflection, thin over the data plane."""

import asyncio
import http
import socket
import ssl
from collections.abc import Iterable

from google.protobuf.message import Message

from service import exchange as exchanges
from service.dataplane import DataPlane
from service.errors import NotOfferedError, ServiceError
from service.exchange import note_problem
from service.gate import Gate
from service.grpc_call import Call, refusal_of
from service.grpc_connection import GrpcConnection
from service.grpc_gate import GrpcGate
from service.grpc_health import CHECK, HEALTH
from service.grpc_methods import METHODS, REFUSED, SERVICE, Method
from service.grpc_reflection import REFLECTIONS, reflect
from service.grpc_rpc import Handler, Rpc
from service.grpc_stream import stream_infer
from service.grpc_wire import Head, Messages
from service.oip_grpc import parse

_STREAM = "ModelStreamInfer"
_LARGEST_LIMIT = (1 << 32) - 1  # gRPC counts a message's bytes in 32 bits
_HANDSHAKE_S = 10.0
_GIVING_UP_S = 1.0


class GrpcServer:
    """Serves connections of the running event loop, from `start` to `stop`."""

    def __init__(self, plane: DataPlane, gate: Gate, max_body_bytes: int) -> None:
        self.connections: set[GrpcConnection] = set()
        self._plane = plane
        self.limit = min(max_body_bytes, _LARGEST_LIMIT)
        self._handlers = _handlers(plane, gate)
        self._gate = GrpcGate(gate, self._handlers, _unserved)
        self._listening: list[asyncio.Server] = []
        self.enter = self._gate.enter
        self.refused = self._gate.refused

    async def start(self, listeners: Iterable[socket.socket], tls: ssl.SSLContext | None = None) -> None:
        loop = asyncio.get_running_loop()
        for listener in listeners:
            server = await loop.create_server(
                lambda: GrpcConnection(self),
                sock=listener,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else _HANDSHAKE_S,
            )
            self._listening.append(server)

    def warn(self) -> None:
        """A stop is near: who is connected had better go elsewhere. All are answered as before."""
        for connection in list(self.connections):
            connection.warn()

    async def stop(self, seconds: float) -> None:
        """Refuses new calls, and gives up those that are not answered in `seconds`."""
        for server in self._listening:
            server.close()
        for connection in list(self.connections):
            connection.stop()
        await self._wait(seconds)
        for connection in list(self.connections):
            connection.give_up()
        await self._wait(_GIVING_UP_S)
        for connection in list(self.connections):
            connection.abort()
        await self._wait(_GIVING_UP_S)

    async def _wait(self, seconds: float) -> None:
        """Until every connection is closed and every call over, or as long as that."""
        left = [connection.closed for connection in self.connections]
        left += [task for connection in self.connections for task in connection.tasks]
        if left:
            await asyncio.wait(left, timeout=seconds)

    def is_stream(self, path: str) -> bool:
        handler = self._handlers.get(path)
        return handler is not None and handler.is_stream

    def messages(self, head: Head) -> Messages:
        return Messages(self.limit, head.inflates, self._plane.budget)

    def patience_s(self) -> float:
        """For how long the message of a call may be on its way."""
        return self._plane.timeout_s


def _handlers(plane: DataPlane, gate: Gate) -> dict[str, Handler]:
    unary = {SERVICE: METHODS, HEALTH: CHECK}
    handlers = {
        f"/{service}/{name}": _unary(plane, gate, kind, method)
        for service, methods in unary.items()
        for name, (kind, method) in methods.items()
    }
    handlers[f"/{SERVICE}/{_STREAM}"] = _stream(plane, gate)
    for service in REFLECTIONS:
        handlers[f"/{service}/ServerReflectionInfo"] = Handler(reflect, is_stream=True)
    return handlers


def _unary(plane: DataPlane, gate: Gate, kind: type[Message], method: Method) -> Handler:
    """Answers calls, and notes them; those of health are not noted."""

    async def answer(rpc: Rpc, body: bytes) -> bytes:
        exchange = rpc.exchange
        if exchange is None:
            return await _call(plane, kind, method, rpc, body)
        with gate.noted(exchange):
            answer = await _call(plane, kind, method, rpc, body)
            exchange.status = http.HTTPStatus.OK
        return answer

    return Handler(answer)


async def _call(plane: DataPlane, kind: type[Message], method: Method, rpc: Rpc, body: bytes) -> bytes:
    """Parses, calls, serialises. Raises ServiceError alone."""
    try:
        answer = await method(Call(plane, parse(kind, body), rpc.time_remaining()))
        return answer.SerializeToString()
    except Exception as error:  # the text of a fault of ours is not for callers
        refusal = refusal_of(error, kind.DESCRIPTOR.name)
        note_problem(refusal.slug, refusal.status)
        raise refusal from error


def _stream(plane: DataPlane, gate: Gate) -> Handler:
    async def answer(rpc: Rpc) -> None:
        if rpc.exchange is not None:
            exchanges.bind(rpc.exchange)
        await stream_infer(plane, gate, rpc)

    return Handler(answer, is_stream=True)


def _unserved(path: str) -> ServiceError:
    service, _, method = path.removeprefix("/").rpartition("/")
    why = REFUSED.get(method) if service == SERVICE else None
    said = f": {why}" if why else f". /{SERVICE} offers {', '.join([*METHODS, _STREAM])}"
    return NotOfferedError(f"{path[:80]} is not offered here{said}.")
