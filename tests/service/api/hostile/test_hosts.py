"""By which names a gateway is asked: another page's name that leads to this machine gets no answer."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from rationale_service.settings import Settings
from tests.service import patient
from tests.service.child import ready_line, serve
from tests.service.conftest import gateway

ANYWHERE = "0.0.0.0"  # noqa: S104 (an end that others reach is what is tested)
PATHS = ["/v2/health/ready", "/v2/models/score/explainers", "/v1/decisions/1", "/console/"]


@pytest.mark.parametrize("path", PATHS)
async def test_loopback_is_asked_by_its_own_names(repository: Path, path: str) -> None:
    async with gateway(Settings(repository=repository)) as client:
        for name in ("localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST"):
            assert (await client.get(path, headers={"host": name})).status_code != 400, name
        for name in ("evil.example", "localhost.evil.example:8080", "127.0.0.1.evil.example", "", "[::2]"):
            assert (await client.get(path, headers={"host": name})).status_code == 400, name


@pytest.mark.parametrize("end", ["127.0.0.2", "127.255.255.254"])
async def test_another_address_of_this_machine_is_asked_by_itself(repository: Path, end: str) -> None:
    async with gateway(Settings(repository=repository, host=end)) as client:
        for name, status in {f"{end}:8080": 200, "localhost": 200, "127.0.0.3": 400, "x.com": 400}.items():
            assert (await client.get("/v2/health/ready", headers={"host": name})).status_code == status, name


async def test_an_end_that_others_reach_is_asked_by_any_name(repository: Path) -> None:
    async with gateway(Settings(repository=repository, host=ANYWHERE)) as client:
        assert (await client.get("/v2/health/ready", headers={"host": "any.example"})).status_code == 200


async def test_named_hosts_alone_are_answered(repository: Path) -> None:
    named = Settings(repository=repository, host=ANYWHERE, hosts="scores.example.com, *.local")
    async with gateway(named) as client:
        for name, status in {
            "scores.example.com": 200,
            "a.local": 200,
            "localhost": 400,
            "x.com": 400,
        }.items():
            assert (await client.get("/v2/health/ready", headers={"host": name})).status_code == status, name


def test_the_admin_port_has_an_end_of_its_own(repository: Path) -> None:
    with serve(
        "--repository", str(repository), "--port", "0", "--host", ANYWHERE, "--admin-port", "0"
    ) as child:
        url, lines = ready_line(child)
        (admin,) = (line.split()[-1] for line in lines if "admin" in line)
        for end, status in ((url, 200), (admin, 400)):
            response = patient.get(f"{end}/v2/health/ready", headers={"host": "evil.example"})
            assert response.status_code == status, end


@pytest.mark.parametrize("value", ["http://a.example", "a.example:8080", "a,,b", "*x", "a b"])
def test_what_is_no_name(value: str) -> None:
    with pytest.raises(ValidationError, match=r"scores\.example\.com"):
        Settings(hosts=value)


async def test_no_redirect_names_the_callers_host(repository: Path) -> None:
    async with gateway(Settings(repository=repository, host=ANYWHERE)) as client:
        for path in ("/v2/health/ready/", "/console", "/docs/"):
            response = await client.get(path, headers={"host": "evil.example"})
            assert "evil" not in response.headers.get("location", "")
