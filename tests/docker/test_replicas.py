"""The profile `replicas` of docker-compose.yml: three gateways on a PostgreSQL and an S3, behind a proxy.

Its own services, on a real engine. Where no registry is within reach, `tests.docker.images` makes what
stands for the images that are not ours.
"""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import httpx
import orjson
import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from rationale_service.cli.main import app
from tests.docker.conftest import is_ready, wait_for
from tests.docker.images import ROOT, make_services
from tests.needs import need
from tests.service import patient
from tests.service.child import spare_ports

pytestmark = pytest.mark.docker

FILE = ROOT / "docker-compose.yml"
REPLICAS = ("replica-1", "replica-2", "replica-3")
INSTANCES = orjson.loads((ROOT / "examples/credit/applicants.json").read_bytes())
EXPLAINER = "/v2/models/credit/explainers/mine"


@dataclass(frozen=True)
class Compose:
    environment: dict[str, str]
    engine: docker.DockerClient
    headers: dict[str, str]

    def run(self, *words: str) -> str:
        command = ["docker-compose", "--file", str(FILE), "--profile", "replicas", *words]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def proxy(self) -> str:
        return f"http://127.0.0.1:{self.environment['RATIONALE_PORT']}"

    def address(self, service: str) -> str:
        """Where a container itself answers, on the engine's network."""
        [container] = self.run("ps", "--quiet", service).split()
        networks = self.engine.containers.get(container).attrs["NetworkSettings"]["Networks"]
        [network] = networks.values()
        return f"http://{network['IPAddress']}:8080"

    def post(self, url: str, verb: str, **more: Any) -> httpx.Response:
        headers = {**self.headers, **more.pop("headers", {})}
        return patient.post(f"{url}/v1/models/credit:{verb}", json={**INSTANCES, **more}, headers=headers)

    def decided(self, url: str, key: str) -> list[str]:
        """The ids of what was decided under a key."""
        answer = self.post(url, "decide", headers={"Idempotency-Key": key})
        assert answer.status_code == 200, answer.text
        return [each["id"] for each in answer.json()["decisions"]]

    def explains(self, url: str) -> bool:
        """Whether it does by the explainer that was made over the API; what it answers adds up."""
        answer = self.post(url, "explain", explainer="mine")
        if answer.status_code == 404:
            return False
        assert answer.status_code == 200, answer.text
        for told in answer.json()["explanations"]:
            gap = told["explained_value"] - told["base_value"] - sum(told["attributions"].values())
            assert abs(gap) < 1e-4
        return True


@pytest.fixture
def compose(engine: docker.DockerClient, image: str, models: Path, tmp_path: Path) -> Iterator[Compose]:
    """Up, by docker-compose 1.29, which Debian has."""
    need("docker-compose")
    services = YAML(typ="safe").load(FILE)["services"]
    assert {services[name]["image"] for name in REPLICAS} == {image}
    make_services(engine, tmp_path, services)
    keys = tmp_path / "keys.toml"
    scopes = [word for scope in ("infer", "explain", "decide", "admin") for word in ("--scope", scope)]
    made = CliRunner().invoke(app, ["keys", "new", "tester", *scopes, "--file", str(keys)])
    assert made.exit_code == 0, made.output
    environment = {
        **os.environ,
        "RATIONALE_REPOSITORY": str(models),
        "RATIONALE_PORT": str(spare_ports(1)[0]),
        "RATIONALE_KEYS": keys.read_text(),
        "RATIONALE_DATABASE_PASSWORD": "of-the-test",
        "COMPOSE_PROJECT_NAME": f"rationale-replicas-{os.getpid()}",
    }
    found = Compose(environment, engine, {"Authorization": f"Bearer {made.stdout.split()[-1]}"})
    try:
        found.run("up", "--detach", "--no-build", "proxy")
        yield found
    finally:
        print(found.run("logs", "--no-color", "--tail", "60"))
        found.run("down", "--volumes")


def test_what_one_makes_all_serve_and_one_may_die(compose: Compose) -> None:
    wait_for(lambda: is_ready(compose.proxy))
    body = {"method": "deepshap", "reference_set": "own"}
    rows = (ROOT / "examples/credit/references.csv").read_bytes()
    headers = compose.headers | {"Content-Type": "text/csv"}
    put = patient.put(f"{compose.proxy}/v2/reference-sets/own?model=credit", content=rows, headers=headers)
    assert put.status_code == 201, put.text
    put = patient.put(compose.proxy + EXPLAINER, json=body, headers=compose.headers)
    assert put.status_code == 202, put.text
    replicas = {name: compose.address(name) for name in REPLICAS}
    for url in replicas.values():
        wait_for(lambda url=url: compose.explains(url))
    first = compose.decided(compose.proxy, "a")
    assert [compose.decided(url, "a") for url in replicas.values()] == [first] * 3

    compose.run("kill", "replica-2")
    for number in range(30):
        assert compose.explains(compose.proxy)
        assert compose.decided(compose.proxy, "a") == first
        assert len(compose.decided(compose.proxy, f"after-{number}")) == len(first)
    decisions = len(first) * 31
    told = compose.run("exec", "-T", "replica-1", "rationale", "audit", "verify")
    assert told.startswith(f"{decisions} decisions, none removed or altered")

    compose.run("up", "--detach", "--no-build", "replica-2")
    again = compose.address("replica-2")
    wait_for(lambda: is_ready(again))
    wait_for(lambda: compose.explains(again))
    assert compose.decided(again, "after-29") == compose.decided(replicas["replica-1"], "after-29")
