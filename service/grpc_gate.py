"""The gate of the gRPC end: finds the handler of a call, and refuses before a message is read.

It is a handler rather than an interceptor of grpc.aio, which costs each call a coroutine more.
"""

from collections.abc import Callable, Iterable, Mapping

import grpc
import grpc.aio

from service import exchange as exchanges
from service.errors import ServiceError
from service.exchange import Exchange
from service.gate import Gate
from service.grpc_call import refuse
from service.security import NOBODY_NEEDS, needed_by_call, token_of


class GrpcGate(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio ships no types
    """Leaves the call's exchange as the current one of its task; whoever answers the call notes it."""

    def __init__(
        self,
        gate: Gate,
        handlers: Mapping[str, grpc.RpcMethodHandler],
        unserved: Callable[[str], grpc.RpcMethodHandler],
    ) -> None:
        """
        Args:
            handlers: by path, "/package.Service/Method".
            unserved: makes the handler of a path that `handlers` lacks.
        """
        self._gate = gate
        self._handlers = handlers
        self._unserved = unserved

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        path: str = handler_call_details.method
        needed = needed_by_call(path)
        if needed is not NOBODY_NEEDS:
            given = _texts(handler_call_details.invocation_metadata)
            exchange = Exchange(
                protocol="grpc",
                operation=path,
                request_id=exchanges.request_id(given.get(exchanges.REQUEST_ID)),
                traceparent=exchanges.traceparent(given.get(exchanges.TRACEPARENT)),
            )
            exchanges.bind(exchange)
            try:
                token = token_of(given.get("authorization"), given.get("x-api-key"))
                self._gate.admit(exchange, token, needed)
            except ServiceError as error:
                return _refusing(self._gate, exchange, error)
        return self._handlers.get(path) or self._unserved(path)


def _texts(metadata: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    return {key: value for key, value in metadata if isinstance(value, str)}


def _refusing(gate: Gate, exchange: Exchange, error: ServiceError) -> grpc.RpcMethodHandler:
    async def refusing(_: object, context: grpc.aio.ServicerContext) -> None:
        with gate.noted(exchange):
            await refuse(error, context)

    # A streaming handler fits every kind of method, and need not wait for a message.
    return grpc.stream_stream_rpc_method_handler(refusing)
