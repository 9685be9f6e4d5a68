"""The gate of the gRPC end: an interceptor that refuses before a message is read."""

import functools

import grpc
import grpc.aio

from service import exchange as exchanges
from service.errors import ServiceError
from service.exchange import Exchange
from service.gate import Gate
from service.grpc_call import refuse
from service.security import NOBODY_NEEDS, needed_by_call, token_of


class GrpcGate(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpcio ships no types
    """Leaves the call's exchange as the current one of its task; whoever answers the call notes it."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def intercept_service(
        self, continuation: object, details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        needed = needed_by_call(details.method)
        if needed is NOBODY_NEEDS:
            return await continuation(details)  # type: ignore[operator]
        given = {key: value for key, value in details.invocation_metadata if isinstance(value, str)}
        exchange = Exchange(
            protocol="grpc",
            operation=details.method,
            request_id=exchanges.request_id(given.get(exchanges.REQUEST_ID)),
            traceparent=exchanges.traceparent(given.get(exchanges.TRACEPARENT)),
        )
        exchanges.bind(exchange)
        try:
            token = token_of(given.get("authorization"), given.get("x-api-key"))
            self._gate.admit(exchange, token, needed)
        except ServiceError as error:
            # A streaming handler fits every kind of method, and need not wait for a message.
            return grpc.stream_stream_rpc_method_handler(
                functools.partial(_refuse, self._gate, exchange, error)
            )
        return await continuation(details)  # type: ignore[operator]


async def _refuse(
    gate: Gate, exchange: Exchange, error: ServiceError, _: object, context: grpc.aio.ServicerContext
) -> None:
    with gate.noted(exchange):
        await refuse(error, context)
