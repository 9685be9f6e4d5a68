"""Requests that schemathesis makes of the OpenAPI document, and whether the answers are what it promises."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.pytest.plugin import SchemathesisFunction

from rationale_service.app import create_app, create_backend
from rationale_service.models.references.formats import MEDIA_TYPES
from rationale_service.settings import Settings
from tests.service import handmade
from tests.service.conftest import serving
from tests.service.faulty import FaultyBackend

# What the document leaves open and the models here know: else hardly any request would get past the names.
MODELS = ["score", "score_explain", "pair", "typed", "image", "open", "absent"]
INPUTS = ["x", "a", "b", "z", "ids", "text", "image"]
DATATYPES = ["FP32", "INT64", "BYTES", "BOOL", "FP16", "BF16"]

load_all_checks()
schemathesis.serializer.alias(
    [*MEDIA_TYPES.keys() - {"application/json", "text/csv"}], "application/octet-stream"
)
_from_parent = SchemathesisFunction.from_parent


def _named_apart(parent: Any, originalname: str, **options: Any) -> SchemathesisFunction:  # noqa: ARG001
    """Told a test's original name, pytest 9 leaves out of its id which operation it is of."""
    return _from_parent(parent, **options)


_patched: Any = SchemathesisFunction
_patched.from_parent = _named_apart


@schemathesis.check
def no_fault_of_the_server(_ctx: object, response: schemathesis.Response, _case: schemathesis.Case) -> None:
    """Its own check allows no 504, which is right for a caller who waits for a millisecond."""
    assert response.status_code < 500 or response.status_code in (503, 504), response.text


STORED = (
    "no_fault_of_the_server status_code_conformance content_type_conformance response_headers_conformance "
    "response_schema_conformance unsupported_method"
).split()


def narrowed(document: dict[str, Any]) -> dict[str, Any]:
    """The document, with the names of these models in it."""
    tensor = document["components"]["schemas"]["InputTensor"]["properties"]
    tensor["name"]["enum"], tensor["datatype"]["enum"] = INPUTS, DATATYPES
    tensor["shape"]["maxItems"], tensor["shape"]["items"] = 4, {"type": "integer", "maximum": 5}
    for path in document["paths"].values():
        for operation in path.values():
            for parameter in operation.get("parameters", []):
                if parameter["name"] == "model":
                    parameter["schema"]["enum"] = MODELS
    return document


def document() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        handmade.write_score(Path(folder))
        return create_app(Settings(repository=Path(folder)), FaultyBackend(None)).openapi()


schema = schemathesis.openapi.from_dict(narrowed(document()))
# Those start compiles, or end what the others ask for: the slow test has them.
public_schema = schema.exclude(path_regex="explainers|reference-sets|repository/models")
QUICK = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
THOROUGH = settings(QUICK, max_examples=200, derandomize=False)


@pytest.fixture(scope="module")
def own_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway that nobody else asks, since these requests may change what it serves."""
    folder = tmp_path_factory.mktemp("own") / "repository"
    handmade.write_all(folder)
    settings = Settings(repository=folder)
    with serving(create_app(settings, create_backend(settings))) as address:
        yield address


def _saved_examples() -> list[Any]:
    return [*CHECKS.get_by_names(STORED)]


@pytest.mark.full
@public_schema.parametrize()
@QUICK
def test_answers_are_what_the_document_promises(case: schemathesis.Case, own_address: str) -> None:
    case.call_and_validate(f"http://{own_address}", checks=_saved_examples())


@pytest.mark.slow
@schema.parametrize()
@THOROUGH
def test_thoroughly(case: schemathesis.Case, own_address: str) -> None:
    before = psutil.Process().memory_info().rss
    case.call_and_validate(f"http://{own_address}", checks=_saved_examples())
    assert psutil.Process().memory_info().rss - before < 100 << 20
