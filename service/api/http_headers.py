"""The headers of a request by name: asked for many times, and looked through once."""

from collections.abc import Mapping

from starlette.types import Scope

_KEY = "rationale.headers"
HttpHeaders = Mapping[bytes, bytes]


def scope_of(method: str, path: str, headers: HttpHeaders) -> Scope:
    """What of an ASGI scope is asked for to refuse a request. `headers` by lower-case name."""
    return {"type": "http", "method": method, "path": path, _KEY: headers}


def headers_of(scope: Scope) -> HttpHeaders:
    """By lower-case name, as ASGI has them; the first of those that come twice."""
    found: HttpHeaders | None = scope.get(_KEY)
    if found is None:
        found = scope[_KEY] = dict(reversed(scope["headers"]))
    return found


def header_of(scope: Scope, name: bytes) -> str | None:
    """A header's value, by its lower-case name; None where it was not sent."""
    value = headers_of(scope).get(name)
    return None if value is None else value.decode("latin-1")
