"""Gateways of several machines: each with a repository of its own, on one PostgreSQL and one S3."""

import contextlib
import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
import sqlalchemy as sa
from moto.server import ThreadedMotoServer

from tests.service.child import Child, ready_line, serve
from tests.service.decisions.audit.postgres import Postgres

BUCKET = "artifacts"
_KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass
class Cluster:
    """Replicas by number.

    Attributes:
        settings: by their names in the environment, of all of them.
    """

    folder: Path
    settings: dict[str, str]
    running: dict[int, tuple[Child, str]] = field(default_factory=dict)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def database(self) -> str:
        return self.settings["RATIONALE_STATE"]

    def start(self, number: int, *arguments: str) -> str:
        """Its address, when it is ready."""
        repository = self.repository(number)
        if not repository.exists():
            shutil.copytree(self.folder / "models", repository)
        arguments = ("--grpc-port", "off", *(arguments or ("--port", "0")))
        child = self._stack.enter_context(serve("--repository", str(repository), *arguments, **self.settings))
        self.running[number] = (child, ready_line(child)[0])
        return self.running[number][1]

    def repository(self, number: int) -> Path:
        return self.folder / f"replica-{number}"

    def copies(self, number: int) -> Path:
        """The folder with its copies of entries."""
        digest = hashlib.sha256(str(self.repository(number)).encode()).hexdigest()[:16]
        return self.folder / "tmp" / f"rationale-{digest}" / "entries"

    def kill(self, number: int) -> None:
        child, _ = self.running.pop(number)
        child.kill()
        child.wait()

    def stop(self, number: int) -> None:
        """As Kubernetes does: it finishes what it is at."""
        child, _ = self.running.pop(number)
        child.terminate()
        assert child.wait(60) == 0

    @property
    def urls(self) -> list[str]:
        return [url for _, url in self.running.values()]

    def close(self) -> None:
        self._stack.close()


@dataclass
class S3:
    """A bucket."""

    endpoint: str

    def client(self) -> Any:
        """One of boto3."""
        keys = {name.lower(): value for name, value in _KEYS.items()}
        region = keys.pop("aws_default_region")
        return boto3.client("s3", endpoint_url=self.endpoint, region_name=region, **keys)

    @property
    def environment(self) -> dict[str, str]:
        return {**_KEYS, "AWS_ENDPOINT_URL": self.endpoint}

    def objects_of(self, folder: str) -> list[str]:
        return [name for name in self.objects() if name.startswith(f"{folder}/")]

    def objects(self) -> dict[str, bytes]:
        """What lies in it, by name."""
        client = self.client()
        listed = client.list_objects_v2(Bucket=BUCKET).get("Contents", [])
        return {
            item["Key"]: client.get_object(Bucket=BUCKET, Key=item["Key"])["Body"].read() for item in listed
        }


@contextlib.contextmanager
def s3() -> Iterator[S3]:
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        actual = S3(f"http://{host}:{port}")
        actual.client().create_bucket(Bucket=BUCKET)
        yield actual
    finally:
        server.stop()


@contextlib.contextmanager
def cluster(folder: Path, server: Postgres, storage: S3, **more: str) -> Iterator[Cluster]:
    """None of its replicas runs yet; `folder/models` is the repository that each has a copy of."""
    settings = {
        "RATIONALE_STATE": server.new_schema(),
        "RATIONALE_ARTIFACTS": f"s3://{BUCKET}/{folder.name}",
        "RATIONALE_LOG_FORMAT": "plain",
        "TMPDIR": str(folder / "tmp"),  # copies lie there
        **storage.environment,
        **more,
    }
    (folder / "tmp").mkdir()
    actual = Cluster(folder, settings)
    try:
        yield actual
    finally:
        actual.close()


def dump(database: str) -> bytes:
    """All that a schema holds, as text."""
    engine = sa.create_engine(database.replace("postgresql:", "postgresql+psycopg:"))
    try:
        with engine.connect() as connection:
            tables = sa.inspect(connection).get_table_names()
            rows = [str(connection.execute(sa.text(f"SELECT * FROM {t}")).all()) for t in tables]  # noqa: S608  # names that the database gave
    finally:
        engine.dispose()
    return "\n".join(rows).encode()
