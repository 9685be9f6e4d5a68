"""Images for the tests, built by the engine as users build them."""

import contextlib
import shutil
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError

from rationale_service.cli import triton
from tests.needs import need

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


# What stands for the images of the profile `replicas` where no registry is within reach: Debian's PostgreSQL
# and haproxy, started as the official images start theirs, and moto's S3, which takes any key.
SERVICES = "postgresql,haproxy"
POSTGRES = """
FROM rationale-tests/services:1
ENV PGDATA=/var/lib/postgresql/data LANG=C.UTF-8
RUN mkdir -p "$PGDATA" && chown postgres "$PGDATA"
COPY start /usr/local/bin/start
USER postgres
CMD ["start"]
"""
START_POSTGRES = """#!/bin/sh -e
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
if [ ! -e "$PGDATA/PG_VERSION" ]; then
    echo "$POSTGRES_PASSWORD" >/tmp/password
    initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --auth-local=trust --auth-host=scram-sha-256
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    pg_ctl -w -o "-c listen_addresses='' -k /tmp" start
    createdb --host=/tmp --username="$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl -w stop
fi
exec postgres -k /tmp -c listen_addresses='*'
"""
PROXY = """
FROM rationale-tests/services:1
CMD ["haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]
"""
S3 = """
FROM python:3.11-slim
RUN python -m venv /moto && /moto/bin/pip install "moto[server]>=5.1,<6"
CMD ["/moto/bin/moto_server", "--host", "0.0.0.0", "--port", "7070"]
"""


def make_base(engine: docker.DockerClient, folder: Path) -> None:
    """Python's image from its registry; where that is out of reach, one of Debian's packages in its place."""
    with contextlib.suppress(APIError):
        engine.images.pull(*BASE)
        return
    _import_debian(engine, folder, PACKAGES, "debian")
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


def make_services(engine: docker.DockerClient, folder: Path, services: Mapping[str, Any]) -> None:
    """The images of these services that are not ours: a registry's, or what stands for them."""
    made = {"postgres": {"Dockerfile": POSTGRES, "start": START_POSTGRES}, "proxy": {"Dockerfile": PROXY}}
    made["s3"] = {"Dockerfile": S3}
    for name, files in made.items():
        image = services[name]["image"]
        with contextlib.suppress(APIError):
            engine.images.pull(image)
            continue
        if name != "s3":
            _import_debian(engine, folder, SERVICES, "services")
        (folder / name).mkdir()
        for file, text in files.items():
            (folder / name / file).write_text(text)
            (folder / name / file).chmod(0o755)
        engine.images.build(path=str(folder / name), tag=image, network_mode="host", rm=True)


def _import_debian(engine: docker.DockerClient, folder: Path, packages: str, name: str) -> None:
    """Import an image of Debian's packages, once: an engine may have it from an earlier run."""
    if engine.images.list(f"rationale-tests/{name}:1"):
        return
    file = folder / f"{name}.tar"
    command = [need("mmdebstrap"), "--variant=minbase", f"--include={packages}", "bookworm", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    engine.api.import_image_from_file(str(file), repository=f"rationale-tests/{name}", tag="1")
    file.unlink()
