"""A real helm."""

import pytest

from tests.deploy.helm import Helm, fetched


@pytest.fixture(scope="session")
def helm() -> Helm:
    return Helm(fetched())
