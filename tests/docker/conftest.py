"""A real Docker engine: the one that answers here, or one of our own where root and dockerd are."""

import contextlib
import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import httpx
import pytest

from tests.docker.images import BASE, ROOT, make_base
from tests.needs import need
from tests.service import patient

SECONDS = 60
MINUTES_S = 300
EXAMPLE = ROOT / "examples" / "credit"
IMAGE = "rationale"  # as the docs call it
# In place of Triton's image: an HTTP end that is ready when the repository lets it.
TRITON = "rationale-tests/triton:1"
TRITONSERVER = """#!/bin/busybox sh
echo "$@"
test -e /models/broken && { echo "a model is broken"; exit 1; }
trap 'echo stopped; exit' TERM
busybox mkdir -p /www/v2/health
test -e /models/slow || { busybox sleep 1; echo >/www/v2/health/ready; }
busybox httpd -f -p 8000 -h /www &
wait
"""


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[docker.DockerClient]:
    """Its client; DOCKER_HOST names it. Skips where there is no engine and none can be started."""
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if _answers(address):
        with contextlib.closing(docker.from_env()) as client:
            yield client
        return
    if os.geteuid():
        pytest.skip("no Docker engine answers here, and only root can start one")
    dockerd = need("Docker")
    folder = tmp_path_factory.mktemp("engine")
    address = f"unix://{folder}/socket"
    with (folder / "log").open("wb") as log:
        command = [dockerd, "--host", address, "--pidfile", str(folder / "pid")]
        command += ["--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")]
        daemon = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        end_s = time.monotonic() + SECONDS
        while not _answers(address):
            if daemon.poll() is not None or time.monotonic() > end_s:
                last = (folder / "log").read_text().rstrip().rpartition("\n")[2]
                pytest.skip(f"dockerd does not start here: {last[:300]}")
            time.sleep(0.1)
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.closing(docker.DockerClient(address)) as client,
        ):
            patch.setenv("DOCKER_HOST", address)
            yield client
    finally:
        daemon.terminate()
        daemon.wait(SECONDS)
        for left in (folder / "exec" / "netns").glob("*"):  # else no later pytest can remove its folder
            if os.path.ismount(left):  # Path.is_mount is of folders
                subprocess.run(["umount", str(left)], check=True)
        shutil.rmtree(folder / "data", ignore_errors=True)


def _answers(address: str) -> bool:
    """Tried without the SDK, which leaves a socket that cannot connect to the garbage collector."""
    kind, _, path = address.partition("://")
    if kind != "unix":
        return True
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):  # one that starts may yet fail
        probe.settimeout(SECONDS)
        probe.connect(path)
        probe.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
        return b" 200 " in probe.recv(100)
    return False


@pytest.fixture(scope="session")
def triton_image(engine: docker.DockerClient) -> str:
    """The name of an image that stands for Triton's."""
    busybox = need("busybox")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(os.path.realpath(busybox), "bin/busybox")
        script = tarfile.TarInfo("bin/tritonserver")
        script.size, script.mode = len(TRITONSERVER), 0o755
        tar.addfile(script, io.BytesIO(TRITONSERVER.encode()))
        link = tarfile.TarInfo("bin/sh")
        link.type, link.linkname = tarfile.SYMTYPE, "busybox"
        tar.addfile(link)
    repository, tag = TRITON.split(":")
    engine.api.import_image_from_data(packed.getvalue(), repository=repository, tag=tag)
    return TRITON


@pytest.fixture(scope="session")
def image(engine: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> str:
    make_base(engine, tmp_path_factory.mktemp("base"))
    assert ":".join(BASE) in (ROOT / "Dockerfile").read_text().replace("${PYTHON}", "3.11")
    engine.images.build(path=str(ROOT), tag=IMAGE, network_mode="host", rm=True)
    return IMAGE


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose `credit` decides; others may read it, and not write."""
    folder = tmp_path_factory.mktemp("repository") / "model_repository"
    given = ["--references", EXAMPLE / "near_threshold.csv", "--decision", EXAMPLE / "decision.yaml"]
    named = ["--name", "credit", "--repository", folder]
    command = [
        sys.executable,
        "-m",
        "rationale_service.cli",
        "compile",
        EXAMPLE / "credit.onnx",
        *given,
        *named,
    ]
    subprocess.run(list(map(str, command)), cwd=ROOT, check=True, capture_output=True)
    for path in (folder.parent, folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def wait_for(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + MINUTES_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.5)


def is_ready(url: str) -> bool:
    try:
        return patient.get(f"{url}/v2/health/ready").status_code == 200
    except httpx.TransportError:  # nobody listens yet
        return False
