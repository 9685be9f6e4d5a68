"""The gate of the gRPC end: finds the handler of a call, and refuses before a message is read."""

from collections.abc import Callable, Mapping

from service import exchange as exchanges
from service.errors import ServiceError
from service.exchange import Exchange
from service.gate import Gate
from service.grpc_rpc import Handler, Rpc
from service.security import NOBODY_NEEDS, needed_by_call, token_of


class GrpcGate:
    """Gives each call its exchange; whoever answers the call notes it."""

    def __init__(
        self, gate: Gate, handlers: Mapping[str, Handler], unserved: Callable[[str], ServiceError]
    ) -> None:
        """
        Args:
            handlers: by path, "/package.Service/Method".
            unserved: what a path that `handlers` lacks is answered.
        """
        self._gate = gate
        self._handlers = handlers
        self._unserved = unserved

    def enter(self, rpc: Rpc) -> Handler:
        """Raises ServiceError; a refusal of the gate's own is noted."""
        needed = needed_by_call(rpc.path)
        if needed is not NOBODY_NEEDS:
            given = rpc.metadata
            rpc.exchange = exchange = Exchange(
                protocol="grpc",
                operation=rpc.path,
                request_id=exchanges.request_id(given.get(exchanges.REQUEST_ID)),
                traceparent=exchanges.traceparent(given.get(exchanges.TRACEPARENT)),
            )
            rpc.trailing = ((exchanges.REQUEST_ID.encode(), exchange.request_id.encode()),)
            try:
                token = token_of(given.get("authorization"), given.get("x-api-key"))
                self._gate.admit(exchange, token, needed)
            except ServiceError as error:
                self.refused(rpc, error)
                raise
        handler = self._handlers.get(rpc.path)
        if handler is None:
            raise self._unserved(rpc.path)
        return handler

    def refused(self, rpc: Rpc, error: ServiceError) -> None:
        """Notes a call that is refused before its handler runs."""
        if rpc.exchange is not None:
            rpc.exchange.problem, rpc.exchange.status = error.slug, error.status
            self._gate.note(rpc.exchange)
