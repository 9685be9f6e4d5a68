"""Routes whose calls are on record: what administrators change, and whoever reads people's data."""

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from fastapi import Request, Response
from fastapi.routing import APIRoute

from rationale_service.decisions.audit.acts import Act, ActLog
from rationale_service.errors import ServiceError
from rationale_service.observability.context import current
from rationale_service.security.keys import ADMIN, Scopes

_READS_PEOPLE = "/rows"  # ends the path of a GET whose answer holds rows of people
_FAILED = 500


class RecordedRoute(APIRoute):
    """Records who called, what for, from where and how it ended; refuses where that cannot be recorded.

    A caller without one of `scopes` gets a ForbiddenError, and leaves no row.
    """

    scopes: ClassVar[Scopes]

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler that records."""
        handle = super().get_route_handler()

        async def recorded(request: Request) -> Response:
            _demand(self.scopes)  # before anything is written
            if not self.is_recorded(request.method):
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

    def is_recorded(self, method: str) -> bool:  # noqa: ARG002 (for those that record some)
        """Return whether a call is one to record."""
        return True


class AdministrativeRoute(RecordedRoute):
    """A route of the admin API: what changes something, or reads people's data, is recorded."""

    scopes = ADMIN

    def is_recorded(self, method: str) -> bool:
        return method not in ("GET", "HEAD") or self.path.endswith(_READS_PEOPLE)


def only_admins() -> None:
    """Require the admin scope of the running request, whatever its path is. Raises ForbiddenError."""
    _demand(ADMIN)


def _demand(scopes: Scopes) -> None:
    context = current()
    if context is not None:
        context.caller.require(scopes)


def _act(request: Request, status: int) -> Act:
    context = current()
    path = request.scope.get("raw_path") or request.url.path.encode()  # as it was sent: it holds no NUL
    query = f"?{request.url.query}" if request.url.query else ""
    return Act(
        caller="" if context is None else context.caller.name or "",
        address=request.client.host if request.client is not None else "",
        act=request.method,
        target=f"{path.decode('ascii', 'backslashreplace')}{query}",
        status=status,
        request_id="" if context is None else context.request_id,
        detail=getattr(request.state, "detail", {}),
    )
