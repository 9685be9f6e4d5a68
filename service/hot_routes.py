"""The way of the requests that are many, past the router.

FastAPI tries one route after the other, solves dependencies and validates what there is: it costs more than
a small model does (docs/serving-performance.md). The routes of inference need none of it. They stand in the
router too, for the OpenAPI document; this is the shorter way to the same functions.
"""

import re
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service import routes_v1, routes_v2

Handler = Callable[..., Awaitable[Response]]

# As the router matches them: a name is anything without a slash, and the handler looks whether it is known.
_PATH = re.compile(
    r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?/(?P<v2>infer|explain)"
    r"|/v1/models/(?P<model_v1>[^/]+):(?P<v1>predict|explain)"
)
_V2: dict[str, Handler] = {"infer": routes_v2.infer, "explain": routes_v2.explain}
_V1: dict[str, Handler] = {"predict": routes_v1.predict, "explain": routes_v1.explain}


class HotRoutes:
    """ASGI middleware, to stand right before the router. Errors are left to the gate around it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = _PATH.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if found is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        response = await _handled(Request(scope, receive, send), found)
        await response(scope, receive, send)


async def _handled(request: Request, found: re.Match[str]) -> Response:
    model, version, v2, model_v1, v1 = found.groups()
    if v2 is not None:
        return await _V2[v2](request, model, version)
    return await _V1[v1](request, model_v1)
