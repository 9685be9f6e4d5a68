"""The OpenAPI document: complete, of one piece, and its examples true."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest
import pytest_asyncio

from rationale_service.protocols.rest import openapi
from tests.service import handmade

pytestmark = pytest.mark.asyncio(loop_scope="session")

EXAMPLES = {file.stem: json.loads(file.read_text()) for file in sorted(openapi.EXAMPLES.glob("*.json"))}

JSON = "application/json"
PROBLEM = "application/problem+json"
SINCE_START = {"model_statistics", "list_decisions"}  # they depend on what was asked before
OF_THE_REPOSITORY = {"v1_models", "repository_index"}  # the tests' holds more models than the example shows


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def document(client: httpx.AsyncClient) -> dict[str, Any]:
    return (await client.get("/openapi.json")).json()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def operation_of(document: dict[str, Any], name: str) -> tuple[str, str, dict[str, Any]]:
    (actual,) = (each for each in operations(document) if each[2]["operationId"] == name)
    return actual


def nodes(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from nodes(child)


def check(document: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    validator = jsonschema.Draft202012Validator({**schema, "components": document["components"]})
    validator.validate(value)


# --- the document itself ------------------------------------------------------------------------------


async def test_every_operation_is_named_once_and_described(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(names) == len(set(names))
    for name in names:
        assert name.isidentifier(), name
        assert name == name.strip("_"), name
    for _, path, operation in operations(document):
        assert operation["summary"], path
        assert operation["tags"], path
        assert "HTTPValidationError" not in str(operation), path


async def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    references = {node["$ref"] for node in nodes(document) if "$ref" in node}
    assert "#/components/schemas/InferRequest" in references
    for reference in references:
        place = document
        for piece in reference.removeprefix("#/").split("/"):
            place = place[piece]
    assert "$defs" not in str(document)
    assert not [name for name in document["components"]["schemas"] if "ValidationError" in name]


async def test_every_problem_has_an_example(document: dict[str, Any]) -> None:
    for _, path, operation in operations(document):
        for status, answer in operation["responses"].items():
            if int(status) < 400:
                continue
            media = answer["content"][PROBLEM]
            assert media["schema"] == {"$ref": "#/components/schemas/Problem"}, path
            assert media["examples"], (path, status)
            for example in media["examples"].values():
                check(document, media["schema"], example["value"])
                assert example["value"]["status"] == int(status)


async def test_every_operation_says_which_keys_open_it(document: dict[str, Any]) -> None:
    scopes = {operation["operationId"]: operation.get("x-scopes") for _, _, operation in operations(document)}
    assert scopes["server_live"] is scopes["alive"] is None
    assert (scopes["infer"], scopes["v1_explain"], scopes["put_explainer"]) == (
        ["infer"],
        ["explain"],
        ["admin"],
    )
    schemes = document["components"]["securitySchemes"].keys()
    for _, path, operation in operations(document):
        if operation.get("x-scopes"):
            assert {name for each in operation["security"] for name in each} == schemes, path
            assert {"401", "403", "429"} <= operation["responses"].keys(), path


async def test_a_body_is_required_but_by_the_repository(document: dict[str, Any]) -> None:
    bodies = {op["operationId"]: op["requestBody"] for *_, op in operations(document) if "requestBody" in op}
    optional = {name for name, body in bodies.items() if not body.get("required", False)}
    assert optional == {"repository_index", "repository_load", "repository_unload"}
    assert {"infer", "v1_decide", "put_reference_set"} <= bodies.keys()


async def test_putting_answers_whether_it_was_there_before(document: dict[str, Any]) -> None:
    for name in ("put_explainer", "put_reference_set"):
        answers = operation_of(document, name)[2]["responses"]
        descriptions = {status: answers[status]["description"] for status in answers if status < "300"}
        assert len(set(descriptions.values())) == 2, descriptions


async def test_no_path_takes_a_query_by_accident(document: dict[str, Any]) -> None:
    query_names = {
        path: [each["name"] for each in operation.get("parameters", []) if each["in"] == "query"]
        for _, path, operation in operations(document)
        if path.startswith("/v1") or path.endswith(("{model}/infer", "{model}/explain"))
    }
    assert {path: names for path, names in query_names.items() if names} == {
        "/v1/decisions": ["application_id", "model", "since", "until", "limit", "open"],
        "/v1/decisions/{decision}:notice": ["language"],
        "/v1/models/{model}/features": ["explainer", "language"],
    }
    assert len(query_names) >= 6


# --- the examples -------------------------------------------------------------------------------------


async def test_what_takes_a_body_has_an_example(document: dict[str, Any]) -> None:
    for _, path, operation in operations(document):
        if path.startswith("/v1") or path.endswith(("{model}/infer", "{model}/explain")):
            assert operation["operationId"] in EXAMPLES, path
        for parameter in operation.get("parameters", []):
            assert ("example" in parameter) == (parameter["name"] == "model"), path


@pytest.mark.parametrize("name", EXAMPLES)
async def test_examples_fit_their_schemas(document: dict[str, Any], name: str) -> None:
    _, _, operation = operation_of(document, name)
    answer = operation["responses"]["200"]["content"][JSON]
    check(document, answer["schema"], answer["example"])
    if "request" in EXAMPLES[name]:
        request = operation["requestBody"]["content"][JSON]
        check(document, request["schema"], request["example"])


def _without_chance(name: str, value: Any) -> Any:
    """What is another one each time is left out, and a text is held to its beginning."""
    if name == "get_decision":
        chance = {"time": "", "request_id": "", "latency_ms": 0}
        return value | chance | {"runtime": sorted(value["runtime"])}
    if name == "replay_decision":
        return value | {"id": ""}
    if name in ("contest_decision", "review_decision"):
        digests = value["digests"] | {"profile": ""}
        return value | {"id": "", "reviews": "", "review_by": "", "digests": digests}
    if name == "decision_history":
        chance = {"id": "", "time": ""}
        return value | {"id": "", "standing": ""} | {"events": [each | chance for each in value["events"]]}
    if name == "decision_notice":
        shown = EXAMPLES[name]["answer"]["text"].removesuffix("…")
        assert value["text"].startswith(shown)
        return value | {"id": "", "text": shown}
    return value


@pytest.mark.parametrize("name", EXAMPLES)
async def test_examples_are_true(document: dict[str, Any], client: httpx.AsyncClient, name: str) -> None:
    """What the tests' own model `score` answers is what the document shows."""
    method, path, operation = operation_of(document, name)
    shown, request = EXAMPLES[name]["answer"], EXAMPLES[name].get("request")
    path = path.replace("{model}", "score")
    if "{decision}" in path:
        decided = await client.post("/v1/models/score:decide", json=EXAMPLES["v1_decide"]["request"])
        path = path.replace("{decision}", decided.json()["decisions"][0]["id"])
    answer = await client.request(method, path, json=request)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    check(document, operation["responses"]["200"]["content"][JSON]["schema"], body)
    if name in OF_THE_REPOSITORY:
        (listed,) = shown["models"] if isinstance(shown, dict) else shown
        assert listed in (body["models"] if isinstance(body, dict) else body)
    elif name not in SINCE_START:
        for decision in body.get("decisions", [body.get("answer")]) if isinstance(body, dict) else ():
            if decision is not None:
                decision["id"] = "d" * 32  # another one each time
                decision["digests"]["profile"] = "f" * 64  # of every key that a profile may have
        assert _without_chance(name, body) == _without_chance(name, shown)
    assert tuple(EXAMPLES["v1_predict"]["request"]["instances"][0]) == handmade.FEATURES
