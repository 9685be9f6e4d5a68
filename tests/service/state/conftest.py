"""A PostgreSQL and an S3 for a module of tests."""

from collections.abc import Iterator

import pytest

from tests.service.decisions.audit.postgres import Postgres, postgres
from tests.service.state.cluster import S3, s3


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


@pytest.fixture(scope="session")
def storage() -> Iterator[S3]:
    with s3() as storage:
        yield storage
