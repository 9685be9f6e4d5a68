"""The gate of the HTTP end: pure ASGI, around everything but Starlette's last resort."""

import logging

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import exchange as exchanges
from service.errors import ServiceError
from service.exchange import Exchange
from service.gate import Gate
from service.problems import answer
from service.security import NOBODY_NEEDS, Scopes, needed_by_path, token_of

log = logging.getLogger(__name__)

_METRICS = "/metrics"
_READ = {
    name.encode() for name in (exchanges.REQUEST_ID, exchanges.TRACEPARENT, "authorization", "x-api-key")
}


class HttpGate:
    """Lets requests through to `app` and notes what became of them; health and metrics are not noted.

    Args:
        needed_for_metrics: the scopes of which one opens `GET /metrics`.
    """

    def __init__(self, app: ASGIApp, gate: Gate, needed_for_metrics: Scopes) -> None:
        self._app = app
        self._gate = gate
        self._needed_for_metrics = needed_for_metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (needed := self._needed(scope["path"])) is NOBODY_NEEDS:
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"] if name in _READ}
        exchange = Exchange(
            protocol="http",
            operation=f"{scope['method']} {scope['path']}",
            request_id=exchanges.request_id(headers.get(b"x-request-id")),
            traceparent=exchanges.traceparent(headers.get(b"traceparent")),
        )
        with self._gate.noted(exchange):
            await self._run(exchange, headers, needed, scope, receive, send)

    def _needed(self, path: str) -> Scopes:
        return self._needed_for_metrics if path == _METRICS else needed_by_path(path)

    async def _run(
        self,
        exchange: Exchange,
        headers: dict[bytes, str],
        needed: Scopes,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        begun = False

        async def send_noted(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                exchange.status = message["status"]
                named = (b"x-request-id", exchange.request_id.encode())
                message = {**message, "headers": [*message["headers"], named]}
            await send(message)

        try:
            token = token_of(headers.get(b"authorization"), headers.get(b"x-api-key"))
            self._gate.admit(exchange, token, needed)
            await self._app(scope, receive, send_noted)
        except ServiceError as error:
            await answer(Request(scope), error)(scope, receive, send_noted)
        except (
            Exception
        ) as error:  # the last resort, inside of Starlette's own: the answer is named and noted
            if begun:
                raise  # only breaking off says that it is not whole
            log.exception("%s: an unexpected fault", scope["path"])
            await answer(Request(scope), error)(scope, receive, send_noted)
