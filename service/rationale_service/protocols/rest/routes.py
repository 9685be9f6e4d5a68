"""Routes: their declared scopes, and a class of routes without FastAPI's validation."""

import functools
from collections.abc import Sequence
from typing import Any

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match, Mount, Route, request_response

from rationale_service.security.keys import ANY_KEY, Needs, Scopes, UndeclaredScopesError, declared_scopes


class DirectRoute(APIRoute):
    """A route that is documented like any other, but whose function takes Starlette's request.

    FastAPI's dependencies and validation cost more than a small model does.
    """

    def __init__(self, path: str, endpoint: Any, **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.app = request_response(endpoint)


class RouteScopes:
    """Lookup of a request's scopes: those of the route that its router would choose."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        """Take the routes of an app. Raises UndeclaredScopesError for one that declares no scopes."""
        for route in routes:
            needs_of(route)
        self._routes = routes
        self.needed = functools.lru_cache(maxsize=1024)(self._scopes_of_path)

    def _scopes_of_path(self, method: str, path: str, root_path: str) -> Scopes:
        """Return the scopes of a path, one of which opens it; every key may learn that a path is missing."""
        request = {"type": "http", "method": method, "path": path, "root_path": root_path}
        other_method: Scopes | None = None
        for route in self._routes:
            match, child_scope = route.matches(request)
            if match is Match.NONE:
                continue
            needed = needs_of(route)
            scopes = needed if isinstance(needed, frozenset) else needed(child_scope["path_params"]["model"])
            if match is Match.FULL:
                return scopes
            other_method = scopes if other_method is None else other_method
        return ANY_KEY if other_method is None else other_method


def needs_of(route: BaseRoute) -> Needs:
    """Return the scopes that a route declares. Raises UndeclaredScopesError."""
    match route:
        case Route():
            name = f"the route {' '.join(sorted(route.methods or ()))} {route.path}"
            needed = declared_scopes(route.endpoint, name)
            if not isinstance(needed, frozenset) and "model" not in route.param_convertors:
                raise UndeclaredScopesError(f"{name} declares scopes by its model: the path needs {{model}}")
            return needed
        case Mount():
            return declared_scopes(route.app, f"the app that is mounted at {route.path}")
    raise UndeclaredScopesError(
        f"{route!r} is neither an HTTP route nor a mounted app, so the gateway could not check its "
        "callers' keys. Add the router's routes themselves (app.routes.extend(router.routes)); WebSockets "
        "are not supported"
    )
