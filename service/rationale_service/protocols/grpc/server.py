"""The gRPC end: a server of `grpc.aio` for inference, health and reflection."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any

import grpc
import grpc.aio
from grpc._cython import cygrpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc
from tritonclient.grpc import service_pb2_grpc

from rationale_service.process.listening import CannotListenError, address_of
from rationale_service.protocols.gateway import Gateway
from rationale_service.protocols.grpc import health, servicer
from rationale_service.protocols.grpc.interceptor import Interceptor
from rationale_service.security.keys import ANY_KEY, Scopes, UndeclaredScopesError, declared, needs
from rationale_service.security.tls import ServerTls

MAX_CALLS = 1024  # at one time, streams among them
_MAX_CALLS_OF_A_CONNECTION = 128
_MAX_METADATA_BYTES = 64 << 10  # as of HTTP's headers
_LARGEST_LIMIT = (1 << 31) - 1  # gRPC counts a message's bytes in 32 bits
_HELD_S = 0.05  # what has been sent arrives meanwhile
_BEGUN_S = 0.2  # what was held is begun meanwhile
_REFLECTION = "grpc.reflection.v1.ServerReflection"
_REFLECTION_METHODS = ("ServerReflectionInfo",)
_OPTIONS = (
    ("grpc.max_send_message_length", -1),  # answers are larger than requests: one row per target
    ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
    ("grpc.max_concurrent_streams", _MAX_CALLS_OF_A_CONNECTION),
    ("grpc.http.overload_protection", 0),  # it refuses callers who keep to that as well
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.keepalive_time_ms", 60_000),  # a caller who is gone without a word does not hold its calls
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),  # 5 minutes by itself: clients ping sooner
)


class GrpcServer:
    """Belongs to the running event loop. Connections that come before `start` wait for it.

    Attributes:
        scopes: those that each method declares, by the method's path.
    """

    def __init__(
        self,
        gateway: Gateway,
        listener: socket.socket,
        tls: ServerTls | None = None,
        *,
        shared: bool = False,
    ) -> None:
        """Take the place of `listener`: gRPC listens on sockets of its own.

        Args:
            shared: other processes listen there, too; else two gateways could, and neither would say so.

        Raises:
            CannotListenError
            UndeclaredScopesError: a method does not say which keys open it.
        """
        settings, plane = gateway.settings, gateway.plane
        own = (
            ("grpc.max_receive_message_length", min(settings.max_grpc_message_bytes, _LARGEST_LIMIT)),
            ("grpc.so_reuseport", int(shared)),
        )
        logging.getLogger(cygrpc.__name__).addFilter(_tells_more_than_that_a_caller_left)
        self._stopping: list[asyncio.Future[None]] = []
        inference = servicer.InferenceServicer(gateway)
        healthy = health.HealthServicer(plane)
        reflecting = _Reflection((servicer.SERVICE, health.HEALTH, reflection.SERVICE_NAME, _REFLECTION))
        self.scopes = {
            **scopes_of_methods(inference, servicer.SERVICE, servicer.METHODS),
            **scopes_of_methods(healthy, health.HEALTH, health.METHODS),
            **scopes_of_methods(reflecting, reflection.SERVICE_NAME, _REFLECTION_METHODS),
            **scopes_of_methods(reflecting, _REFLECTION, _REFLECTION_METHODS),
        }
        self._interceptor = Interceptor(
            gateway.interceptor, self.scopes, plane.budget, settings.max_json_bytes
        )
        self._server = grpc.aio.server(
            interceptors=(self._interceptor,),
            options=(*_OPTIONS, *own),
            maximum_concurrent_rpcs=MAX_CALLS,
        )
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(inference, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(healthy, self._server)
        _add_reflection(reflecting, self._server)
        self.address = address_of(listener)
        listener.close()
        self._bind(tls)

    def _bind(self, tls: ServerTls | None) -> None:
        try:
            if tls is None:
                self._server.add_insecure_port(self.address)
            else:
                self._server.add_secure_port(self.address, tls.grpc_credentials())
        except RuntimeError as error:
            raise CannotListenError(f"cannot listen on {self.address} for gRPC: {error}") from error

    async def start(self) -> None:
        await self._server.start()

    async def leave(self, seconds: float) -> None:
        """Send callers elsewhere; what they have sent by then may take `seconds` to be answered.

        gRPC drops what lies in its own queue when it stops, and what is sent until a caller has heard of it.
        So it is emptied first, and nobody is answered meanwhile, who would ask again.
        """
        with self._interceptor.holding():
            await asyncio.sleep(_HELD_S)
            self._stopping.append(asyncio.ensure_future(self._server.stop(seconds)))
            await asyncio.sleep(_HELD_S)
        await asyncio.sleep(_BEGUN_S)

    async def stop(self, seconds: float) -> None:
        """Take no more calls, and give up those that are not answered in `seconds`."""
        await asyncio.gather(*self._stopping, self._server.stop(seconds))

    def give_up(self, _: object = None) -> None:
        """End a `stop` that waits."""
        self._stopping.append(asyncio.ensure_future(self._server.stop(None)))


def _tells_more_than_that_a_caller_left(record: logging.LogRecord) -> bool:
    """Return whether a record of gRPC's log reports more than that a caller left.

    gRPC logs a fault where it cannot send an answer, unless it knows by then that the caller is gone.
    """
    return record.exc_info is None or record.exc_info[0] is not cygrpc.ExecuteBatchError


def scopes_of_methods(servicer: object, service: str, methods: Iterable[str]) -> dict[str, Scopes]:
    """Return the scopes that `servicer` declares for those of a service's methods that it has of its own.

    Raises UndeclaredScopesError.
    """
    found: dict[str, Scopes] = {}
    for name in methods:
        if name in vars(type(servicer)):  # else it is the stub of the package's own servicer
            scopes = declared(getattr(servicer, name), f"the gRPC method /{service}/{name}")
            if not isinstance(scopes, frozenset):
                raise UndeclaredScopesError(
                    f"the gRPC method /{service}/{name} declares scopes by its model, which only its message "
                    "names: declare all that it may need"
                )
            found[f"/{service}/{name}"] = scopes
    return found


class _Reflection(reflection.aio.ReflectionServicer):
    @needs(ANY_KEY)
    async def ServerReflectionInfo(self, requests: AsyncIterable[Any], context: Any) -> AsyncIterator[Any]:
        async for answer in super().ServerReflectionInfo(requests, context):
            yield answer


def _add_reflection(servicer: _Reflection, server: grpc.aio.Server) -> None:
    """Add v1alpha, and by the same messages v1, which the package does not know."""
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    handlers = dict.fromkeys(_REFLECTION_METHODS, handler)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_REFLECTION, handlers),))
