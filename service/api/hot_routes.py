"""The way of the requests that are many, past FastAPI.

Its middlewares wrap every message, its router tries one route after the other, solves dependencies and
validates what there is: it costs more than a small model does (docs/serving-performance.md). The routes of
inference need none of it. They stand in the router too, for the OpenAPI document; this is the shorter way to
the same functions, through the same gate.
"""

import re
from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.api import v1 as routes_v1
from service.api import v2 as routes_v2
from service.api.http_limits import Refuse
from service.api.middleware import HttpMiddleware
from service.handlers import likely_explainer
from service.repository.entry import Entry
from service.repository.registry import ModelRegistry

Handler = Callable[..., Awaitable[Response]]

# As the router matches them: a name is anything without a slash, and the handler looks whether it is known.
_PATH = re.compile(
    r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?/(?P<v2>infer|explain)"
    r"|/v1/models/(?P<model_v1>[^/]+):(?P<v1>predict|explain)"
)
_V2: dict[str, Handler] = {"infer": routes_v2.infer, "explain": routes_v2.explain}
_V1: dict[str, Handler] = {"predict": routes_v1.predict, "explain": routes_v1.explain}


_FOUND = "rationale.hot_route"


class Gateway(FastAPI):
    """FastAPI, and before it the hot routes.

    Attributes:
        hot: the gate in front of `answer_hot`; None sends every request to FastAPI.
        refusal: asked by a crowd's connections, before anything is called (see http_protocol).
    """

    hot: HttpMiddleware | None = None
    refusal: Refuse | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.hot is not None and _is_hot(scope):
            scope["app"] = self
            await self.hot(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def _is_hot(scope: Scope) -> bool:
    if _FOUND not in scope:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        scope[_FOUND] = _PATH.fullmatch(scope["path"]) if is_post else None
    return scope[_FOUND] is not None


def likely_entry(repository: ModelRegistry, scope: Scope) -> Entry | None:
    """What would answer a request, as far as its path tells; None if that is no hot route.

    Raises UnknownModelError.
    """
    if not _is_hot(scope):
        return None
    model, version, v2, model_v1, v1 = scope[_FOUND].groups()
    entry = repository.entry(model or model_v1, version)
    return likely_explainer(repository, entry) if (v2 or v1) == "explain" else entry


async def answer_hot(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers a request to a hot route. Errors are left to the gate around it."""
    request = Request(scope, receive, send)
    model, version, v2, model_v1, v1 = scope[_FOUND].groups()
    if v2 is not None:
        response = await _V2[v2](request, model, version)
    else:
        response = await _V1[v1](request, model_v1)
    await response(scope, receive, send)
