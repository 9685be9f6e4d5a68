"""The gateway's image, built and run by a real Docker engine as docker-compose.yml runs it."""

import contextlib
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import numpy as np
import pytest
from docker.errors import APIError

from tests.service import patient

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
IMAGE = "rationale-tests/gateway:1"
BASE = "python", "3.11-slim"
MINUTES_S = 300
BASE_OF_DEBIAN = """
FROM rationale-tests/debian:1
COPY authorities.pem /etc/ssl/certs/ca-certificates.crt
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt
RUN ln -s python3.11 /usr/bin/python
"""


@pytest.fixture(scope="module")
def base(engine: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Python's image from its registry; where that is out of reach, one of Debian's packages in its place."""
    with contextlib.suppress(APIError):
        engine.images.pull(*BASE)
        return ":".join(BASE)
    if shutil.which("mmdebstrap") is None:
        pytest.skip("no registry has python:3.11-slim for this machine, and to make one takes mmdebstrap")
    folder = tmp_path_factory.mktemp("base")
    packages = "python3.11,python3.11-venv,python3-pip,ca-certificates"
    subprocess.run(
        ["mmdebstrap", "--variant=minbase", f"--include={packages}", "bookworm", folder / "debian.tar"],
        check=True,
        capture_output=True,
    )
    engine.api.import_image_from_file(f"{folder}/debian.tar", repository="rationale-tests/debian", tag="1")
    (folder / "debian.tar").unlink()
    (folder / "Dockerfile").write_text(BASE_OF_DEBIAN)
    # What this machine trusts: a proxy of its own may stand before the packages' host.
    shutil.copy(ssl.get_default_verify_paths().cafile, folder / "authorities.pem")
    engine.images.build(path=str(folder), tag=":".join(BASE))
    return ":".join(BASE)


@pytest.fixture(scope="module")
def image(engine: docker.DockerClient, base: str) -> str:
    assert base in (ROOT / "Dockerfile").read_text().replace("${PYTHON}", "3.11")
    engine.images.build(path=str(ROOT), tag=IMAGE, network_mode="host", rm=True)
    return IMAGE


@pytest.fixture
def gateway(engine: docker.DockerClient, image: str) -> Iterator[docker.models.containers.Container]:
    container = engine.containers.run(
        image,
        detach=True,
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        tmpfs={"/tmp": ""},  # noqa: S108 (in the container)
        volumes={str(ROOT / "model_repository"): {"bind": "/models", "mode": "ro"}},
        ports={"8080/tcp": ("127.0.0.1", None)},
    )
    yield container
    container.remove(force=True)


def test_it_becomes_healthy_explains_and_stops(gateway: docker.models.containers.Container) -> None:
    end_s = time.monotonic() + MINUTES_S
    while gateway.health != "healthy":
        assert gateway.status in ("created", "running"), gateway.logs().decode()
        assert time.monotonic() < end_s, gateway.logs().decode()
        time.sleep(0.5)
        gateway.reload()
    assert gateway.exec_run(["id", "-u"]).output == b"10001\n"
    [port] = gateway.attrs["NetworkSettings"]["Ports"]["8080/tcp"]
    url = f"http://127.0.0.1:{port['HostPort']}"
    [x] = patient.get(f"{url}/v2/models/credit").json()["inputs"]
    rows = np.random.default_rng(3).uniform(size=(3, *x["shape"][1:]))
    answer = patient.post(f"{url}/v1/models/credit:explain", json={"instances": rows.tolist()})
    assert answer.status_code == 200, answer.text
    for told in answer.json()["explanations"]:
        gap = told["explained_value"] - told["base_value"] - sum(told["attributions"].values())
        assert abs(gap) < 1e-4
    gateway.stop(timeout=40)
    assert gateway.wait()["StatusCode"] == 0, gateway.logs().decode()
