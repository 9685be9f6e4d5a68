"""The OpenAPI document: FastAPI's own, adapted for generators of clients.

Bodies and problems become components that occur once. FastAPI's own 422, which no route here answers, is
removed. Every operation gets its example, `examples/OPERATION.json`, with the answer and, if the operation
takes a body, the request. The examples use a model `score` with four named features and three outputs,
y = x·W + b, explained by DeepSHAP; its first output decides. A test sends each and compares.
"""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles

from rationale.pictures.markup import csp_hash
from rationale_service.protocols.rest.routes import needs_of
from rationale_service.security.keys import NOBODY_NEEDS, Scopes, needs

MODEL = "score"  # the examples' model
EXAMPLES = Path(__file__).parent / "examples"
JSON = "application/json"
_REF = "#/components/schemas/{model}"
_VALIDATION = ("HTTPValidationError", "ValidationError")
_METHODS = ("get", "put", "post", "delete", "patch")

_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A key of `rationale keys new`, where the operator wants keys; it needs one of the "
        "operation's `x-scopes`.",
    },
    "api_key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key."},
}

_PATH = "/docs"
_FILES = f"{_PATH}/files"
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
# Swagger UI sets styles on its elements and has its pictures in its style sheet.
_POLICY = (
    "default-src 'none'; connect-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' '{script}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_NO_SNIFFING = {"X-Content-Type-Options": "nosniff"}

_MODELS: dict[str, type[BaseModel]] = {}  # models that routes refer to, by name

Document = dict[str, Any]
Responses = dict[int | str, dict[str, Any]]  # FastAPI's responses by status


def body_of(
    model: type[BaseModel], *, required: bool = True, other: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return `openapi_extra` of a route that reads its body itself: JSON of `model`, and `other` types."""
    content = {JSON: {"schema": schema_of(model)}, **(other or {})}
    return {"requestBody": {"required": required, "content": content}}


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return a reference to a model's JSON schema, which each document with the reference includes."""
    _MODELS[model.__name__] = model
    return {"$ref": _REF.format(model=model.__name__)}


MODEL_PARAMETER = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}


def header(name: str, kind: str, description: str) -> dict[str, Any]:
    """Return an optional header parameter."""
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": {"type": kind},
    }


IDEMPOTENCY_KEY = "Idempotency-Key"
KEY_PARAMETER = header(
    IDEMPOTENCY_KEY,
    "string",
    "1 to 255 visible ASCII characters: what was answered under the same key is answered again",
)


def install(app: FastAPI, denied: Responses) -> None:
    """Make `app.openapi` return the document below, and serve it.

    Args:
        denied: additional responses of all routes that need a key.
    """
    app.openapi = lambda: _document(app, denied)  # type: ignore[method-assign]

    @needs(NOBODY_NEEDS)
    async def document(_: Request) -> Response:
        return JSONResponse(app.openapi())

    app.add_route("/openapi.json", document, include_in_schema=False)


def _document(app: FastAPI, denied: Responses) -> Document:
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        scopes = _scopes(app)
        components = document.setdefault("components", {}).setdefault("schemas", {})
        document["components"]["securitySchemes"] = _SCHEMES
        for operation in _operations(document):
            _drop_validation(operation)
            _secure(operation, scopes[operation["operationId"]], denied)
            _add_examples(operation)
        components.update(_schemas(document))
        for name in _VALIDATION:
            components.pop(name, None)
        app.openapi_schema = document
    return app.openapi_schema


def _operations(document: Document) -> Iterator[dict[str, Any]]:
    for operations in document["paths"].values():
        yield from (operations[method] for method in _METHODS if method in operations)


def _scopes(app: FastAPI) -> dict[str, Scopes]:
    """Return the scopes of each operation; if they depend on the model, those of the examples' model."""
    scopes: dict[str, Scopes] = {}
    for route in app.routes:
        if isinstance(route, APIRoute) and route.operation_id is not None:
            needed = needs_of(route)
            scopes[route.operation_id] = needed if isinstance(needed, frozenset) else needed(MODEL)
    return scopes


def _secure(operation: dict[str, Any], scopes: Scopes, denied: Responses) -> None:
    """Add the scopes that an operation needs if the operator wants keys."""
    if not scopes:
        return
    operation["security"] = [*({name: []} for name in _SCHEMES), {}]
    operation["x-scopes"] = sorted(scopes)
    for status, answer in denied.items():
        operation["responses"].setdefault(str(status), copy.deepcopy(answer))


def _drop_validation(operation: dict[str, Any]) -> None:
    content = operation["responses"].get("422", {}).get("content", {})
    if content.get(JSON, {}).get("schema", {}).get("$ref", "").endswith(_VALIDATION[0]):
        del operation["responses"]["422"]


def _schemas(document: Document) -> dict[str, Any]:
    """Return the schemas of the models that the document refers to."""
    text = orjson.dumps(document).decode()
    named = [model for name, model in _MODELS.items() if f'"{_REF.format(model=name)}"' in text]
    _, schemas = models_json_schema([(model, "validation") for model in named], ref_template=_REF)
    definitions: dict[str, Any] = schemas["$defs"]
    return definitions


def _add_examples(operation: dict[str, Any]) -> None:
    """Add the example of the request and of its answer."""
    for parameter in operation.get("parameters", []):
        if parameter["name"] == "model":
            parameter["example"] = MODEL
    file = EXAMPLES / f"{operation['operationId']}.json"
    if not file.exists():
        return
    example = orjson.loads(file.read_bytes())
    if "request" in example:
        operation["requestBody"]["content"][JSON]["example"] = example["request"]
    operation["responses"]["200"]["content"][JSON]["example"] = example["answer"]


class _DocsFiles(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(_NO_SNIFFING)
        return response


def add_page(app: FastAPI) -> None:
    """Add `/docs`: the API in a browser, through Swagger UI, whose files come from this server alone.

    The page's policy enforces this: the page neither loads from nor sends to other servers. Its links are
    relative, so that a proxy may put it under a prefix.
    """
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title=app.title,
        swagger_js_url=f"{_FILES[1:]}/swagger-ui-bundle.js",
        swagger_css_url=f"{_FILES[1:]}/swagger-ui.css",
        swagger_favicon_url="data:,",
        swagger_ui_parameters={"validatorUrl": None},  # by default it shows the document to swagger.io
    ).body
    policy = _POLICY.format(script=csp_hash(*_SCRIPT.findall(bytes(page).decode())))
    headers = {"Content-Security-Policy": policy, **_NO_SNIFFING}

    @app.get(_PATH, include_in_schema=False)
    @needs(NOBODY_NEEDS)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page, headers=headers)

    app.mount(_FILES, needs(NOBODY_NEEDS)(_DocsFiles(packages=[("fastapi_offline", "static")])))
