"""A repository of hand-made entries, the gateway over it, and a real server on a port."""

import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal

import grpc
import httpx
import pytest
import pytest_asyncio
import uvicorn
from starlette.types import ASGIApp
from tritonclient.grpc import service_pb2_grpc

from rationale_service.app import create_app, create_backend
from rationale_service.engine.backends.base import Backend
from rationale_service.models.explainers import builder
from rationale_service.observability.metrics import Metrics
from rationale_service.process.listening import listen
from rationale_service.settings import Settings
from tests.service import handmade, patient
from tests.service.child import PATIENCE_S, both_ends
from tests.service.explaining import Gate, Sets, sets_of, write_plain
from tests.service.in_process import client_of


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model_repository")
    handmade.write_all(folder)
    return folder


@contextlib.asynccontextmanager
async def gateway(settings: Settings, backend: Backend | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the gateway without a network; every model is loaded."""
    metrics = Metrics()
    app = create_app(settings, backend or create_backend(settings, metrics), metrics)
    async with app.router.lifespan_context(app), client_of(app) as client:
        await app.state.gateway.loading
        yield client


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def client(repository: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway(Settings(repository=repository)) as client:
        yield client


@contextlib.contextmanager
def serving(app: ASGIApp, **options: Any) -> Iterator[str]:
    """Runs the app in uvicorn, in a thread, on a free port; gives `host:port`. Ready when entered."""
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=10, **options))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    address = "127.0.0.1:{1}".format(*listener.getsockname())
    try:
        wait_until_ready(f"http://{address}")
        yield address
    finally:
        server.should_exit = True
        thread.join()


def with_hidden_trail(repository: Path, folder: Path, kept: Literal["hashed", "sealed"]) -> Settings:
    """Return settings of a trail without inputs in plain form; its state and key are in `folder`."""
    key = folder / "key"
    key.write_text("k" * 44)
    return Settings(
        repository=repository,
        state=folder / "state",
        audit_inputs=kept,
        audit_key_file=key,
        request_timeout_s=60,
    )


def wait_until_ready(url: str, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while patient.get(f"{url}/v2/health/ready").status_code != 200:
        assert time.monotonic() < end, "the gateway did not become ready"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def address(repository: Path) -> Iterator[str]:
    settings = Settings(repository=repository, request_timeout_s=PATIENCE_S)
    with serving(create_app(settings, create_backend(settings))) as address:
        yield address


@pytest.fixture(scope="session")
def ends(repository: Path) -> Iterator[dict[str, str]]:
    """Of a `rationale serve`, in a process of its own."""
    with both_ends("--repository", str(repository)) as ends:
        yield ends


@pytest.fixture(scope="session")
def grpc_address(ends: dict[str, str]) -> str:
    return ends["grpc"]


@pytest.fixture(scope="session")
def channel(grpc_address: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(grpc_address) as channel:
        yield channel


@pytest.fixture(scope="session")
def stub(channel: grpc.Channel) -> Any:
    """`GRPCInferenceService`, called by hand."""
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


# --- explainers -------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose `models` has no explainer."""
    write_plain(tmp_path / "models")
    return tmp_path


@pytest.fixture
def sets(tmp_path: Path) -> Sets:
    return sets_of(tmp_path)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Explainers are compiled in this process, where the worker is not what a test is about."""
    gate = Gate()
    monkeypatch.setattr(builder, "compile_entry", gate)
    return gate
