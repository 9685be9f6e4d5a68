"""The gRPC server, on `grpc.aio`, for inference, health and reflection."""

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
from rationale_service.security.keys import ANY_KEY, Scopes, UndeclaredScopesError, declared_scopes, needs
from rationale_service.security.tls import ServerTls

MAX_CALLS = 1024  # at one time, streams among them
_MAX_CALLS_OF_A_CONNECTION = 128
_MAX_METADATA_BYTES = 64 << 10  # the limit of HTTP's headers
_LARGEST_LIMIT = (1 << 31) - 1  # gRPC counts a message's bytes in 32 bits
_HELD_S = 0.05  # for sent calls to arrive
_BEGUN_S = 0.2  # for held calls to begin
_REFLECTION = "grpc.reflection.v1.ServerReflection"
_REFLECTION_METHODS = ("ServerReflectionInfo",)
_OPTIONS = (
    ("grpc.max_send_message_length", -1),  # answers are larger than requests: one row per target
    ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
    ("grpc.max_concurrent_streams", _MAX_CALLS_OF_A_CONNECTION),
    ("grpc.http.overload_protection", 0),  # it also refuses callers within the limit
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.keepalive_time_ms", 60_000),  # ends calls of callers who vanished
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),  # default: 5 minutes; clients ping sooner
)


class GrpcServer:
    """A gRPC server on the running event loop. Connections that come before `start` wait for it.

    Attributes:
        scopes: declared scopes of each method, by path.
    """

    def __init__(
        self,
        gateway: Gateway,
        listener: socket.socket,
        tls: ServerTls | None = None,
        *,
        shared: bool = False,
    ) -> None:
        """Replace `listener`: gRPC listens on its own sockets.

        Args:
            shared: True if other processes listen there too; else a second gateway must fail.

        Raises:
            CannotListenError: if gRPC cannot listen on the address.
            UndeclaredScopesError: if a method does not declare its scopes.
        """
        settings, plane = gateway.settings, gateway.plane
        limits = (
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
            options=(*_OPTIONS, *limits),
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
        """Send callers elsewhere; requests sent by then have `seconds` to be answered.

        When gRPC stops, it drops the calls in its own queue and those sent before a caller has noticed the
        stop.
        So its queue is emptied first; meanwhile no call is answered, since its caller would send another.
        """
        with self._interceptor.holding():
            await asyncio.sleep(_HELD_S)
            self._stopping.append(asyncio.ensure_future(self._server.stop(seconds)))
            await asyncio.sleep(_HELD_S)
        await asyncio.sleep(_BEGUN_S)

    async def stop(self, seconds: float) -> None:
        """Accept no more calls, and abandon calls that are not answered in `seconds`."""
        await asyncio.gather(*self._stopping, self._server.stop(seconds))

    def give_up(self, _: object = None) -> None:
        """End a waiting `stop`."""
        self._stopping.append(asyncio.ensure_future(self._server.stop(None)))


def _tells_more_than_that_a_caller_left(record: logging.LogRecord) -> bool:
    """Tell whether a record of gRPC's log reports more than a caller that left.

    gRPC logs a fault if it cannot send an answer, unless it knows already that the caller has left.
    """
    return record.exc_info is None or record.exc_info[0] is not cygrpc.ExecuteBatchError


def scopes_of_methods(servicer: object, service: str, methods: Iterable[str]) -> dict[str, Scopes]:
    """Return the scopes that `servicer` declares for the service's methods that it implements.

    Raises UndeclaredScopesError.
    """
    scopes_by_path: dict[str, Scopes] = {}
    for name in methods:
        if name in vars(type(servicer)):  # other methods are stubs of the package
            scopes = declared_scopes(getattr(servicer, name), f"the gRPC method /{service}/{name}")
            if not isinstance(scopes, frozenset):
                raise UndeclaredScopesError(
                    f"the gRPC method /{service}/{name} declares scopes by its model, but only the message "
                    "names the model: declare all scopes that it may need"
                )
            scopes_by_path[f"/{service}/{name}"] = scopes
    return scopes_by_path


class _Reflection(reflection.aio.ReflectionServicer):
    @needs(ANY_KEY)
    async def ServerReflectionInfo(self, requests: AsyncIterable[Any], context: Any) -> AsyncIterator[Any]:
        async for answer in super().ServerReflectionInfo(requests, context):
            yield answer


def _add_reflection(servicer: _Reflection, server: grpc.aio.Server) -> None:
    """Add v1alpha and, with the same messages, v1, which the package lacks."""
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    handlers = dict.fromkeys(_REFLECTION_METHODS, handler)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_REFLECTION, handlers),))
