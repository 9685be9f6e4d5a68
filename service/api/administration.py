"""Routes of the admin API: each call that changes something, or reads people's data, is on record."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from service.decisions.audit.acts import Act, ActLog
from service.errors import ServiceError
from service.observability.context import current
from service.security.keys import ADMIN

_READS_PEOPLE = "/rows"  # ends the path of a GET whose answer holds rows of people
_FAILED = 500


class AdministrativeRoute(APIRoute):
    """Records who called, what for, from where and how it ended; refuses where that cannot be recorded.

    A caller without the scope admin gets a ForbiddenError, and leaves no row.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler that records."""
        handle = super().get_route_handler()

        async def recorded(request: Request) -> Response:
            only_admins()  # before anything is written
            if request.method in ("GET", "HEAD") and not self.path.endswith(_READS_PEOPLE):
                return await handle(request)
            acts: ActLog = request.app.state.acts
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


def only_admins() -> None:
    """Require the admin scope of the running request, whatever its path is. Raises ForbiddenError."""
    context = current()
    if context is not None:
        context.caller.require(ADMIN)


def _act(request: Request, status: int) -> Act:
    context = current()
    query = f"?{request.url.query}" if request.url.query else ""
    return Act(
        caller="" if context is None else context.caller.name or "",
        address=request.client.host if request.client is not None else "",
        act=request.method,
        target=f"{request.url.path}{query}",
        status=status,
        request_id="" if context is None else context.request_id,
        detail=getattr(request.state, "detail", {}),
    )
