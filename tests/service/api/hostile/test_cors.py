"""Pages in a browser: what another origin may ask, and methods that browsers and probes use."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from rationale_service.settings import Settings
from tests.service.conftest import gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

ORIGIN = "https://app.example"
ALLOWED = "access-control-allow-origin"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def open_to_pages(repository: Path) -> AsyncIterator[httpx.AsyncClient]:
    keys = f'[keys.page]\nsha256 = "{"0" * 64}"\nscopes = ["infer"]\n'
    async with gateway(Settings(repository=repository, cors_origins=ORIGIN, keys=keys)) as client:
        yield client


def preflight(method: str, origin: str = ORIGIN) -> dict[str, str]:
    expected = "authorization, content-type, x-request-timeout-ms"
    return {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": expected,
    }


async def test_a_page_of_a_named_origin_may_ask(open_to_pages: httpx.AsyncClient) -> None:
    """Before the key is asked for, which a preflight does not bring; and it may read a refusal."""
    path = "/v2/models/score/infer"
    answer = await open_to_pages.options(path, headers=preflight("POST"))
    assert (answer.status_code, answer.headers[ALLOWED]) == (200, ORIGIN)
    assert "x-request-timeout-ms" in answer.headers["access-control-allow-headers"]
    answer = await open_to_pages.post(path, headers={"origin": ORIGIN}, json={})
    assert (answer.status_code, answer.headers[ALLOWED]) == (401, ORIGIN)
    assert "Retry-After" in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize(
    ("method", "origin"), [("POST", "https://other.example"), ("PUT", ORIGIN), ("DELETE", ORIGIN)]
)
async def test_others_and_what_administers_are_refused(
    open_to_pages: httpx.AsyncClient, method: str, origin: str
) -> None:
    path = "/v2/models/score/explainers/mine"
    assert (await open_to_pages.options(path, headers=preflight(method, origin))).status_code == 400


async def test_no_origin_is_named_by_default(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v2/health/live", headers={"origin": ORIGIN})
    assert ALLOWED not in answer.headers


@pytest.mark.parametrize(
    "path",
    ["/", "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/score/ready", "/v1/models", "/metrics"],
)
async def test_head_is_answered_as_get_is(address: str, path: str) -> None:
    async with httpx.AsyncClient(base_url=f"http://{address}") as client:
        head, get = await client.head(path), await client.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


async def test_head_of_what_is_asked_by_post(client: httpx.AsyncClient) -> None:
    assert (await client.head("/v2/models/score/infer")).status_code == 405
    assert (await client.head("/v2/models/nobody")).status_code == 404
