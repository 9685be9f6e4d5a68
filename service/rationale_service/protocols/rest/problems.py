"""Errors → RFC 9457 problem documents that clients of the Open Inference Protocol understand too."""

import http
import logging
from collections.abc import Iterator
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from rationale_service.errors import (
    InvalidInputError,
    ModelFailedError,
    ServiceError,
    SlowBodyError,
    TooLargeError,
)
from rationale_service.observability.context import note_problem
from rationale_service.protocols.rest.openapi import schema_of
from rationale_service.protocols.rest.schemas import Problem

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
_URN = "urn:rationale:problem:"
_ROUTER_SAYS = {
    404: "there is nothing at this path; /docs lists what there is",
    405: "{} is not allowed here{}; /docs lists the routes",
}
_UNREAD = (SlowBodyError, TooLargeError)  # errors before the end of the body


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI descriptions of a route's error responses."""
    return {
        status: {
            "description": http.HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": schema_of(Problem), "examples": _examples(status)}},
        }
        for status in statuses
    }


def _examples(status: int) -> dict[str, Any]:
    """Return one example for each error of that status."""
    return {
        kind.slug: {
            "summary": kind.title,
            "value": _document(status, kind.slug, kind.title, "what is wrong, and what to do", "/v2/…"),
        }
        for kind in _kinds(ServiceError)
        if kind.status == status
    }


def _kinds(kind: type[ServiceError]) -> Iterator[type[ServiceError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


def _document(status: int, slug: str, title: str, detail: str, path: str) -> dict[str, Any]:
    """Return a document of schemas.Problem, built without pydantic: refusals must be cheap."""
    return {
        "type": _URN + slug,
        "title": title,
        "status": status,
        "detail": detail,
        "instance": path,
        "error": f"{title}: {detail}",
    }


def install(app: FastAPI) -> None:
    """Answer every error of the app as a problem document."""
    for kind in (ServiceError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _answer)


async def _answer(request: Request, error: Exception) -> Response:
    return answer(request, error)


def answer(request: Request, error: Exception) -> Response:
    """Return the problem document of `error`."""
    path = request.scope["path"]
    if isinstance(error, RequestValidationError):
        wrong = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        error = InvalidInputError("; ".join(wrong))
    match error:
        case ServiceError():
            if isinstance(error, ModelFailedError):
                log.error("%s: %s", path, error)
            status, slug, title, detail = error.status, error.slug, error.title, str(error)
            headers = _headers(error)
        case HTTPException():  # the router's errors: no such path or method
            status = http.HTTPStatus(error.status_code)
            title, headers = status.phrase, dict(error.headers or {})
            allowed = f", only {headers['Allow']}" if "Allow" in headers else ""
            detail = _ROUTER_SAYS.get(status, status.phrase).format(request.method, allowed)
            slug = title.lower().replace(" ", "-")
        case _:  # internal fault: the log has its traceback, the caller gets no details
            log.error("%s: %s", path, type(error).__name__)
            status, slug, title = 500, ServiceError.slug, ServiceError.title
            detail, headers = "an unexpected fault; the server's log tells more", {}
    note_problem(slug, status)
    return Response(orjson.dumps(_document(status, slug, title, detail, path)), status, headers, MEDIA_TYPE)


def _headers(error: ServiceError) -> dict[str, str]:
    """Return headers with instructions for the caller, such as Retry-After."""
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    if isinstance(error, _UNREAD):
        headers["Connection"] = "close"
    if error.challenge is not None:
        headers["WWW-Authenticate"] = error.challenge
    return headers
