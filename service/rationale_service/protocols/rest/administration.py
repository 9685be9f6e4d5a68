"""Routes whose calls are recorded: administrators' changes, and reads of people's data."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from rationale_service.decisions.audit.acts import AdminAct
from rationale_service.errors import ServiceError
from rationale_service.observability.context import current
from rationale_service.protocols.rest.endpoint import gateway_of

_READS_PEOPLE = "/rows"  # end of the paths that return rows of people
_FAILED = 500


class RecordedRoute(APIRoute):
    """Route that records each call: caller, act, address and status. It refuses calls that it cannot record.

    A caller without the route's scopes is refused earlier and leaves no row.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that records calls."""
        handle = super().get_route_handler()

        async def recorded(request: Request) -> Response:
            if not self.is_recorded(request.method):
                return await handle(request)
            acts = gateway_of(request).acts
            await acts.check()
            status = _FAILED
            try:
                response = await handle(request)
                status = response.status_code
            except ServiceError as error:
                status = error.status
                raise
            finally:
                await acts.note(_act(request, status))
            return response

        return recorded

    def is_recorded(self, method: str) -> bool:  # noqa: ARG002 (for those that record some)
        """Tell whether to record a call."""
        return True


class AdministrativeRoute(RecordedRoute):
    """A route of the admin API, which records changes and reads of people's data."""

    def is_recorded(self, method: str) -> bool:
        return method not in ("GET", "HEAD") or self.path.endswith(_READS_PEOPLE)


def _act(request: Request, status: int) -> AdminAct:
    context = current()
    path = request.scope.get("raw_path") or request.url.path.encode()  # as sent: it holds no NUL
    query = f"?{request.url.query}" if request.url.query else ""
    return AdminAct(
        caller="" if context is None else context.caller.name or "",
        address=request.client.host if request.client is not None else "",
        act=request.method,
        target=f"{path.decode('ascii', 'backslashreplace')}{query}",
        status=status,
        request_id="" if context is None else context.request_id,
        detail=getattr(request.state, "detail", {}),
    )
