"""The OpenAPI document: what FastAPI gathers, made fit to generate a client from.

Bodies and problems become components that are there once, FastAPI's own 422 goes, which no route here
answers, and every operation gets its examples.
"""

import copy
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from service.api.openapi_examples import EXAMPLES, MODEL
from service.security.keys import needed_by_path

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

Document = dict[str, Any]


def body_of(
    model: type[BaseModel], *, required: bool = True, other: dict[str, Any] | None = None
) -> dict[str, Any]:
    """`openapi_extra` of a route that reads its body itself: JSON of `model`, and `other` media types."""
    content = {JSON: {"schema": schema_of(model)}, **(other or {})}
    return {"requestBody": {"required": required, "content": content}}


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Its JSON schema, to be made a component when the document is."""
    return model.model_json_schema(ref_template=_REF)


def header(name: str, kind: str, description: str) -> dict[str, Any]:
    """An optional parameter that comes as a header."""
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": {"type": kind},
    }


def install(app: FastAPI, denied: dict[int | str, dict[str, Any]]) -> None:
    """Makes `app.openapi` give the document below; `denied` is what all but open routes may answer too."""
    app.openapi = lambda: _document(app, denied)  # type: ignore[method-assign]


def _document(app: FastAPI, denied: dict[int | str, dict[str, Any]]) -> Document:
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        components = document.setdefault("components", {}).setdefault("schemas", {})
        document["components"]["securitySchemes"] = _SCHEMES
        for path, operation in _operations(document):
            _drop_validation(operation)
            _secure(path, operation, denied)
            _hoist(operation, components)
            _show(operation)
        for name in _VALIDATION:
            components.pop(name, None)
        app.openapi_schema = document
    return app.openapi_schema


def _operations(document: Document) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, operations in document["paths"].items():
        yield from ((path, operations[method]) for method in _METHODS if method in operations)


def _secure(path: str, operation: dict[str, Any], denied: dict[int | str, dict[str, Any]]) -> None:
    """Says which keys open a route, where the operator wants keys."""
    scopes = needed_by_path(path.replace("{model}", MODEL))
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


def _hoist(operation: dict[str, Any], components: dict[str, Any]) -> None:
    """Whole models in bodies and answers → components."""
    for each in (operation.get("requestBody", {}), *operation["responses"].values()):
        for media in each.get("content", {}).values():
            schema = media.get("schema", {})
            if "title" not in schema or "properties" not in schema:
                continue
            schema = dict(schema)
            components.update(schema.pop("$defs", {}))
            components[schema["title"]] = schema
            media["schema"] = {"$ref": _REF.format(model=schema["title"])}


def _show(operation: dict[str, Any]) -> None:
    """Adds the example of the request and of its answer."""
    for parameter in operation.get("parameters", []):
        if parameter["name"] == "model":
            parameter["example"] = MODEL
    example = EXAMPLES.get(operation["operationId"])
    if example is None:
        return
    if example.request is not None:
        operation["requestBody"]["content"][JSON]["example"] = example.request
    operation["responses"]["200"]["content"][JSON]["example"] = example.answer
