"""The image and the compose file, built and run by a real Docker engine as their heads and the docs say.

Containers that are read-only, have no capabilities and run as uid 10001 predict, explain and decide. A second
one over the same volume goes on from what the first one decided.
"""

import contextlib
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import docker
import orjson
import pytest

from tests.docker.conftest import EXAMPLE, is_ready, wait_for
from tests.docker.images import ROOT, make_triton
from tests.needs import need
from tests.service import patient
from tests.service.child import spare_ports

pytestmark = pytest.mark.docker

INSTANCES = orjson.loads((EXAMPLE / "applicants.json").read_bytes())
GIBIBYTE = 1 << 30


def documented(name: str) -> str:
    """The `docker run` of a Dockerfile's head, which the docs repeat."""
    (line,) = re.findall(r"^# +(docker run .+)$", (ROOT / name).read_text(), re.MULTILINE)
    assert line in "".join(page.read_text() for page in (ROOT / "docs" / "operations").glob("*.md"))
    return line


@contextlib.contextmanager
def run(models: Path, *more: str) -> Iterator[str]:
    """The documented `docker run`, with a free port in place of 8080; gives its URL when it is healthy."""
    [port], name = spare_ports(1), f"rationale-test-{os.getpid()}"
    line = documented("Dockerfile").replace("./model_repository", str(models))
    words = shlex.split(line.replace("127.0.0.1:8080:", f"127.0.0.1:{port}:"))
    subprocess.run(
        [*words[:2], "--detach", "--name", name, *more, *words[2:]], check=True, capture_output=True
    )
    try:
        wait_for(lambda: output("docker", "inspect", "--format={{.State.Health.Status}}", name) == "healthy")
        yield f"http://127.0.0.1:{port}"
        subprocess.run(["docker", "stop", "--time", "40", name], check=True, capture_output=True)
        assert output("docker", "inspect", "--format={{.State.ExitCode}}", name) == "0"
    finally:
        logs = subprocess.run(["docker", "logs", name], capture_output=True, text=True, check=False)
        print(logs.stdout, logs.stderr)
        subprocess.run(["docker", "rm", "--force", name], check=False, capture_output=True)


def output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def predicts_and_explains(url: str) -> None:
    predictions = patient.post(f"{url}/v1/models/credit:predict", json=INSTANCES)
    assert predictions.status_code == 200, predictions.text
    answer = patient.post(f"{url}/v1/models/credit:explain", json=INSTANCES)
    assert answer.status_code == 200, answer.text
    for told in answer.json()["explanations"]:
        gap = told["explained_value"] - told["base_value"] - sum(told["attributions"].values())
        assert abs(gap) < 1e-4


def decides(url: str, key: str) -> list[str]:
    """The ids of what was decided under an idempotency key."""
    headers = {"Idempotency-Key": key}
    answer = patient.post(f"{url}/v1/models/credit:decide", json=INSTANCES, headers=headers)
    assert answer.status_code == 200, answer.text
    decisions = answer.json()["decisions"]
    assert [each["decision"] for each in decisions].count("decline") > 0
    return [each["id"] for each in decisions]


HARDENED = "--read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges:true".split()


@pytest.mark.parametrize(
    "more",
    [
        pytest.param([], id="as typed"),
        pytest.param([*HARDENED, "--memory", str(GIBIBYTE)], id="read-only, in 1 GiB"),
        pytest.param([*HARDENED, "--user", "12345:0"], id="of another user"),
    ],
)
def test_the_documented_command_decides_and_goes_on(image: str, models: Path, more: list[str]) -> None:
    assert image in documented("Dockerfile").split()
    name = f"rationale-test-{os.getpid()}"
    subprocess.run(["docker", "volume", "rm", "--force", "rationale-state"], check=True, capture_output=True)
    try:
        with run(models, *more) as url:
            predicts_and_explains(url)
            first = decides(url, "a")
            assert output("docker", "exec", name, "id", "-u") == ("12345" if "--user" in more else "10001")
        with run(models, *more) as url:
            assert decides(url, "a") == first
            second = decides(url, "b")
            assert not set(first) & set(second)
            assert "8 decisions" in output("docker", "exec", name, "rationale", "audit", "verify")
    finally:
        subprocess.run(["docker", "volume", "rm", "--force", "rationale-state"], check=False)


@pytest.fixture(scope="module")
def triton(engine: docker.DockerClient, image: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert image
    make_triton(engine, tmp_path_factory.mktemp("triton"))


@pytest.mark.usefixtures("triton")
def test_the_compose_file_decides_and_goes_on(image: str, models: Path) -> None:
    """By docker-compose 1.29, which Debian has; Compose 2 is in no package here."""
    need("docker-compose")
    assert image
    http, grpc, *of_triton = map(str, spare_ports(5))
    ends = dict(zip(["HTTP", "GRPC", "METRICS"], of_triton, strict=True))
    environment = {
        **os.environ,
        **{f"RATIONALE_TRITON_{end}_PORT": port for end, port in ends.items()},
        "RATIONALE_REPOSITORY": str(models),
        "RATIONALE_PORT": http,
        "RATIONALE_GRPC_PORT": grpc,
        "COMPOSE_PROJECT_NAME": f"rationale-test-{os.getpid()}",
    }

    def compose(*words: str) -> str:
        command = ["docker-compose", "--file", str(ROOT / "docker-compose.yml"), *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def up() -> str:
        compose("up", "--detach", "--no-build")
        url = f"http://127.0.0.1:{http}"
        with contextlib.suppress(AssertionError):
            wait_for(lambda: is_ready(url))
            return url
        raise AssertionError(compose("logs"))

    try:
        url = up()
        predicts_and_explains(url)
        first = decides(url, "a")
        assert compose("exec", "-T", "gateway", "id", "-u").strip() == "10001"
        compose("down")
        url = up()
        assert decides(url, "a") == first
        decides(url, "b")
        assert "8 decisions" in compose("exec", "-T", "gateway", "rationale", "audit", "verify")
    finally:
        compose("down", "--volumes")
