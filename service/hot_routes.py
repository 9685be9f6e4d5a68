"""The way of the requests that are many, past FastAPI.

Its middlewares wrap every message, its router tries one route after the other, solves dependencies and
validates what there is: it costs more than a small model does (docs/serving-performance.md). The routes of
inference need none of it. They stand in the router too, for the OpenAPI document; this is the shorter way to
the same functions, through the same gate.
"""

import re
from collections.abc import Awaitable, Callable, Sequence

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from service import routes_v1, routes_v2
from service.body import timeout_header
from service.catalogue import Catalogue
from service.choice import likely_explainer
from service.dataplane import DataPlane
from service.entries import Entry
from service.errors import QueueFullError, ServiceError
from service.http_gate import HttpGate

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
    """

    hot: HttpGate | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.hot is not None and _is_hot(scope):
            scope["app"] = self
            await self.hot(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def refusal(self, scope: Scope) -> Sequence[Message] | None:
        """The answer to a request of which it is plain by its headers that there is no place for it now.

        None for any other. It takes no task and reads no body: where more is asked than can be answered,
        refusals must leave the time for answers.
        """
        if self.hot is None or not _is_hot(scope):
            return None
        plane: DataPlane = self.state.plane
        try:
            entry = _likely(plane.repository, scope[_FOUND])
            deadline_s = plane.deadline(timeout_header(scope))
        except ServiceError:
            return None  # told on the ordinary way
        try:
            plane.admit(entry, deadline_s)
        except QueueFullError as error:
            return self.hot.refuse(scope, entry, error)
        except ServiceError:
            return None
        return None


def _is_hot(scope: Scope) -> bool:
    if _FOUND not in scope:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        scope[_FOUND] = _PATH.fullmatch(scope["path"]) if is_post else None
    return scope[_FOUND] is not None


def _likely(repository: Catalogue, found: re.Match[str]) -> Entry:
    """What would answer, as far as the path tells. Raises UnknownModelError."""
    model, version, v2, model_v1, v1 = found.groups()
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
