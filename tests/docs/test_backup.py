"""docs/backup.md's commands for a database and a bucket, on a real PostgreSQL and an S3 of the test's own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.docs.pages import read
from tests.service import handmade, patient
from tests.service.child import ready_line, serve
from tests.service.decisions.audit.postgres import Postgres, postgres
from tests.service.references.request_time import R, net
from tests.service.state.cluster import BUCKET, S3, s3
from tests.service.state.test_cluster import INSTANCES, explain, put_set

SERVE = "rationale serve"
HEADERS = {"Idempotency-Key": "application-4711"}


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as found:
        yield found


@pytest.fixture(scope="module")
def storage() -> Iterator[S3]:
    with s3() as found:
        yield found


def documented() -> tuple[str, str]:
    """What the page says to dump with, and to restore with."""
    blocks = read(Path("docs/backup.md")).blocks
    dump, restore = (block.text for block in blocks if "test_backup.py" in block.notes.get("not run", ""))
    assert SERVE in restore
    return dump, restore.replace(SERVE, f"true {SERVE}")  # the test serves, on a port of its own


def run(script: str, folder: Path, environment: dict[str, str]) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, **environment, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def decide(url: str) -> httpx.Response:
    return patient.post(f"{url}/v1/models/score:decide", json={"instances": INSTANCES}, headers=HEADERS)


@pytest.mark.full
def test_a_database_and_a_bucket_are_restored(
    tmp_path: Path, server: Postgres, storage: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump, restore = documented()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    net().write(tmp_path / "models", "net")
    handmade.write_score(tmp_path / "models")
    shutil.copytree(tmp_path / "models", tmp_path / "fresh" / "models")
    old, new = server.new_database("old"), server.new_database("restored")
    first = {"RATIONALE_STATE": old, "RATIONALE_ARTIFACTS": f"s3://{BUCKET}/old", **storage.environment}
    arguments = ("--port", "0", "--grpc-port", "off", "--repository")
    with serve(*arguments, str(tmp_path / "models"), **first) as child:
        url, _ = ready_line(child)
        assert put_set(url, "approved", R).status_code == 201
        body = {"method": "deepshap", "reference_set": "approved"}
        assert patient.put(f"{url}/v2/models/net/explainers/approved", json=body).status_code == 202
        assert patient.settled(f"{url}/v2/models/net/explainers/approved")["state"] == "ready"
        explained = explain(url, explainer="approved").json()
        decided = patient.post(
            f"{url}/v1/models/score:decide", json={"instances": INSTANCES}, headers=HEADERS
        )
        assert decided.status_code == 200
        run(dump, tmp_path, {"DATABASE": old, **first})  # while it runs

    for name in storage.objects_of("old"):
        storage.client().delete_object(Bucket=BUCKET, Key=name)
    server.drop_database("old")
    given = {"NEW_DATABASE": new, "NEW_ARTIFACTS": f"s3://{BUCKET}/new"}
    run(restore, tmp_path, {**storage.environment, **given})
    second = {"RATIONALE_STATE": new, "RATIONALE_ARTIFACTS": f"s3://{BUCKET}/new", **storage.environment}
    with serve(*arguments, str(tmp_path / "fresh" / "models"), **second) as child:
        url, _ = ready_line(child)
        assert patient.settled(f"{url}/v2/models/net/explainers/approved")["state"] == "ready"
        assert explain(url, explainer="approved").json()["outputs"] == explained["outputs"]
        again = decide(url)
        assert again.content == decided.content
    check = f"rationale audit verify; rationale replay {decided.json()['decisions'][0]['id']}"
    run(check, tmp_path, {"RATIONALE_REPOSITORY": str(tmp_path / "fresh" / "models"), **second})
