"""A gateway has decided: what commands on its decisions are tested by."""

from collections.abc import Iterator

import pytest

from rationale_service.app import create_app, create_backend
from rationale_service.decisions.audit.ledger import Ledger, open_ledger
from rationale_service.settings import Settings
from tests.service.conftest import serving
from tests.service.decisions.decided import INSTANCES, Decided, compile_all, decide_all


@pytest.fixture(scope="session")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Decided:
    repository = tmp_path_factory.mktemp("decided") / "models"
    compile_all(repository)
    return decide_all(repository, INSTANCES)


@pytest.fixture(scope="session")
def store(decided: Decided) -> Iterator[Ledger]:
    store = open_ledger(decided.settings)
    yield store
    store.close()


@pytest.fixture(scope="module")
def url(settings: Settings) -> Iterator[str]:
    """The address of a gateway with the settings of a module's tests."""
    with serving(create_app(settings, create_backend(settings))) as address:
        yield f"http://{address}"
