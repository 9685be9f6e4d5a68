"""`/docs` is whole without the internet: a browser finds all of it here, and may ask nobody else."""

import base64
import hashlib
import re
from pathlib import Path

import httpx
import pytest

from rationale_service.app import create_admin_app, create_app, create_backend
from rationale_service.settings import Settings
from tests.service.in_process import client_of

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def whole(client: httpx.AsyncClient) -> None:
    page = await client.get("/docs")
    assert page.status_code == 200
    assert "://" not in page.text
    links = re.findall(r'(?:src|href)="(?!data:)([^"]*)"', page.text)
    assert links == ["docs/files/swagger-ui.css", "docs/files/swagger-ui-bundle.js"]
    for link in (*links, "openapi.json"):
        assert (await client.get(f"/{link}")).status_code == 200, link
    for path in ("docs", *links):  # what a browser runs
        assert (await client.get(f"/{path}")).headers["x-content-type-options"] == "nosniff"


async def test_all_of_it_is_served_here(client: httpx.AsyncClient) -> None:
    await whole(client)


async def test_on_the_admin_port_too(repository: Path) -> None:
    settings = Settings(repository=repository, admin_port=0)
    async with client_of(create_admin_app(create_app(settings, create_backend(settings)))) as client:
        await whole(client)


async def test_its_policy_allows_its_own_script_and_no_other_host(client: httpx.AsyncClient) -> None:
    page = await client.get("/docs")
    policy = dict(piece.split(" ", 1) for piece in page.headers["content-security-policy"].split("; "))
    (script,) = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["script-src"] == f"'self' 'sha256-{digest}'"
    assert '"validatorUrl": null' in script


async def test_what_is_no_file_of_it(client: httpx.AsyncClient) -> None:
    for path in (
        "/docs/files/",
        "/docs/files/absent.js",
        "/docs/files/..%2f__init__.py",
        "/docs/oauth2-redirect",
    ):
        answer = await client.get(path)
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"
