"""Images for the tests, built by the engine as users build them."""

import contextlib
import shutil
import ssl
import subprocess
from pathlib import Path

import docker
import pytest
from docker.errors import APIError

from service.cli import triton

ROOT = Path(__file__).parent.parent.parent
BASE = "python", "3.11-slim"
PACKAGES = "python3.11,python3.11-venv,python3-pip,libpython3.11,libexpat1,ca-certificates"
BASE_OF_DEBIAN = """
FROM rationale-tests/debian:1
COPY authorities.pem /etc/ssl/certs/ca-certificates.crt
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt
RUN ln -s python3.11 /usr/bin/python
"""
# The server that `make triton` fetches, under the name of the official image: no registry is within reach.
TRITON = """
FROM python:3.11-slim
COPY triton /source
RUN python /source/fetch.py --into /triton
COPY tritonserver curl /usr/local/bin/
"""
TRITONSERVER = """#!/bin/sh
export PATH=/triton/venv/bin:$PATH LD_LIBRARY_PATH=/triton/lib
server=$(echo /triton/venv/lib/python3.*/site-packages/pytriton/tritonserver)
exec "$server/bin/tritonserver" --backend-directory=/triton/backends --allow-gpu-metrics=false "$@"
"""
CURL = """#!/usr/bin/env python3
import sys, urllib.request
urllib.request.urlopen(sys.argv[-1], timeout=2)
"""


def make_base(engine: docker.DockerClient, folder: Path) -> None:
    """Python's image from its registry; where that is out of reach, one of Debian's packages in its place."""
    with contextlib.suppress(APIError):
        engine.images.pull(*BASE)
        return
    if shutil.which("mmdebstrap") is None:
        pytest.skip("no registry has python:3.11-slim for this machine, and to make one takes mmdebstrap")
    command = ["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", f"{folder}/debian.tar"]
    subprocess.run(command, check=True, capture_output=True)
    engine.api.import_image_from_file(f"{folder}/debian.tar", repository="rationale-tests/debian", tag="1")
    (folder / "debian.tar").unlink()
    (folder / "Dockerfile").write_text(BASE_OF_DEBIAN)
    # What this machine trusts: a proxy of its own may stand before the packages' host.
    shutil.copy(ssl.get_default_verify_paths().cafile, folder / "authorities.pem")
    engine.images.build(path=str(folder), tag=":".join(BASE))


def make_triton(engine: docker.DockerClient, folder: Path) -> None:
    shutil.copytree(ROOT / "scripts" / "triton", folder / "triton")
    for name, text in {"Dockerfile": TRITON, "tritonserver": TRITONSERVER, "curl": CURL}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    engine.images.build(path=str(folder), tag=triton.IMAGE, network_mode="host", rm=True)
